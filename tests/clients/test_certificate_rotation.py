"""Tests that certificates and their authority are replaced on a cluster with mutual TLS while clients write and read.

Every listener requires client certificates, also between nodes. No request may fail, and no record may be lost.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from penstock.client.client import AsyncClient
from penstock.client.connection import BrokerConnection, ConnectionSettings
from penstock.client.producer import Producer as OwnProducer
from penstock.client.producer import ProducerSettings
from penstock.net.network import RealNetwork
from penstock.node.clock import SystemClock
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_18_api_versions import ApiVersionsRequest
from penstock.testing import Cluster
from tools.certificates import Authority, replace, serial_number

TOPIC = "orders"
LISTENERS = ("PLAINTEXT", "CONTROLLER")  # their names in a test cluster; both use TLS here
RECORDS = 20  # of one session
SESSIONS = 4  # kinds of clients that work in sessions
ANY_REQUEST = ApiVersionsRequest(client_software_name="rotation", client_software_version="1")


@dataclass
class Stores:
    """Holds the PEM files of nodes and clients. Each side has a key with its certificate, and trusted authorities."""

    home: Path
    old: Authority = field(init=False)
    new: Authority = field(init=False)

    def __post_init__(self) -> None:
        self.old, self.new = Authority(self.home, "old-ca"), Authority(self.home, "new-ca")
        self.trust("servers", self.old)
        self.trust("clients", self.old)
        self.issue("servers", self.old)
        self.issue("clients", self.old)

    def key(self, side: str) -> str:
        return str(self.home / f"{side}.pem")

    def trusted(self, side: str) -> str:
        return str(self.home / f"{side}-trust.pem")

    def issue(self, side: str, authority: Authority, version: str = "") -> str:
        """Writes a new certificate with the same name for nodes or clients (`side`), and returns its path."""
        return authority.store(f"{side}{version}.pem", {"servers": "node", "clients": "app"}[side])

    def trust(self, side: str, *authorities: Authority, version: str = "") -> str:
        return replace(self.home / f"{side}{version}-trust.pem", "".join(each.pem for each in authorities))

    def server_properties(self) -> dict[str, str]:
        return {
            "listener.security.protocol.map": ",".join(f"{name}:SSL" for name in LISTENERS),
            "ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.key("servers"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.trusted("servers"),
            "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:node;User:app",
        }

    def librdkafka(self, bootstrap: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": self.trusted("clients"),
            "ssl.certificate.location": self.key("clients"),
            "ssl.key.location": self.key("clients"),
        }

    def context(self) -> ssl.SSLContext:
        """Returns a TLS context with the current certificate and authorities of the clients."""
        context = ssl.create_default_context(cafile=self.trusted("clients"))
        context.load_cert_chain(self.key("clients"))
        return context


class Load:
    """Runs clients that write, read and connect all the time.

    Some connections stay open from the beginning to the end. All other clients restart often and read the current
    certificates and authorities at each start.
    """

    def __init__(self, cluster: Cluster, stores: Stores) -> None:
        self._bootstrap, self._stores = cluster.bootstrap, stores
        self._ports = ports(cluster)
        self._stopping = False
        self._ended: Counter[str] = Counter()
        self._session_ended = asyncio.Event()
        self._numbers = itertools.count()
        self.written: list[int] = []
        self.read: list[int] = []
        self.problems: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the clients during the `async with` block. Afterwards stops them, and reads the records that are still
        unread."""
        sessions = (self._visit, self._write, self._write_with_librdkafka, self._read_with_librdkafka)
        async with asyncio.TaskGroup() as tasks:
            for session in sessions:
                tasks.create_task(self._repeat(session))
            tasks.create_task(self._stay_connected())
            try:
                yield
            finally:
                self._stopping = True
        await asyncio.to_thread(self._read, len(self.written) - len(self.read))

    async def _repeat(self, session: Callable[[], Awaitable[None]]) -> None:
        while not self._stopping:
            await session()
            self._ended[session.__name__] += 1
            self._session_ended.set()
            self._session_ended.clear()

    async def pass_over(self) -> None:
        """Waits until all clients that restart have started with the current certificates and authorities."""
        before = self._ended.copy()
        # One session may have begun before.
        while len(self._ended) < SESSIONS or any(self._ended[name] < before[name] + 2 for name in self._ended):
            await self._session_ended.wait()
            assert not self.problems, self.problems

    # --- sessions -----------------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        settings = ConnectionSettings(tls=self._stores.context())
        opened = [await BrokerConnection.open(RealNetwork(), "127.0.0.1", port, settings) for port in self._ports]
        while not self._stopping:
            for connection in opened:
                await connection.request(ANY_REQUEST)
        for connection in opened:
            connection.close()
            await connection.wait_closed()

    async def _visit(self) -> None:
        context = self._stores.context()
        for port in self._ports:
            try:
                await ask(port, context)
            except KafkaError as error:
                self.problems.append(f"a new client on port {port}: {error}")

    async def _write(self) -> None:
        connecting = ConnectionSettings(tls=self._stores.context())
        settings = ProducerSettings(acks=-1, idempotent=True, delivery_timeout_s=60)
        async with (
            AsyncClient(self._bootstrap, settings=connecting) as client,
            OwnProducer(client, SystemClock(), settings) as producer,
        ):
            for _ in range(RECORDS):
                number = next(self._numbers)
                await (await producer.send(TOPIC, str(number).encode()))
                self.written.append(number)

    async def _write_with_librdkafka(self) -> None:
        await asyncio.to_thread(self._produce)

    async def _read_with_librdkafka(self) -> None:
        await asyncio.to_thread(self._read, 1)

    def _produce(self) -> None:
        producer = Producer({**self._librdkafka(), "acks": "all", "enable.idempotence": True})
        for _ in range(RECORDS):
            number = next(self._numbers)
            producer.produce(TOPIC, str(number), on_delivery=lambda error, _, number=number: self._note(error, number))
            producer.poll(0)
        assert producer.flush(60) == 0

    def _note(self, error: Any, number: int) -> None:
        if error is None:
            self.written.append(number)
        else:
            self.problems.append(f"record {number}: {error}")

    def _read(self, count: int) -> None:
        """Reads at least `count` records, as the only member of a group."""
        consumer = Consumer({**self._librdkafka(), "group.id": "readers", "auto.offset.reset": "earliest"})
        consumer.subscribe([TOPIC])
        found: list[Any] = []
        while len(found) < count and (message := consumer.poll(60)) is not None:
            found.append(message)
        found += consumer.consume(RECORDS, 0.1)
        assert [message.error() for message in found if message.error()] == []
        self.read += [int(message.value()) for message in found]
        consumer.close()

    def _librdkafka(self) -> dict[str, Any]:
        return {
            **self._stores.librdkafka(self._bootstrap),
            "error_cb": lambda error: self.problems.append(f"librdkafka: {error}"),
        }


