"""Tests security properties of clients, under Java's and librdkafka's names."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from penstock.client.client_security import ClientSecurityError, credentials_of
from penstock.client.login import Login, TokenLogin
from penstock.client.token_sources import ENDPOINT, ClientCredentials, TokenFile

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="s3cret";'
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
TOKEN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}


def test_client_with_security_protocol_plaintext_has_no_credentials() -> None:
    assert credentials_of({}).login is None
    assert credentials_of({"security.protocol": "plaintext", "client.id": "x"}).tls is None


@pytest.mark.parametrize(
    "properties",
    [
        {"sasl.jaas.config": JAAS},
        {"sasl.username": "ann", "sasl.password": "s3cret"},
    ],
)
def test_login_properties_are_accepted_under_java_and_librdkafka_names(properties: dict[str, str]) -> None:
    login = credentials_of({**SASL, **properties}).login
    assert isinstance(login, Login)
    assert (login.mechanism, login.username, login.password) == ("SCRAM-SHA-256", "ann", "s3cret")
    assert "s3cret" not in repr(login)


def test_tls_trusts_the_certificates_of_the_system_by_default_and_checks_the_host_name() -> None:
    context = credentials_of({"security.protocol": "SSL"}).tls
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


@pytest.mark.parametrize("value", ["", "none"])
def test_host_name_check_is_off_if_the_identification_algorithm_is_empty_or_none(value: str) -> None:
    context = credentials_of({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": value}).tls
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_REQUIRED)


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"security.protocol": "TLS"}, "security.protocol is TLS"),
        ({"security.protocl": "SSL"}, "security.protocl is not a known property: did you mean security.protocol"),
        ({"secuirty.protocol": "SSL"}, "secuirty.protocol is not a known property: did you mean security.protocol"),
        ({"security.manager": "X"}, "security.manager is not supported"),
        ({**SASL, "sasl.mechanisms": "PLAIN"}, "name different mechanisms"),
        ({**SASL, "sasl.jaas.config": "x required;", "sasl.username": "ann"}, "both name a user"),
        ({"sasl.username": "ann"}, "sasl.username has no effect with security.protocol=PLAINTEXT"),
        ({"ssl.ca.location": "x"}, "ssl.ca.location has no effect"),
        ({"security.protocol": "SSL", "sasl.password": "x"}, "sasl.password has no effect"),
        ({"security.protocol": "SSL", "ssl.engine.factory.class": "X"}, "ssl.engine.factory.class is not supported"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere"}, "can't be read"),
        ({"security.protocol": "SSL", "ssl.key.pem": "x"}, "belong together"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is not set"),
        ({**SASL}, "SASL needs a user"),
        ({**SASL, "sasl.jaas.config": "nonsense"}, "can't be parsed"),
        ({**SASL, "sasl.mechanism": "GSSAPI", "sasl.username": "a", "sasl.password": "b"}, "'GSSAPI' is not supported"),
        ({**SASL, "sasl.oauthbearer.scope": "x"}, "sasl.oauthbearer.scope has no effect with sasl.mechanism=SCRAM"),
        ({**SASL, "sasl.oauthbearer.config": "x"}, "is not supported"),
        ({**TOKEN}, "OAUTHBEARER needs tokens"),
        ({**TOKEN, "sasl.username": "ann"}, "sasl.username has no effect"),
        ({**TOKEN, "sasl.oauthbearer.method": "default"}, "method is not supported"),
        ({**TOKEN, "sasl.login.callback.handler.class": "com.example.Mine"}, "names a class"),
        ({**TOKEN, ENDPOINT: "http://issuer.example/token"}, "is not protected: use https://"),
        ({**TOKEN, ENDPOINT: "ftp://issuer.example/token"}, "is not a file:// or https:// URL"),
        ({**TOKEN, ENDPOINT: "file://issuer.example/token"}, "names no file"),
        ({**TOKEN, ENDPOINT: "https://issuer.example/token"}, "OAUTHBEARER needs a client"),
        ({"security.protocol": "SSL", ENDPOINT: "file:///token"}, "has no effect with security.protocol=SSL"),
        (
            {
                **TOKEN,
                ENDPOINT: "https://issuer.example/token",
                "sasl.jaas.config": 'OAuthBearerLoginModule required ssl.truststore.location="/nowhere";',
            },
            r"^sasl\.jaas\.config can't be used .*: ssl\.truststore\.location: .*[^.]\.$",
        ),
    ],
)
def test_client_refuses_invalid_and_ineffective_security_properties_with_the_reason(
    properties: dict[str, str], reason: str
) -> None:
    with pytest.raises(ClientSecurityError, match=reason):
        credentials_of(properties)


def test_pem_files_in_librdkafka_properties_are_read(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ClientSecurityError, match="trust store has no certificate"):
        credentials_of({"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "ca.pem")})


@pytest.mark.parametrize(
    "properties",
    [
        {
            "sasl.oauthbearer.client.credentials.client.id": "job",
            "sasl.oauthbearer.client.credentials.client.secret": "s3cret",
            "sasl.oauthbearer.scope": "logs",
        },
        {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "job",
            "sasl.oauthbearer.client.secret": "s3cret",
            "sasl.oauthbearer.scope": "logs",
        },
        {
            "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
            "OAuthBearerLoginCallbackHandler",
            "sasl.jaas.config": 'x.OAuthBearerLoginModule required clientId="job" clientSecret="s3cret" scope="logs";',
        },
    ],
)
def test_oauth_client_id_and_secret_are_accepted_under_java_and_librdkafka_names(
    properties: dict[str, str],
) -> None:
    login = credentials_of({**TOKEN, ENDPOINT: "https://issuer.example/token", **properties}).login
    assert isinstance(login, TokenLogin)
    assert isinstance(login.source, ClientCredentials)
    assert (login.source.client_id, login.source.secret, login.source.scope) == ("job", "s3cret", "logs")
    assert "s3cret" not in repr(login) + repr(login.source)


def test_token_file_is_read_again_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "my token"
    file.write_text("first\n")
    login = credentials_of({**TOKEN, ENDPOINT: file.as_uri()}).login
    assert isinstance(login, TokenLogin)
    assert isinstance(login.source, TokenFile)
    assert login.source() == "first"
    file.write_text("second")
    assert login.source() == "second"
