"""Tests that unsupported security properties are refused, because a node would run without the protection they ask
for."""

import pytest

from penstock.metadata.configs.definition import ConfigError
from penstock.metadata.configs.dynamic import validate_dynamic_settings
from penstock.metadata.configs.judgement import Verdict, judge
from penstock.metadata.configs.protection import check_protection


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorizer.class.nam", "misspelt"),
        ("ssl.engine.factory.class", "com.example.Factory"),
        ("listener.name.plaintext.ssl.engine.factory.class", "com.example.Factory"),
        ("sasl.oauthbearer.assertion.file", "/etc/assertion"),
        ("listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class", "com.example.Handler"),
        ("sasl.oauthbearer.jwt.validator.class", "com.example.Validator"),
        ("sasl.server.callback.handler.class", "com.example.Handler"),
        ("principal.builder.class", "com.example.Builder"),
        ("create.topic.policy.class.name", "com.example.Policy"),
        ("alter.config.policy.class.name", "com.example.Policy"),
        ("client.quota.callback.class", "com.example.Quotas"),
    ],
)
def test_unsupported_security_property_is_refused_with_its_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} requires protection .*: remove the property"):
        check_protection({"node.id": "1", name: value})
    (judgement,) = judge({name: value})
    assert judgement.verdict is Verdict.REFUSED
    assert value not in judgement.reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("listener.name.ssl.ssl.client.auht", "no property of a listener has this name"),
        ("listener.name.ssl.sl.client.auth", "no property of a listener has this name"),
        ("listener.name.ssl.client.auth", "no property of a listener has this name"),
        ("listener.name.ssl.max.conections", "no property of a listener has this name"),
        ("listener.name.ssl.plain.ssl.client.auth", "no property of a listener has this name"),
        ("listener.name.SSL.ssl.client.auth", "in lower case"),
        ("listener.name.ssl.plane.sasl.jaas.config", "a mechanism after it"),
        ("listener.name.ssl.PLAIN.sasl.jaas.config", "a mechanism after it"),
        ("listener.name.ssl.authorizer.class.name", "applies to the whole node"),
        ("listener.name.ssl.super.users", "applies to the whole node"),
        ("listener.name.ssl.sasl.mechanism.inter.broker.protocol", "applies to the whole node"),
        ("listener.name.sssl.ssl.client.auth", "there is no listener SSSL"),
    ],
)
def test_listener_property_without_any_effect_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} has no effect.*{reason}"):
        check_protection({"listeners": "SSL://:9092", name: "required"})


def test_properties_may_configure_listeners_that_this_node_does_not_open() -> None:
    check_protection(
        {
            "listeners": "CLIENTS://:9092",
            "listener.security.protocol.map": "CLIENTS:SASL_SSL,INTERNAL:SSL",
            "controller.listener.names": "CONTROLLER",
            "listener.name.clients.scram-sha-256.sasl.jaas.config": "x",
            "listener.name.clients.oauthbearer.sasl.oauthbearer.expected.issuer": "x",
            "listener.name.clients.max.connections": "9",
            "listener.name.internal.ssl.client.auth": "required",
            "listener.name.controller.ssl.keystore.location": "/x",
            "listener.name.http.ssl.client.auth": "required",
        }
    )


def test_properties_from_kafkas_sample_file_are_accepted() -> None:
    check_protection(
        {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": "localhost:9093",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "inter.broker.listener.name": "PLAINTEXT",
            "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,"
            "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
            "num.network.threads": "3",
            "socket.send.buffer.bytes": "102400",
            "log.dirs": "/tmp/kraft-combined-logs",
            "group.coordinator.rebalance.protocols": "classic,consumer",
        }
    )


def test_security_properties_with_default_values_are_accepted() -> None:
    check_protection(
        {
            "security.inter.broker.protocol": "PLAINTEXT",
            "ssl.client.auth": "none",
            "authorizer.class.name": "",
            "sasl.enabled.mechanisms": "GSSAPI",
            "connections.max.reauth.ms": "0",
        }
    )


STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def test_kafkas_own_authorizer_class_and_its_properties_are_honoured() -> None:
    static = {
        "authorizer.class.name": STANDARD,
        "super.users": "User:a;User:b",
        "allow.everyone.if.no.acl.found": "true",
    }
    check_protection(static)
    assert {judgement.verdict for judgement in judge(static)} == {Verdict.HONOURED}


@pytest.mark.parametrize(
    ("static", "reason"),
    [
        ({"authorizer.class.name": "com.example.Authorizer"}, "names a class that Penstock does not have"),
        ({"super.users": "User:a"}, "super.users has no effect without an authorizer"),
        ({"allow.everyone.if.no.acl.found": "false"}, "has no effect without an authorizer"),
        ({"authorizer.class.name": STANDARD, "super.users": "User:a;bob"}, "'bob': write each user as User:name"),
    ],
)
def test_authorizer_properties_that_would_leave_the_node_unprotected_are_refused(
    static: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_protection(static)


@pytest.mark.parametrize(
    "name",
    [
        "listener.name.sasl_ssl.sasl.enabled.mechanisms",
        "listener.name.sasl_ssl.plain.sasl.jaas.config",
        "listener.name.sasl_ssl.ssl.principal.mapping.rules",
        "listener.name.sasl_ssl.plain.connections.max.reauth.ms",
        "listener.name.sasl_ssl.principal.builder.class",
        "sasl.enabled.mechanisms",
        "sasl.jaas.config",
        "sasl.mechanism.inter.broker.protocol",
        "ssl.protocol",
        "principal.builder.class",
    ],
)
@pytest.mark.parametrize("per_broker", [True, False])
def test_running_broker_refuses_changes_of_the_login_settings_of_a_listener(name: str, per_broker: bool) -> None:
    with pytest.raises(ConfigError, match="A running broker can't change"):
        validate_dynamic_settings({name: "60000"}, per_broker=per_broker)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ssl.client.auth", "required"), ("ssl.enabled.protocols", "TLSv1.3"), ("ssl.cipher.suites", "AES")],
)
def test_running_broker_accepts_a_tls_change_only_with_the_prefix_of_a_listener(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match="put the listener's prefix before"):
        validate_dynamic_settings({name: value}, per_broker=True)
    validate_dynamic_settings({f"listener.name.ssl.{name}": value}, per_broker=True)