def ports(cluster: Cluster) -> list[int]:
    """Returns the ports of all listeners of all nodes."""
    return [
        int(cluster.node(each).bootstrap_of(name).rpartition(":")[2]) for each in cluster.nodes for name in LISTENERS
    ]


async def ask(port: int, context: ssl.SSLContext) -> None:
    """Sends a request over a new connection. Raises KafkaError."""
    connection = await BrokerConnection.open(
        RealNetwork(), "127.0.0.1", port, ConnectionSettings(tls=context, request_timeout_s=60, connect_timeout_s=60)
    )
    try:
        await connection.request(ANY_REQUEST)
    finally:
        connection.close()
        await connection.wait_closed()


async def shown_serial(port: int, context: ssl.SSLContext) -> int:
    """Returns the serial number of the certificate that the listener uses now."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    certificate = writer.get_extra_info("ssl_object").getpeercert()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return int(certificate["serialNumber"], 16)


async def on_all_listeners(cluster: Cluster, holds: Callable[[int], Awaitable[bool]]) -> None:
    """Waits until the condition holds for the port of each listener."""
    for port in ports(cluster):
        while not await holds(port):
            pass


async def accepts(port: int, context: ssl.SSLContext) -> bool:
    try:
        await ask(port, context)
    except KafkaError:
        return False
    return True


class Changes:
    """Renews the key and trust stores of the nodes. Changes the files in place, or writes new files and sets dynamic
    configs."""

    def __init__(self, cluster: Cluster, stores: Stores, *, dynamic: bool) -> None:
        self._cluster, self._stores, self._dynamic = cluster, stores, dynamic
        self._versions = itertools.count(1)

    def _version(self) -> str:
        return f"-{next(self._versions)}" if self._dynamic else ""

    async def key(self, authority: Authority) -> None:
        """Gives the nodes a certificate of the authority, and waits until every listener uses it."""
        path = self._stores.issue("servers", authority, self._version())
        wanted, context = serial_number(path), self._stores.context()
        await self._announce("ssl.keystore.location", path)

        async def shows(port: int) -> bool:
            return await shown_serial(port, context) == wanted

        await on_all_listeners(self._cluster, shows)

    async def trust(self, *authorities: Authority) -> None:
        """Gives the nodes a trust store, and waits until every listener accepts only clients of these authorities."""
        path = self._stores.trust("servers", *authorities, version=self._version())
        await self._announce("ssl.truststore.location", path)
        for authority in (self._stores.old, self._stores.new):
            context = ssl.create_default_context(cafile=self._stores.trusted("clients"))
            context.load_cert_chain(authority.store("probe.pem", "app"))
            wanted = authority in authorities

            async def follows(port: int, context: ssl.SSLContext = context, wanted: bool = wanted) -> bool:
                return await accepts(port, context) is wanted

            await on_all_listeners(self._cluster, follows)

    async def _announce(self, name: str, path: str) -> None:
        """Sets the property on one node after the other.

        Does nothing without dynamic configs, because the nodes notice the changed file.
        """
        if not self._dynamic:
            return
        admin = AdminClient(self._stores.librdkafka(self._cluster.bootstrap))
        for node in self._cluster.nodes:
            entries = [
                ConfigEntry(
                    f"listener.name.{listener.lower()}.{name}", path, incremental_operation=AlterConfigOpType.SET
                )
                for listener in LISTENERS
            ]
            resource = ConfigResource(ResourceType.BROKER, str(node), incremental_configs=entries)
            for altered in admin.incremental_alter_configs([resource]).values():
                await asyncio.to_thread(altered.result, 60)


async def rotate(cluster: Cluster, stores: Stores, load: Load, *, dynamic: bool) -> None:
    changes = Changes(cluster, stores, dynamic=dynamic)
    # New certificates of the same authority.
    await changes.key(stores.old)
    stores.issue("clients", stores.old)
    await load.pass_over()
    # The new authority is trusted before the first certificate of it is shown, and the old one until none is shown.
    await changes.trust(stores.old, stores.new)
    stores.trust("clients", stores.old, stores.new)
    await load.pass_over()
    await changes.key(stores.new)
    stores.issue("clients", stores.new)
    stores.trust("clients", stores.new)
    await load.pass_over()
    await changes.trust(stores.new)
    await load.pass_over()


def replicates_after_a_restart(cluster: Cluster, stores: Stores) -> None:
    """Restarts a node, which then opens all its connections again, and waits until the node is in sync."""
    cluster.restart(2)
    admin = AdminClient(stores.librdkafka(cluster.bootstrap))
    while any(len(part.isrs) < 3 for part in admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions.values()):
        pass


def run(home: Path, *, dynamic: bool) -> None:
    stores = Stores(home)

    async def main(cluster: Cluster) -> None:
        admin = AdminClient(stores.librdkafka(cluster.bootstrap))
        for created in admin.create_topics([NewTopic(TOPIC, 3, 3)]).values():
            await asyncio.to_thread(created.result, 60)
        load = Load(cluster, stores)
        async with load.running():
            await load.pass_over()
            await rotate(cluster, stores, load, dynamic=dynamic)
        assert load.problems == []
        assert len(load.written) > 100
        assert sorted(load.read) == sorted(load.written)
        await asyncio.to_thread(replicates_after_a_restart, cluster, stores)

    with Cluster(nodes=3, config=stores.server_properties()) as cluster:
        asyncio.run(asyncio.wait_for(main(cluster), 280))


def test_no_request_fails_while_dynamic_configs_replace_all_certificates_and_their_authority(tmp_path: Path) -> None:
    run(tmp_path, dynamic=True)


@pytest.mark.slow
def test_no_request_fails_while_changed_files_replace_all_certificates_and_their_authority(tmp_path: Path) -> None:
    run(tmp_path, dynamic=False)
