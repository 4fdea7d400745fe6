"""Tests listeners with TLS and SASL: wrong passwords, missing certificates, the command line, a cluster of three nodes.

The other stock clients, with every mechanism, are in test_secured_clients.py.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaException, Producer
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

from penstock.client.connection import BrokerConnection, ConnectionSettings
from penstock.client.login import Login
from penstock.net.network import RealNetwork
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.testing import Broker, Cluster
from tools.certificates import Authority

PLAIN_USERS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="admin-secret" user_admin="admin-secret" user_ann="ann-secret";'
)
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class Certificates(NamedTuple):
    """Holds the paths of PEM files: a certificate authority, and the keys with certificates of a server and of a
    client."""

    ca: Path
    server: str
    client: str


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Authority(tmp_path_factory.mktemp("tls"), "ca")
    client = made.store("client.pem", {"O": "Org", "OU": "Team", "CN": "ann"})
    return Certificates(made.file, made.store("server.pem", "localhost"), client)


@pytest.fixture(scope="module")
def secured(authority: Certificates) -> Iterator[Broker]:
    config = {
        "listeners": "SASL_SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL",
        "inter.broker.listener.name": "SASL_SSL",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": PLAIN_USERS,
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN_USERS,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": authority.server,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/L, DEFAULT",
        "authorizer.class.name": STANDARD,
        "super.users": "User:admin",
        "connection.failed.authentication.delay.ms": "0",
    }
    with Broker(config=config) as broker:
        admin = AdminClient(librdkafka(broker, authority, "PLAIN", "admin", "admin-secret"))
        for future in admin.create_topics([NewTopic("orders", 1, 1)]).values():
            future.result(30)
        upserts = [
            UserScramCredentialUpsertion("ann", ScramCredentialInfo(mechanism, 4096), b"ann-secret")
            for mechanism in (ScramMechanism.SCRAM_SHA_256,)
        ]
        upserts.append(
            UserScramCredentialUpsertion("zoe", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192), b"ann-secret")
        )
        for future in admin.alter_user_scram_credentials(upserts).values():
            future.result(30)
        acls = [
            AclBinding(
                kind, "*", ResourcePatternType.LITERAL, f"User:{user}", "*", AclOperation.ALL, AclPermissionType.ALLOW
            )
            for kind in (ResourceType.TOPIC, ResourceType.GROUP)
            for user in ("ann", "zoe")
        ]
        for future in admin.create_acls(acls).values():
            future.result(30)
        yield broker


def librdkafka(
    broker: Broker, authority: Certificates, mechanism: str, user: str, password: str, **more: Any
) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_of("SASL_SSL"),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.ca),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        **more,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["ann", "nobody"])
def test_librdkafka_with_a_wrong_password_is_refused(
    secured: Broker, authority: Certificates, mechanism: str, user: str
) -> None:
    errors: list[str] = []
    settings = librdkafka(
        secured, authority, mechanism, user, "wrong", error_cb=lambda error: errors.append(str(error))
    )
    producer = Producer(settings)
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=1)
    producer.poll(1)
    assert any("_AUTHENTICATION" in error for error in errors), errors


def own(secured: Broker, authority: Certificates, login: Login | None, listener: str = "SASL_SSL") -> Any:
    async def connect() -> Any:
        context = ssl.create_default_context(cafile=str(authority.ca)) if "SSL" in listener else None
        host, _, port = secured.bootstrap_of(listener).rpartition(":")
        connection = await BrokerConnection.open(
            RealNetwork(), host, int(port), ConnectionSettings(tls=context, login=login, request_timeout_s=10)
        )
        from penstock.protocol.messages.api_03_metadata import MetadataRequest

        try:
            return await connection.request(MetadataRequest(topics=None))
        finally:
            connection.close()
            await connection.wait_closed()

    return asyncio.run(connect())


@pytest.mark.parametrize("listener", ["SASL_SSL", "SASL_PLAINTEXT"])
@pytest.mark.parametrize(("mechanism", "user"), [("PLAIN", "ann"), ("SCRAM-SHA-256", "ann"), ("SCRAM-SHA-512", "zoe")])
def test_penstocks_client_authenticates_with_plain_and_scram(
    secured: Broker, authority: Certificates, listener: str, mechanism: str, user: str
) -> None:
    answer = own(secured, authority, Login(mechanism, user, "ann-secret"), listener)
    assert "orders" in [topic.name for topic in answer.topics]


def test_penstocks_client_reports_a_refused_login_without_the_password(
    secured: Broker, authority: Certificates
) -> None:
    with pytest.raises(KafkaError) as refused:
        own(secured, authority, Login("SCRAM-SHA-256", "ann", "hunter2"))
    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "hunter2" not in str(refused.value)


def test_command_line_logs_in_with_a_file_of_client_properties(
    secured: Broker, authority: Certificates, tmp_path: Path
) -> None:
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
        'sasl.jaas.config=x.ScramLoginModule required username="ann" password="ann-secret";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={authority.ca}\n"
    )

    def penstock(*more: str) -> subprocess.CompletedProcess[str]:
        words = ("topic", "list", "-b", secured.bootstrap_of("SASL_SSL"), *more)
        command = [sys.executable, "-m", "penstock.cli.main", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    listed = penstock("--command-config", str(config))
    assert (listed.returncode, "orders" in listed.stdout) == (0, True), listed.stderr
    config.write_text(config.read_text().replace("ann-secret", "hunter2"))
    refused = penstock("--command-config", str(config))
    assert refused.returncode != 0
    assert "Invalid credentials" in refused.stderr
    assert "hunter2" not in refused.stderr
    assert penstock("--timeout", "5").returncode != 0


def test_command_line_manages_users_and_acls(secured: Broker, authority: Certificates, tmp_path: Path) -> None:
    config = tmp_path / "admin.properties"
    config.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=admin\nsasl.password=admin-secret\n"
        f"ssl.ca.location={authority.ca}\n"
    )

    def penstock(*words: str, stdin: str | None = None, code: int = 0) -> Any:
        where = ("-b", secured.bootstrap_of("SASL_SSL"), "--command-config", str(config), "--json")
        command = [sys.executable, "-m", "penstock.cli.main", *words, *where]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if done.stdout else None

    penstock("user", "set", "max", "--password-file", "-", stdin="max-secret\n")
    users = {(row["user"], row["mechanism"]) for row in penstock("user", "list")}
    assert {("max", "SCRAM-SHA-256"), ("max", "SCRAM-SHA-512")} <= users
    assert own(secured, authority, Login("SCRAM-SHA-512", "max", "max-secret")).topics == []
    penstock("acl", "allow", "--topic", "ord", "--prefixed", "--principal", "User:max", "--operation", "read")
    (row,) = penstock("acl", "list", "--principal", "User:max")
    assert (row["resource"], row["name"], row["pattern"], row["operation"]) == ("topic", "ord", "prefixed", "read")
    names = [topic.name for topic in own(secured, authority, Login("SCRAM-SHA-512", "max", "max-secret")).topics]
    assert names == ["orders"]
    penstock("acl", "remove", "--topic", "ord", "--prefixed", "--principal", "User:max")
    penstock("acl", "remove", "--topic", "ord", "--prefixed", "--principal", "User:max", code=4)
    penstock("user", "remove", "max")
    penstock("user", "remove", "max", code=4)


@pytest.mark.parametrize("listener", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_request_before_authentication_closes_the_connection(
    secured: Broker, authority: Certificates, listener: str
) -> None:
    with pytest.raises(KafkaError) as closed:
        own(secured, authority, None, listener)
    assert closed.value.code is ErrorCode.NETWORK_EXCEPTION


def test_listener_that_requires_a_certificate_refuses_a_client_without_a_certificate(
    secured: Broker, authority: Certificates
) -> None:
    with pytest.raises(KafkaError) as closed:
        own(secured, authority, None, "SSL")
    assert closed.value.code is ErrorCode.NETWORK_EXCEPTION


def test_cluster_replicates_over_sasl_ssl_and_survives_a_killed_node(authority: Certificates) -> None:
    config = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": PLAIN_USERS,
        "listener.name.controller.plain.sasl.jaas.config": PLAIN_USERS,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": authority.server,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
        "authorizer.class.name": STANDARD,
        "super.users": "User:admin",
    }
    with Cluster(nodes=3, config=config) as cluster:
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(authority.ca),
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": "admin-secret",
            "acks": "all",
        }
        admin = AdminClient({name: value for name, value in settings.items() if name != "acks"})
        for future in admin.create_topics([NewTopic("orders", 3, 3)]).values():
            future.result(30)
        producer = Producer(settings)
        delivered: list[Any] = []
        for number in range(200):
            if number == 100:
                cluster.kill(2)
            producer.produce("orders", str(number), on_delivery=lambda error, _: delivered.append(error))
            producer.poll(0)
        assert producer.flush(60) == 0
        assert delivered == [None] * 200
