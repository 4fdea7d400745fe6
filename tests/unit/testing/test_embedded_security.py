"""Tests the embedded broker with a listener that needs TLS and a login."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client.client_security import ClientSecurityError
from penstock.node.local_security import jaas_line, local_security
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.testing import Broker

USERS = 'x required username="node" password="a" user_node="a" user_ann="b";'


def secured(directory: Path, password: str = "b") -> tuple[dict[str, str], dict[str, str]]:
    """Returns the properties of a broker with the user ann, and of a client that logs in as ann."""
    files = local_security(str(directory / "security"), "127.0.0.1")
    tls = {"ssl.truststore.type": "PEM", "ssl.truststore.location": files.ca}
    server = {
        **tls,
        "listeners": "SASL_SSL://127.0.0.1:0",
        "inter.broker.listener.name": "SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": files.key_store,
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "connection.failed.authentication.delay.ms": "0",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": USERS,
    }
    client = {**tls, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    return server, client | {"sasl.jaas.config": jaas_line("ann", password)}


def test_embedded_broker_connects_to_its_secured_listener_with_the_given_client_properties(tmp_path: Path) -> None:
    server, client = secured(tmp_path)
    with Broker(topics={"t": 1}, config=server, client=client) as broker:
        with broker.client() as connected, connected.producer() as producer:
            producer.send_many("t", [(None, b"a", (), None)])
        broker.create_topic("u")
        assert [record.value for record in broker.records("t")] == [b"a"]


def test_embedded_broker_reports_a_wrong_password_in_its_client_properties(tmp_path: Path) -> None:
    server, client = secured(tmp_path, password="wrong")
    with Broker(config=server, client=client) as broker:
        with pytest.raises(KafkaError) as refused:
            broker.create_topic("t")
        assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_embedded_broker_refuses_client_properties_that_would_have_no_effect(tmp_path: Path) -> None:
    server, client = secured(tmp_path)
    misspelt = {**client, "ssl.key.pasword": "x"}
    with (
        Broker(config=server, client=misspelt) as broker,
        pytest.raises(ClientSecurityError, match=r"ssl\.key\.pasword"),
    ):
        broker.client()
