"""Authenticates one connection on a SASL listener, as a state machine.

    state        event           next state
    HANDSHAKE    handshake       EXCHANGE; HANDSHAKE if the mechanism is not offered (the node then disconnects)
    EXCHANGE     token           EXCHANGE until the mechanism is done, then DONE; FAILED if it refuses the token
    DONE         handshake       EXCHANGE, to authenticate again (KIP-368); another user or mechanism is refused
    FAILED       -               the connection closes

The state machine has no clock and no randomness: the caller passes nonces, credentials and the session's lifetime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Protocol

from penstock.security.errors import SaslError
from penstock.security.scram import ScramServer

#: Tokens that one exchange may take; SCRAM takes two.
MAX_STEPS = 10


class Exchange(Protocol):
    """Runs the server's side of one authentication with a SASL mechanism."""

    @property
    def user(self) -> str | None:
        """Returns the name of the user; None until the client is authenticated."""
        ...

    @property
    def expires_ms(self) -> int | None:
        """Returns the time at which the user's credential expires, in ms since 1970; None if it does not expire."""
        ...

    @property
    def refusal(self) -> str | None:
        """Returns why the client was refused; None if it was not. A refused client still sends one more message."""
        ...

    def step(self, message: bytes) -> bytes: ...


class SaslState(Enum):
    HANDSHAKE = auto()
    EXCHANGE = auto()
    DONE = auto()
    FAILED = auto()


class SaslServer:
    def __init__(self, mechanisms: Mapping[str, Callable[[], Exchange]]) -> None:
        """Offers the given mechanisms: each name maps to a function that makes an `Exchange`."""
        self._mechanisms = mechanisms
        self._exchange: Exchange | None = None
        self._mechanism = ""
        self._steps = 0
        self._former: tuple[str, str] | None = None
        self.state = SaslState.HANDSHAKE
        self.user: str | None = None
        #: When the credential of the last authentication expires, in milliseconds since 1970.
        self.expires_ms: int | None = None
        #: True if the client logged in with a delegation token.
        self.by_token = False

    @property
    def refusal(self) -> str | None:
        """Returns why the client was refused, as a text for the operator; None if it was not refused."""
        return None if self._exchange is None else self._exchange.refusal

    @property
    def offered(self) -> list[str]:
        return list(self._mechanisms)

    def handshake(self, mechanism: str) -> bool:
        """Begins an authentication with the mechanism. Returns False if the mechanism is not offered.

        Raises SaslError if no handshake is expected now.
        """
        if self.state is SaslState.DONE and self.user is not None:
            self._former = (self._mechanism, self.user)
        elif self.state is not SaslState.HANDSHAKE:
            self.state = SaslState.FAILED
            raise SaslError("SaslHandshake is not expected while a SASL exchange is running.")
        make = self._mechanisms.get(mechanism)
        if make is None:
            return False
        if self._former is not None and self._former[0] != mechanism:
            self.state = SaslState.FAILED
            raise SaslError(f"The client may authenticate again only with {self._former[0]}.")
        self._mechanism, self._exchange, self._steps = mechanism, make(), 0
        self.state = SaslState.EXCHANGE
        return True

    def token(self, message: bytes) -> bytes:
        """Handles the client's next token and returns the server's token.

        Raises SaslError if the token is refused; the connection then closes.
        """
        if self.state is not SaslState.EXCHANGE or self._exchange is None:
            self.state = SaslState.FAILED
            raise SaslError("SaslAuthenticate is not expected before SaslHandshake.")
        self._steps += 1
        try:
            if self._steps > MAX_STEPS:
                raise SaslError(f"The SASL exchange has more than {MAX_STEPS} messages.")
            answer = self._exchange.step(message)
            user = self._exchange.user
            if user is not None and self._former is not None and self._former[1] != user:
                raise SaslError("The client may not change its user when it authenticates again.")
        except Exception:
            self.state = SaslState.FAILED
            raise
        if user is not None:
            self.user, self.expires_ms = user, self._exchange.expires_ms
            self.by_token = isinstance(self._exchange, ScramServer) and self._exchange.by_token
            self.state, self._exchange = SaslState.DONE, None
        return answer
