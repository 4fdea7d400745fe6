"""Measures a SASL_SSL listener with ACLs: produce and consume over TLS, and logins with SCRAM per second.

Both brokers have the same certificate, and next to the secured listener a plaintext one for the benchmark itself. With
10,000 ACLs, every request of the cells asks the authorizer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.brokers import Kafka, Peer, Penstock
from bench.cells import SETTLE_S, Cell, Numbers, Scale, fresh_topic, with_cpu
from bench.load import librdkafka
from bench.process import cpu_seconds
from penstock.client.client_security import credentials_of
from penstock.client.connection import BrokerConnection, ConnectionSettings
from penstock.net.loop import run
from penstock.net.network import RealNetwork
from penstock.node.local_security import APP, LISTENER, LocalSecurity, librdkafka_properties, local_security
from tools.kafka import free_ports

ACLS, SIZE, PARTITIONS, LOGINS_AT_ONCE = 10_000, 1024, 6, 4
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


def overrides(security: LocalSecurity, listeners: dict[str, int]) -> dict[str, str]:
    """Returns the properties of a broker with these listeners, all on loopback."""
    named = ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items())
    return {
        "listeners": named,
        "advertised.listeners": named,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": SCRAM,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": security.key_store,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": security.ca,
        "authorizer.class.name": STANDARD,
        "super.users": "User:ANONYMOUS",
    }


@dataclass(slots=True)
class Secured:
    """Runs a broker with a secured listener. As a `Peer`, it has the address of its plaintext listener."""

    broker: Penstock | Kafka
    security: LocalSecurity
    secured_port: int = field(default_factory=lambda: free_ports(1)[0])

    @property
    def name(self) -> str:
        return self.broker.name

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    @property
    def port(self) -> int:
        return self.broker.port

    @property
    def pid(self) -> int:
        return self.broker.pid

    def start(self) -> float:
        if isinstance(self.broker, Penstock):
            self.broker.port = self.broker.port or free_ports(1)[0]
            listeners = {"PLAINTEXT": self.broker.port, LISTENER: self.secured_port}
            self.broker.overrides = overrides(self.security, listeners)
        else:
            self.broker.secure(lambda listeners: overrides(self.security, {**listeners, LISTENER: self.secured_port}))
        took = self.broker.start()
        self._prepare()
        return took

    def _prepare(self) -> None:
        """Creates the user and the ACLs."""
        from confluent_kafka import admin as kafka

        admin = kafka.AdminClient({"bootstrap.servers": self.bootstrap})
        info = kafka.ScramCredentialInfo(kafka.ScramMechanism.SCRAM_SHA_512, 4096)
        user = kafka.UserScramCredentialUpsertion(APP, info, self.security.passwords[APP].encode())
        for future in admin.alter_user_scram_credentials([user]).values():
            future.result(60)
        kind, literal = kafka.ResourceType.TOPIC, kafka.ResourcePatternType.LITERAL
        allow, every = kafka.AclPermissionType.ALLOW, kafka.AclOperation.ALL
        acls = [
            kafka.AclBinding(kind, f"other-{number}", literal, f"User:u{number}", "*", every, allow)
            for number in range(ACLS)
        ]
        acls += [
            kafka.AclBinding(one, "*", literal, f"User:{APP}", "*", every, allow)
            for one in (kind, kafka.ResourceType.GROUP)
        ]
        for start in range(0, len(acls), 1000):
            for future in admin.create_acls(acls[start : start + 1000], request_timeout=60).values():
                future.result(120)

    @property
    def client(self) -> dict[str, str]:
        properties = librdkafka_properties(self.security, f"127.0.0.1:{self.secured_port}", APP)
        return {name: value for name, value in properties.items() if name != "bootstrap.servers"}

    def stop(self) -> None:
        self.broker.stop()

    def kill(self) -> None:
        self.broker.kill()

    def wipe(self) -> None:
        self.broker.wipe()


def secured_peers(which: str, home: Path) -> list[Peer]:
    security = local_security(str(home / "security"), "127.0.0.1")
    both = [Secured(Penstock(home / "penstock"), security), Secured(Kafka(home / "kafka"), security)]
    return [peer for peer in both if which in ("both", peer.name)]


def _secured(peer: Peer) -> Secured:
    assert isinstance(peer, Secured)
    return peer


def produce_cell(records: int) -> Cell:
    def measure(peer: Peer) -> Numbers:
        secured, topic = _secured(peer), fresh_topic(peer, "tls", PARTITIONS)
        told = {"records": records, "size": SIZE, "partitions": PARTITIONS, "config": json.dumps(secured.client)}
        return with_cpu(
            peer, records, SIZE, lambda: librdkafka("produce", f"127.0.0.1:{secured.secured_port}", topic, **told)
        )

    return Cell(f"security/produce/sasl_ssl/{SIZE}B/{PARTITIONS}p", measure)


def consume_cell(records: int) -> Cell:
    def measure(peer: Peer) -> Numbers:
        secured, topic = _secured(peer), fresh_topic(peer, "tls", PARTITIONS)
        librdkafka("produce", peer.bootstrap, topic, records=records, size=SIZE, partitions=PARTITIONS)
        told = {"records": records, "partitions": PARTITIONS, "config": json.dumps(secured.client)}
        return with_cpu(
            peer, records, SIZE, lambda: librdkafka("consume", f"127.0.0.1:{secured.secured_port}", topic, **told)
        )

    return Cell(f"security/consume/sasl_ssl/{SIZE}B/{PARTITIONS}p", measure)


def login_cell(seconds: float) -> Cell:
    """Measures logins: TCP, TLS and SCRAM-SHA-512, then the connection closes."""

    def measure(peer: Peer) -> Numbers:
        secured = _secured(peer)
        credentials = credentials_of(secured.client)
        settings = ConnectionSettings(tls=credentials.tls, login=credentials.login)

        async def logins() -> int:
            until, done = time.monotonic() + seconds, 0

            async def keep_on() -> None:
                nonlocal done
                while time.monotonic() < until:
                    (await BrokerConnection.open(RealNetwork(), "127.0.0.1", secured.secured_port, settings)).close()
                    done += 1

            await asyncio.gather(*(keep_on() for _ in range(LOGINS_AT_ONCE)))
            return done

        before, began = cpu_seconds(peer.pid), time.monotonic()
        done = run(logins())
        took = time.monotonic() - began
        time.sleep(SETTLE_S)
        return {"logins_per_s": done / took, "cpu_ms_per_login": (cpu_seconds(peer.pid) - before) / done * 1000}

    return Cell("security/logins/scram-sha-512", measure)


def cells(scale: Scale) -> Iterator[Cell]:
    yield produce_cell(scale.records_1024)
    yield consume_cell(scale.records_1024)
    yield login_cell(scale.closed_s)
