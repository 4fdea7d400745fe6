"""Defines a client's SASL login: the mechanism, the user, and the exchange that authenticates the user at a broker."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Protocol

from penstock.security.errors import SaslError
from penstock.security.plain import plain_message
from penstock.security.scram import MECHANISMS, ScramClient

NONCE_BYTES = 24
LOGIN_MECHANISMS = ("PLAIN", *MECHANISMS)


class ClientExchange(Protocol):
    def first(self) -> bytes:
        """Returns the client's first SASL token."""
        ...

    def step(self, message: bytes) -> bytes | None:
        """Handles the broker's token and returns the client's next token; None if the exchange is done.

        Raises SaslError.
        """
        ...


@dataclass(frozen=True, slots=True)
class Login:
    mechanism: str
    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.mechanism not in LOGIN_MECHANISMS:
            raise ValueError(
                f"The SASL mechanism {self.mechanism!r} is not supported: use {', '.join(LOGIN_MECHANISMS)}."
            )

    def exchange(self) -> ClientExchange:
        if self.mechanism == "PLAIN":
            return _PlainClient(self.username, self.password)
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        return ScramClient(MECHANISMS[self.mechanism], self.username, self.password, nonce)


@dataclass(frozen=True, slots=True)
class _PlainClient:
    username: str
    password: str = field(repr=False)

    def first(self) -> bytes:
        return plain_message(self.username, self.password)

    def step(self, message: bytes) -> bytes | None:
        if message:
            raise SaslError("The broker answered PLAIN with a token, which the mechanism does not have.")
        return None
