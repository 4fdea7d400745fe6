"""Tests stock clients that log in with access tokens (OAUTHBEARER), and ACLs for the subjects of their tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from penstock.testing import Broker, Cluster
from penstock.testing.tokens import TokenIssuer
from tools import kafka

AUDIENCE, ISSUER = "logs", "https://issuer.example"
PLAIN_USERS = 'x.PlainLoginModule required username="node" password="n" user_node="n";'
LOGIN_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"


@pytest.fixture(scope="module")
def issuer() -> TokenIssuer:
    return TokenIssuer()


@pytest.fixture(scope="module")
def secured(issuer: TokenIssuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER,PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN_USERS,
        "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": LOGIN_MODULE,
        "sasl.oauthbearer.jwks.endpoint.url": issuer.write_keys(tmp_path_factory.mktemp("issuer") / "keys.json"),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:node",
        "connection.failed.authentication.delay.ms": "0",
    }
    with Broker(config=config) as broker:
        admin = AdminClient(librdkafka(broker, token_of(issuer, "admin")))
        for created in admin.create_topics([NewTopic(name, 1, 1) for name in ("orders", "trip", "secrets")]).values():
            created.result(30)
        acls = [
            AclBinding(
                kind, name, ResourcePatternType.LITERAL, "User:ann", "*", AclOperation.ALL, AclPermissionType.ALLOW
            )
            for kind, name in ((ResourceType.TOPIC, "orders"), (ResourceType.TOPIC, "trip"), (ResourceType.GROUP, "*"))
        ]
        for future in admin.create_acls(acls).values():
            future.result(30)
        yield broker


def token_of(issuer: TokenIssuer, subject: str, **claims: Any) -> str:
    return issuer.token(subject, **{"aud": AUDIENCE, "iss": ISSUER, **claims})


def librdkafka(broker: Broker, token: str, lifetime_s: float = 3600, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token, time.time() + lifetime_s),
        **more,
    }


def test_librdkafka_produces_and_consumes_with_a_token(secured: Broker, issuer: TokenIssuer) -> None:
    settings = librdkafka(secured, token_of(issuer, "ann"))
    problems: list[Any] = []
    producer = Producer(settings)
    producer.produce("trip", b"value", on_delivery=lambda error, _: problems.append(error))
    assert producer.flush(30) == 0
    assert problems == [None]
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["trip"])
    message = consumer.poll(30)
    assert message is not None
    assert (message.error(), message.value()) == (None, b"value")
    consumer.close()


def test_acls_apply_to_the_subject_of_an_access_token(secured: Broker, issuer: TokenIssuer) -> None:
    def visible(subject: str) -> set[str]:
        return set(AdminClient(librdkafka(secured, token_of(issuer, subject))).list_topics(timeout=30).topics)

    assert visible("ann") == {"orders", "trip"}
    assert visible("bob") == set()
    assert {"orders", "secrets"} <= visible("admin")
    problems: list[Any] = []
    producer = Producer(librdkafka(secured, token_of(issuer, "ann")))
    producer.produce("secrets", b"value", on_delivery=lambda error, _: problems.append(error))
    assert producer.flush(30) == 0
    assert [error.name() for error in problems] == ["TOPIC_AUTHORIZATION_FAILED"]


@pytest.mark.parametrize("claims", [{"aud": "other"}, {"iss": "https://evil.example"}, {"exp": 1_600_000_000}])
def test_librdkafka_with_a_wrong_token_is_refused(secured: Broker, issuer: TokenIssuer, claims: dict[str, Any]) -> None:
    errors: list[str] = []
    token = token_of(issuer, "ann", **claims)
    producer = Producer(librdkafka(secured, token, error_cb=lambda error: errors.append(str(error))))
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=1)
    producer.poll(1)
    assert any("_AUTHENTICATION" in error for error in errors), errors


@pytest.mark.slow
def test_librdkafka_authenticates_again_before_its_token_expires(secured: Broker, issuer: TokenIssuer) -> None:
    asked: list[str] = []

    def renew(_: str) -> tuple[str, float]:
        asked.append(token_of(issuer, "ann", exp=int(time.time()) + 4))
        return asked[-1], time.time() + 4

    errors: list[Any] = []
    producer = Producer({**librdkafka(secured, ""), "oauth_cb": renew, "error_cb": errors.append})
    ends = time.monotonic() + 60
    delivered: list[Any] = []
    while len(asked) < 4 and time.monotonic() < ends:
        producer.produce("orders", b"x", on_delivery=lambda error, _: delivered.append(error))
        producer.poll(0.1)
    assert producer.flush(30) == 0
    assert len(asked) >= 4
    assert set(delivered) == {None}
    assert [error for error in errors if error.name() == "_AUTHENTICATION"] == []


def test_kafka_python_and_aiokafka_authenticate_with_a_token(secured: Broker, issuer: TokenIssuer) -> None:
    import asyncio

    from aiokafka import AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
    from kafka import KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token_of(issuer, "ann")

    class AioTokens(AioTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return token_of(issuer, "ann")

    common = {
        "bootstrap_servers": secured.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
    }
    with KafkaProducer(**common, sasl_oauth_token_provider=Tokens()) as producer:
        assert producer.send("orders", b"kafka-python").get(30).topic == "orders"

    async def produce() -> None:
        async with AIOKafkaProducer(**common, sasl_oauth_token_provider=AioTokens()) as producer:
            assert (await producer.send_and_wait("orders", b"aiokafka")).topic == "orders"

    asyncio.run(produce())


def test_command_line_logs_in_with_a_token_from_a_file(secured: Broker, issuer: TokenIssuer, tmp_path: Path) -> None:
    token, config = tmp_path / "token", tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}\n"
    )

    def topics() -> subprocess.CompletedProcess[str]:
        words = ("topic", "list", "-b", secured.bootstrap, "--command-config", str(config), "--json")
        command = [sys.executable, "-m", "penstock.cli.main", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    token.write_text(token_of(issuer, "ann") + "\n")
    listed = topics()
    assert (listed.returncode, listed.stderr) == (0, "")
    assert {row["topic"] for row in json.loads(listed.stdout)} == {"orders", "trip"}
    token.write_text(token_of(issuer, "ann", aud="other"))
    refused = topics()
    assert refused.returncode != 0
    assert "invalid_token" in refused.stderr
    assert token.read_text() not in refused.stderr
    token.unlink()
    assert "There is no access token" in topics().stderr


def test_cluster_whose_nodes_log_in_with_tokens_replicates_and_survives_a_killed_node(
    issuer: TokenIssuer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(issuer.token("node"))
    config = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": issuer.write_keys(tmp_path / "keys.json"),
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:node;User:admin",
    }
    with Cluster(nodes=3, config=config) as cluster:
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (issuer.token("admin"), time.time() + 3600),
        }
        admin = AdminClient(settings)  # kept: without it the answer would be lost
        for future in admin.create_topics([NewTopic("orders", 3, 3)]).values():
            future.result(30)
        producer = Producer({**settings, "acks": "all"})
        delivered: list[Any] = []
        for number in range(100):
            if number == 50:
                cluster.kill(2)
            producer.produce("orders", str(number), on_delivery=lambda error, _: delivered.append(error))
            producer.poll(0)
        assert producer.flush(60) == 0
        assert delivered == [None] * 100


@pytest.mark.java
def test_kafkas_tools_log_in_with_a_token_from_a_file(
    secured: Broker, issuer: TokenIssuer, tmp_path: Path, kafka_jars: None
) -> None:
    token, config = tmp_path / "token", tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.jaas.config={LOGIN_MODULE}\n"
        "sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginCallbackHandler\n"
        f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}\n"
    )
    words = ("--list", "--bootstrap-server", secured.bootstrap, "--command-config", str(config))
    command = kafka.tool_command("org.apache.kafka.tools.TopicCommand", *words)
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={token.as_uri()}"

    def topics() -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "JAVA_TOOL_OPTIONS": allowed}
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)

    token.write_text(token_of(issuer, "ann"))
    listed = topics()
    assert set(listed.stdout.split()) == {"orders", "trip"}, listed.stdout + listed.stderr
    token.write_text(token_of(issuer, "ann", aud="other"))
    refused = topics()
    assert "invalid_token" in refused.stdout + refused.stderr
