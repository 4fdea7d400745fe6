"""Implements SASL OAUTHBEARER (RFC 7628): the client sends an access token, and the server checks it.

    client                                        server
    n,,^Aauth=Bearer TOKEN^A^A                    empty token: the client is authenticated
                                                  {"status":"invalid_token"}: the token is refused
    ^A                                            the authentication fails

Use OAUTHBEARER only on encrypted listeners: an attacker who reads the token can use it until it expires.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from penstock.security.bearer_tokens import BearerToken, TokenError
from penstock.security.errors import SaslError

OAUTHBEARER = "OAUTHBEARER"
MAX_MESSAGE_BYTES = 32_768
#: Kafka's answer to a refused token. It does not say why, because the peer is not authenticated.
REFUSED = '{"status":"invalid_token"}'
ACKNOWLEDGED = b"\x01"
_HEADER = re.compile(r"n,(?:a=((?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,")
_NAME = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_BEARER = re.compile(r"bearer +([-_~+/.a-zA-Z0-9]+=*)", re.IGNORECASE)


class FirstMessage(NamedTuple):
    token: str
    #: The user that the client wants to be; empty if the client names none.
    authorization_id: str


def first_message(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def parse_first(message: bytes) -> FirstMessage:
    """Returns the token and the authorization id of the client's first message. Raises SaslError."""
    if len(message) > MAX_MESSAGE_BYTES:
        raise SaslError("The OAUTHBEARER message is too long.")
    try:
        text = message.decode("ascii")
    except UnicodeDecodeError:
        raise SaslError("The OAUTHBEARER message is not ASCII.") from None
    header, *pairs = text.split("\x01")
    match = _HEADER.fullmatch(header)
    if match is None or len(pairs) < 3 or pairs[-2:] != ["", ""]:
        raise SaslError("The OAUTHBEARER message has a wrong format.")
    values: dict[str, str] = {}
    for pair in pairs[:-2]:
        name, _, value = pair.partition("=")
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or name in values:
            raise SaslError("The OAUTHBEARER message has a wrong or repeated field.")
        values[name] = value
    bearer = _BEARER.fullmatch(values.get("auth", ""))
    if bearer is None:
        raise SaslError("The OAUTHBEARER message has no field 'auth' with a bearer token.")
    return FirstMessage(bearer[1], (match[1] or "").replace("=2C", ",").replace("=3D", "="))


class OAuthBearerServer:
    """Runs the server's side of one OAUTHBEARER authentication. Sets `user` and `expires_ms` if the token is valid."""

    def __init__(self, check: Callable[[str], BearerToken]) -> None:
        """Prepares one authentication. `check` verifies an access token, and raises TokenError to refuse it."""
        self._check = check
        self.user: str | None = None
        self.expires_ms: int | None = None
        #: Why the token was refused, for the operator.
        self.refusal: str | None = None

    def step(self, message: bytes) -> bytes:
        """Checks the access token in the client's message. Returns an empty SASL token if the access token is valid.

        Otherwise returns Kafka's error status. After an error status, the client's next message raises SaslError.
        """
        if self.refusal is not None:
            raise SaslError(REFUSED, self.refusal)
        first = parse_first(message)
        try:
            token = self._check(first.token)
        except TokenError as problem:
            self.refusal = str(problem)
            return REFUSED.encode()
        if first.authorization_id not in ("", token.subject):
            raise SaslError("The client requested an authorization id that differs from the token's subject.")
        self.user, self.expires_ms = token.subject, token.expires_ms
        return b""


class OAuthBearerClient:
    """Runs the client's side of one OAUTHBEARER authentication."""

    def __init__(self, token: str) -> None:
        """Prepares one authentication. Raises SaslError if the token has characters that the mechanism can't send."""
        if _BEARER.fullmatch(f"Bearer {token}") is None:
            raise SaslError("The access token is empty or has characters that a bearer token does not have.")
        self._token = token

    def first(self) -> bytes:
        return first_message(self._token)

    def step(self, message: bytes) -> bytes | None:
        """Handles the broker's message. Returns None if the client is authenticated.

        If the message is an error status, returns an acknowledgement. When the broker gets the acknowledgement, it ends
        the authentication.
        """
        return ACKNOWLEDGED if message else None
