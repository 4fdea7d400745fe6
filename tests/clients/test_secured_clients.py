"""Tests that every stock client writes and reads over TLS with every authentication method.

A `Door` describes one method: PLAIN, SCRAM, an access token, a delegation token, or a client certificate. librdkafka,
aiokafka and kafka-python do not support delegation tokens.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from conftest import FranzBuilder
from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.client.client_security import credentials_of
from penstock.client.connection import ConnectionSettings
from penstock.client.sync import Client
from penstock.testing import Broker
from penstock.testing.tokens import TokenIssuer
from tools import kafka
from tools.certificates import Authority

TOPIC, PASSWORD = "orders", "ann-secret"
PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
STOCK = (*PASSWORDS, "OAUTHBEARER", "certificate")
ALL = (*STOCK, "token")
MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
TOKEN_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


@dataclass(frozen=True)
class Door:
    """Describes one authentication method of a client.

    Without a SASL mechanism, the client uses its certificate. The password can be an access token or a delegation
    token.
    """

    bootstrap: str
    authority: str
    certificate: str = ""
    mechanism: str = ""
    user: str = ""
    password: str = ""
    is_token: bool = False

    def librdkafka(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL" if self.mechanism else "SSL",
            "ssl.ca.location": self.authority,
        }
        if self.certificate:
            return {
                **found,
                "ssl.certificate.location": self.certificate,
                "ssl.key.location": self.certificate,
            }
        if self.mechanism == "OAUTHBEARER":
            return {**found, "sasl.mechanism": self.mechanism, "oauth_cb": lambda _: (self.password, time.time() + 600)}
        return {
            **found,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
        }

    def java(self, place: Path) -> dict[str, str]:
        """Returns the properties of Kafka's Java clients, which Penstock's client accepts, too."""
        found = {
            "security.protocol": "SASL_SSL" if self.mechanism else "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
        }
        if self.certificate:
            return {**found, "ssl.keystore.type": "PEM", "ssl.keystore.location": self.certificate}
        line = f'{MODULES[self.mechanism]} required username="{self.user}" password="{self.password}"'
        if self.mechanism == "OAUTHBEARER":
            token = place / "access-token"
            token.write_text(self.password)
            found["sasl.oauthbearer.token.endpoint.url"] = token.as_uri()
            line = f"{MODULES[self.mechanism]} required"
        line += ' tokenauth="true";' if self.is_token else ";"
        return {**found, "sasl.mechanism": self.mechanism, "sasl.jaas.config": line}

    def python(self) -> dict[str, Any]:
        """Returns the settings that kafka-python and aiokafka have in common."""
        context = ssl.create_default_context(cafile=self.authority)
        found = {"bootstrap_servers": self.bootstrap, "ssl_context": context}
        if self.certificate:
            context.load_cert_chain(self.certificate)
            return {**found, "security_protocol": "SSL"}
        found |= {"security_protocol": "SASL_SSL", "sasl_mechanism": self.mechanism}
        if self.mechanism == "OAUTHBEARER":
            return found
        return {**found, "sasl_plain_username": self.user, "sasl_plain_password": self.password}


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Door]]:
    """Starts a broker that offers all authentication methods. Only the user ann may use the topic."""
    home = tmp_path_factory.mktemp("doors")
    authority, issuer = Authority(home, "ca"), TokenIssuer()
    users = f'{MODULES["PLAIN"]} required username="admin" password="a" user_admin="a" user_ann="{PASSWORD}";'
    config = {
        "listeners": "SASL_SSL://127.0.0.1:0,SSL://127.0.0.1:0",
        "inter.broker.listener.name": "SASL_SSL",
        "sasl.enabled.mechanisms": ",".join((*PASSWORDS, "OAUTHBEARER")),
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": users,
        "sasl.oauthbearer.jwks.endpoint.url": issuer.write_keys(home / "keys.json"),
        "delegation.token.secret.key": "cluster-secret",
        "ssl.keystore.location": authority.store("server.pem", "localhost"),
        "ssl.truststore.location": str(authority.file),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/L, DEFAULT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    with Broker(config=config) as broker:
        ca, sasl = str(authority.file), broker.bootstrap_of("SASL_SSL")
        set_up(AdminClient(Door(sasl, ca, mechanism="PLAIN", user="admin", password="a").librdkafka()))
        found = {name: Door(sasl, ca, mechanism=name, user="ann", password=PASSWORD) for name in PASSWORDS}
        found["OAUTHBEARER"] = Door(sasl, ca, mechanism="OAUTHBEARER", password=issuer.token("ann"))
        client = authority.store("client.pem", {"O": "Org", "CN": "Ann"})
        found["certificate"] = Door(broker.bootstrap_of("SSL"), ca, certificate=client)
        token_id, mac = delegation_token(found["PLAIN"], home)
        found["token"] = Door(sasl, ca, mechanism="SCRAM-SHA-256", user=token_id, password=mac, is_token=True)
        yield found


def set_up(admin: AdminClient) -> None:
    for created in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
        created.result(60)
    upserts = [
        UserScramCredentialUpsertion("ann", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    for upsert in upserts:
        for altered in admin.alter_user_scram_credentials([upsert]).values():
            altered.result(60)
    allowed = (ResourcePatternType.LITERAL, "User:ann", "*", AclOperation.ALL, AclPermissionType.ALLOW)
    acls = [AclBinding(kind, name, *allowed) for kind, name in ((ResourceType.TOPIC, TOPIC), (ResourceType.GROUP, "*"))]
    for made in admin.create_acls(acls).values():
        made.result(60)


def delegation_token(door: Door, home: Path) -> tuple[str, str]:
    file, out = write_properties(home / "ann.properties", door, home), home / "token.json"
    command = [sys.executable, "-m", "penstock.cli.main", "token", "create", "--json", "--bootstrap", door.bootstrap]
    with out.open("w") as stdout:
        subprocess.run([*command, "--command-config", str(file)], stdout=stdout, check=True, timeout=120)
    made = json.loads(out.read_text())
    return made["token_id"], made["hmac"]


def write_properties(path: Path, door: Door, place: Path) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in door.java(place).items()))
    return path


@pytest.mark.parametrize("name", STOCK)
def test_librdkafka_writes_and_reads_over_tls_with_every_authentication_method(
    doors: dict[str, Door], name: str
) -> None:
    settings, value = doors[name].librdkafka(), secrets.token_hex(8).encode()
    problems: list[Any] = []
    producer = Producer(settings)
    producer.produce(TOPIC, value, on_delivery=lambda error, _: problems.append(error))
    assert producer.flush(60) == 0
    assert problems == [None]
    consumer = Consumer({**settings, "group.id": "g"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    while (message := consumer.poll(60)) is not None and message.value() != value:
        pass
    assert message is not None
    consumer.close()


@pytest.mark.parametrize("name", STOCK)
def test_aiokafka_writes_and_reads_over_tls_with_every_authentication_method(doors: dict[str, Door], name: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return doors[name].password

    async def round_trip() -> None:
        settings, value = doors[name].python(), secrets.token_hex(8).encode()
        if name == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = Tokens()
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(TOPIC, value)
        async with AIOKafkaConsumer(TOPIC, auto_offset_reset="earliest", **settings) as consumer:
            async for record in consumer:
                if record.value == value:
                    return

    asyncio.run(asyncio.wait_for(round_trip(), 120))


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("name", STOCK)
def test_kafka_python_writes_and_reads_over_tls_with_every_authentication_method(
    doors: dict[str, Door], name: str
) -> None:
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return doors[name].password

    settings, value = doors[name].python(), secrets.token_hex(8).encode()
    if name == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = Tokens()
    with KafkaProducer(**settings) as producer:
        assert producer.send(TOPIC, value).get(60).topic == TOPIC
    reading = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 60_000}
    with KafkaConsumer(TOPIC, **settings, **reading) as consumer:
        assert any(record.value == value for record in consumer)


@pytest.mark.parametrize("name", ALL)
def test_penstocks_client_and_command_line_write_and_read_over_tls_with_every_authentication_method(
    doors: dict[str, Door], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    door, value = doors[name], secrets.token_hex(8).encode()
    credentials = credentials_of(door.java(tmp_path))
    settings = ConnectionSettings(tls=credentials.tls, login=credentials.login)
    with Client(door.bootstrap, settings=settings) as client:
        with client.producer() as producer:
            producer.send(TOPIC, value)
        with client.consumer() as consumer:
            consumer.assign({(TOPIC, 0): 0})
            while value not in [record.value for fetched in consumer.poll(60) for record in fetched.records()]:
                pass
    file = write_properties(tmp_path / "client.properties", door, tmp_path)
    assert main(["topic", "list", "--bootstrap", door.bootstrap, "--command-config", str(file)]) == Exit.OK
    assert TOPIC in capsys.readouterr().out


@pytest.mark.java
def test_java_client_writes_and_reads_over_tls_with_every_authentication_method(
    doors: dict[str, Door], kafka_jars: None, tmp_path: Path
) -> None:
    files = []
    for name, door in doors.items():
        files.append(write_properties(tmp_path / name, door, tmp_path))
        with files[-1].open("a") as file:
            file.write(f"bootstrap.servers={door.bootstrap}\n")
            if name == "OAUTHBEARER":
                file.write(f"sasl.login.callback.handler.class={TOKEN_HANDLER}\n")
    command = kafka.tool_command(str(Path(__file__).with_name("SecuredClient.java")), TOPIC, *map(str, files))
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={(tmp_path / 'access-token').as_uri()}"
    env = {**os.environ, "JAVA_TOOL_OPTIONS": allowed}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=env)
    assert done.stdout.splitlines() == [f"ok {file}" for file in files], done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_franz_go_writes_and_reads_over_tls_with_every_authentication_method(
    doors: dict[str, Door], name: str, franz: FranzBuilder
) -> None:
    done = subprocess.run(
        [franz("./login"), TOPIC, secrets.token_hex(8)],
        input=json.dumps(asdict(doors[name])),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
