"""Defines a client's SASL login: the mechanism, the user, and the exchange that authenticates the user at a broker."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.net.web import FetchError
from penstock.security.errors import SaslError
from penstock.security.oauthbearer import OAUTHBEARER, OAuthBearerClient
from penstock.security.plain import plain_message
from penstock.security.scram import MECHANISMS, TOKEN_EXTENSION, ScramClient

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
    #: True if user name and password are the id and the HMAC of a delegation token.
    token: bool = False

    def __post_init__(self) -> None:
        if self.token and self.mechanism not in MECHANISMS:
            raise ValueError(
                f"A delegation token can't log in with {self.mechanism}: use SCRAM-SHA-256 or SCRAM-SHA-512."
            )
        if self.mechanism not in LOGIN_MECHANISMS:
            raise ValueError(
                f"The SASL mechanism {self.mechanism!r} is not supported: use {', '.join(LOGIN_MECHANISMS)}."
            )

    @property
    def who(self) -> str:
        """Returns the words by which error messages name this login."""
        return f"user {self.username}"

    async def exchange(self) -> ClientExchange:
        """Returns a new SASL exchange, which authenticates one connection."""
        if self.mechanism == "PLAIN":
            return _PlainClient(self.username, self.password)
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        extensions = TOKEN_EXTENSION if self.token else ""
        return ScramClient(MECHANISMS[self.mechanism], self.username, self.password, nonce, extensions)


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """Describes a login with an access token (OAUTHBEARER).

    `source` is a function that returns a token. It may block: it is called in a thread for each new connection.
    """

    source: Callable[[], str] = field(repr=False)

    @property
    def mechanism(self) -> str:
        return OAUTHBEARER

    @property
    def who(self) -> str:
        """Returns the words by which error messages name this login."""
        return "the access token"

    async def exchange(self) -> ClientExchange:
        """Gets a token and returns a new SASL exchange with it. Raises SaslError if there is no token."""
        try:
            return OAuthBearerClient(await asyncio.to_thread(self.source))
        except FetchError as problem:
            raise SaslError(f"There is no access token: {problem}") from None
        except (OSError, ValueError, LookupError) as problem:  # of a user's function; its text may have secrets
            raise SaslError(f"There is no access token: its source failed with {type(problem).__name__}.") from problem


AnyLogin = Login | TokenLogin


@dataclass(frozen=True, slots=True)
class _PlainClient:
    username: str
    password: str = field(repr=False)

    def first(self) -> bytes:
        return plain_message(self.username, self.password)

    def step(self, message: bytes) -> bytes | None:
        if message:
            raise SaslError(
                "The broker answered a PLAIN login with a SASL token, but in PLAIN only the client sends a token."
            )
        return None
