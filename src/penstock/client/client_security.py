"""Reads a client's security properties, under the names of Kafka's Java clients and of librdkafka.

    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-512
    sasl.jaas.config=… required username="ann" password="…";      (Java)
    sasl.username=ann, sasl.password=…                            (librdkafka)
    sasl.oauthbearer.token.endpoint.url=…                         (access tokens, with OAUTHBEARER)
    ssl.truststore.location, ssl.ca.location, …

An unknown property is refused, and so are two properties that contradict each other. If the client ignored such a
property, the connection could be less secure than the user thinks.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from penstock.client.credentials import NO_CREDENTIALS, Credentials
from penstock.client.login import LOGIN_MECHANISMS, AnyLogin, Login
from penstock.client.token_sources import TOKEN_PROPERTIES, token_login
from penstock.net.tls import TlsError, client_context, read_file, read_material
from penstock.security.jaas import parse_jaas
from penstock.security.oauthbearer import OAUTHBEARER

PROTOCOL = "security.protocol"
#: Beginnings of the names of all security properties.
SECURITY_PREFIXES = ("security.", "ssl.", "sasl.")
#: Similarity, from 0 to 1, from which on a name counts as a misspelt `security.protocol`.
_SLIP = 0.8
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
#: librdkafka's names, and the property of Kafka that means the same.
_FILES = {"ssl.ca.location": "ssl.truststore.certificates"}
_TEXTS = {"ssl.ca.pem": "ssl.truststore.certificates"}
_KEY = ("ssl.key.location", "ssl.key.pem")
_CERTIFICATE = ("ssl.certificate.location", "ssl.certificate.pem")
_TLS = frozenset(
    {
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.keystore.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.key.password",
        "ssl.enabled.protocols",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        *_FILES,
        *_TEXTS,
        *_KEY,
        *_CERTIFICATE,
    }
)
_SASL = frozenset({"sasl.mechanism", "sasl.mechanisms", "sasl.jaas.config", "sasl.username", "sasl.password"})
#: Properties of Java's TLS without a counterpart here, which change nothing about the protection.
_HARMLESS = frozenset(
    {
        "security.providers",
        "ssl.protocol",
        "ssl.provider",
        "ssl.keymanager.algorithm",
        "ssl.trustmanager.algorithm",
        "ssl.secure.random.implementation",
    }
)
SECURITY_PROPERTIES = frozenset({PROTOCOL}) | _TLS | _SASL | TOKEN_PROPERTIES


class ClientSecurityError(ValueError):
    """Raised for security properties that can't be used. The message is one sentence without secrets."""


def credentials_of(properties: Mapping[str, str]) -> Credentials:
    """Returns the TLS context and the login that the properties define. Raises ClientSecurityError."""
    for name in properties:
        if name in SECURITY_PROPERTIES | _HARMLESS:
            continue
        if get_close_matches(name, [PROTOCOL], n=1, cutoff=_SLIP):  # without it, a client would send clear text
            raise ClientSecurityError(f"{name} is not a known property: did you mean {PROTOCOL}?")
        if name.startswith(SECURITY_PREFIXES):
            raise ClientSecurityError(f"{name} is not supported: remove it, or use a supported property.")
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in PROTOCOLS:
        raise ClientSecurityError(
            f"security.protocol is {protocol}, which is not supported: use {', '.join(PROTOCOLS)}."
        )
    # A mechanism alone protects nothing, and existing Spark jobs name one without SASL.
    logins = (_SASL | TOKEN_PROPERTIES) - {"sasl.mechanism", "sasl.mechanisms"}
    asked = sorted(name for name in properties if name in logins)
    if asked and not protocol.startswith("SASL"):
        raise ClientSecurityError(f"{asked[0]} has no effect with security.protocol={protocol}: use SASL_SSL.")
    asked = sorted(name for name in properties if name in _TLS)
    if asked and not protocol.endswith("SSL"):
        raise ClientSecurityError(f"{asked[0]} has no effect with security.protocol={protocol}: use SSL or SASL_SSL.")
    if protocol == "PLAINTEXT":
        return NO_CREDENTIALS
    try:
        tls = None
        if protocol.endswith("SSL"):
            named = _kafka_names(properties)
            tls = client_context(named, read_material(named, read_file))
        return Credentials(tls, _login(properties) if protocol.startswith("SASL") else None)
    except TlsError as problem:
        raise ClientSecurityError(str(problem)) from None


