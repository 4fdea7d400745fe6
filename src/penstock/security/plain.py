"""Implements SASL PLAIN: the client sends user and password in clear text, so use it on encrypted listeners."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from penstock.security.errors import SaslError

MAX_MESSAGE_BYTES = 8_192


def plain_message(user: str, password: str) -> bytes:
    return f"\0{user}\0{password}".encode()


class PlainServer:
    """Runs the server's side of one PLAIN authentication. Sets `user` if the password is right."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.user: str | None = None
        self.expires_ms: int | None = None
        self.refusal: str | None = None

    def step(self, message: bytes) -> bytes:
        """Checks user and password in the client's message. Returns an empty token. Raises SaslError."""
        if len(message) > MAX_MESSAGE_BYTES:
            raise SaslError("The PLAIN message is too long.")
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError:
            raise SaslError("The PLAIN message is not UTF-8.") from None
        if len(parts) != 3:
            raise SaslError(f"The PLAIN message has {len(parts)} fields, not 3.")
        authzid, user, password = parts
        if not user or not password:
            raise SaslError("The PLAIN message has no user name or no password.")
        expected = self._passwords.get(user)
        # Compared also for a user that does not exist, so that the time of an answer does not tell which users exist.
        right = hmac.compare_digest((expected or password + "x").encode(), password.encode())
        if not right or expected is None:
            raise SaslError("Invalid username or password.")
        if authzid not in ("", user):
            raise SaslError("The client requested an authorization id that differs from its user name.")
        self.user = user
        return b""
