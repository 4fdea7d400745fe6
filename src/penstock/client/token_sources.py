"""Gets access tokens for OAUTHBEARER: from a file, or from an issuer with a client's id and secret (RFC 6749, 4.4).

A source is a function without arguments that returns a token; a user can write a source, too. A source may block,
because the client calls it in a thread, once for each connection.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote_plus, urlencode

from penstock.client.login import TokenLogin
from penstock.net.tls import TlsError, client_context, read_file, read_material
from penstock.net.web import Document, FetchError

MAX_ANSWER_BYTES = 1 << 17
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
#: Names of the client's id and secret: Kafka's properties, librdkafka's, and options of a JAAS line.
_ID = ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id", "clientId")
_SECRET = ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret", "clientSecret")
_SCOPE = ("sasl.oauthbearer.scope", "scope")
#: Share of a token's lifetime during which new connections use it.
FRESH_SHARE = 0.8
LOGIN_HANDLERS = frozenset(
    f"org.apache.kafka.common.security.oauthbearer.{package}OAuthBearerLoginCallbackHandler"
    for package in ("", "secured.")
)
TOKEN_PROPERTIES = frozenset(
    {ENDPOINT, *_ID[:2], *_SECRET[:2], _SCOPE[0], "sasl.oauthbearer.method", "sasl.login.callback.handler.class"}
)


@dataclass(slots=True)
class ClientCredentials:
    """Gets tokens from an issuer. Requests a new token when most of the current token's lifetime is over.

    If the issuer fails, uses the current token until it expires.
    """

    endpoint: Document
    client_id: str
    secret: str = field(repr=False)
    scope: str | None = None
    _token: str = field(default="", repr=False)
    _fresh_until: float = 0.0
    _valid_until: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __call__(self) -> str:
        """Returns a token. Raises FetchError."""
        with self._lock:
            now = time.monotonic()
            if now < self._fresh_until:
                return self._token
            try:
                self._token, lifetime_s = self._ask()
            except FetchError:
                if now >= self._valid_until:
                    raise
                return self._token
            self._fresh_until, self._valid_until = now + lifetime_s * FRESH_SHARE, now + lifetime_s
            return self._token

    def _ask(self) -> tuple[str, float]:
        pair = f"{quote_plus(self.client_id)}:{quote_plus(self.secret)}".encode()
        headers = {
            "Authorization": f"Basic {base64.b64encode(pair).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        content = self.endpoint.read(urlencode(form).encode(), headers)
        try:
            answer = json.loads(content)
            token, lifetime_s = answer["access_token"], float(answer.get("expires_in", 0))
        except (ValueError, TypeError, KeyError, RecursionError, AttributeError):
            raise FetchError(f"{self.endpoint.url} sent a response without an access token.") from None
        if not isinstance(token, str):
            raise FetchError(f"{self.endpoint.url} sent an access token that is not a string.")
        return token, lifetime_s


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Reads a token from a file. Reads the file for each connection, because another program may replace the token."""

    file: Document

    def __call__(self) -> str:
        """Returns the token. Raises FetchError."""
        try:
            return self.file.read().decode("ascii").strip()
        except UnicodeDecodeError:
            raise FetchError(f"{self.file.url} contains no access token: the content is not ASCII.") from None


def token_login(properties: Mapping[str, str], options: Mapping[str, str]) -> TokenLogin:
    """Returns the login that the properties and the options of a JAAS line define.

    Raises ValueError; the message is one sentence without secrets.
    """
    handler = properties.get("sasl.login.callback.handler.class", "").strip()
    if handler and handler not in LOGIN_HANDLERS:
        raise ValueError("sasl.login.callback.handler.class names a class that is not supported: remove it.")
    if properties.get("sasl.oauthbearer.method", "oidc").strip().lower() != "oidc":
        raise ValueError("sasl.oauthbearer.method is not supported: use oidc, or remove it.")
    given = {name: value.strip() for name, value in {**options, **properties}.items() if value.strip()}
    url = given.get(ENDPOINT)
    if url is None:
        raise ValueError(f"OAUTHBEARER needs tokens: set {ENDPOINT} to a file:// or https:// URL.")
    try:
        tls = endpoint_tls(options)
    except ValueError as problem:
        raise ValueError(f"sasl.jaas.config can't be used for the connection to {ENDPOINT}: {problem}") from None
    try:
        endpoint = Document(url, MAX_ANSWER_BYTES, tls=tls)
    except ValueError as problem:
        raise ValueError(f"{ENDPOINT} can't be used: {problem}.") from None
    client_id, secret, scope = (_first(given, names) for names in (_ID, _SECRET, _SCOPE))
    if endpoint.in_file:
        return TokenLogin(TokenFile(endpoint))
    if client_id is None or secret is None:
        raise ValueError(f"OAUTHBEARER needs a client id and a secret: set {_ID[0]} and {_SECRET[0]}.")
    return TokenLogin(ClientCredentials(endpoint, client_id, secret, scope))


def endpoint_tls(options: Mapping[str, str]) -> ssl.SSLContext | None:
    """Returns the TLS context for connections to an issuer, from `ssl.*` options of a JAAS line.

    Returns None if there are no such options: then the system's certificate authorities are trusted. Raises ValueError.
    """
    named = {name: value for name, value in options.items() if name.startswith("ssl.")}
    try:
        return client_context(named, read_material(named, read_file)) if named else None
    except TlsError as problem:
        raise ValueError(str(problem)) from None


def _first(given: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((given[name] for name in names if name in given), None)