def _kafka_names(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the TLS properties under Kafka's names. Reads the files whose paths are in librdkafka's properties."""
    found = {name: value.strip() for name, value in properties.items() if name.startswith("ssl.")}
    for name, meaning in _TEXTS.items():
        if name in found:
            found[meaning] = found.pop(name)
    for name, meaning in _FILES.items():
        if name in found:
            found[meaning] = _text(name, found.pop(name))
    key = _either(found, *_KEY)
    certificate = _either(found, *_CERTIFICATE)
    if key is not None or certificate is not None:
        if key is None or certificate is None:
            raise ClientSecurityError("ssl.key.location and ssl.certificate.location belong together: set both.")
        found["ssl.keystore.key"], found["ssl.keystore.certificate.chain"] = key, certificate
    if found.get("ssl.endpoint.identification.algorithm", "").lower() == "none":
        found["ssl.endpoint.identification.algorithm"] = ""
    return found


def _either(found: dict[str, str], location: str, text: str) -> str | None:
    path, content = found.pop(location, None), found.pop(text, None)
    return content if path is None else _text(location, path)


def _text(name: str, path: str) -> str:
    try:
        return read_file(path).decode()
    except OSError as problem:
        raise ClientSecurityError(f"{name}: {path} can't be read ({problem.strerror or problem}).") from None
    except UnicodeDecodeError:
        raise ClientSecurityError(f"{name}: {path} is not a PEM file.") from None


def _login(properties: Mapping[str, str]) -> AnyLogin:
    mechanism = (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "").strip()
    if not mechanism:
        raise ClientSecurityError(f"sasl.mechanism is not set: name {', '.join(LOGIN_MECHANISMS)} or {OAUTHBEARER}.")
    if (properties.get("sasl.mechanisms") or mechanism).strip() != mechanism:
        raise ClientSecurityError("sasl.mechanism and sasl.mechanisms name different mechanisms: remove one of them.")
    line = properties.get("sasl.jaas.config")
    if line and ("sasl.username" in properties or "sasl.password" in properties):
        raise ClientSecurityError("sasl.jaas.config and sasl.username both name a user: remove one of them.")
    try:
        options = parse_jaas(line).options if line else None
    except ValueError as problem:
        raise ClientSecurityError(f"sasl.jaas.config can't be parsed: {problem}.") from None
    if mechanism == OAUTHBEARER:
        return _token_login(properties, options or {})
    asked = sorted(name for name in properties if name in TOKEN_PROPERTIES)
    if asked:
        raise ClientSecurityError(f"{asked[0]} has no effect with sasl.mechanism={mechanism}: use {OAUTHBEARER}.")
    user, password = properties.get("sasl.username"), properties.get("sasl.password")
    if options is not None:
        user, password = options.get("username"), options.get("password")
    if not user or password is None:
        raise ClientSecurityError("SASL needs a user: set sasl.username and sasl.password, or sasl.jaas.config.")
    try:
        return Login(mechanism, user, password, token=(options or {}).get("tokenauth", "").lower() == "true")
    except ValueError as problem:
        raise ClientSecurityError(str(problem)) from None


def _token_login(properties: Mapping[str, str], options: Mapping[str, str]) -> AnyLogin:
    for name in ("sasl.username", "sasl.password"):
        if name in properties:
            raise ClientSecurityError(f"{name} has no effect with sasl.mechanism={OAUTHBEARER}: remove it.")
    try:
        return token_login(properties, options)
    except ValueError as problem:
        raise ClientSecurityError(str(problem)) from None
