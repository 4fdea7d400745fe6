"""Authenticates the connections of a SASL listener, and keeps unauthenticated requests from the dispatcher.

Until a connection has authenticated, only ApiVersions, SaslHandshake and SaslAuthenticate are served, frames are small,
and the connection closes at a deadline. The response to a failed authentication is sent after a delay, then the
connection closes. With `connections.max.reauth.ms`, and with credentials that expire, a session expires unless the
client authenticates again (KIP-368).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.net.later import Later
from penstock.net.reply import Close
from penstock.protocol.apis import API_VERSIONS
from penstock.security.errors import SaslError
from penstock.security.sasl_server import Exchange, SaslServer, SaslState

if TYPE_CHECKING:
    from penstock.net.connection import Connection, Dispatch
    from penstock.net.reply import Reply

R = TypeVar("R")

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
#: Key of the session in a connection's state.
SESSION = "sasl"
#: Key in a connection's state: True if the client logged in with a delegation token.
BY_TOKEN = "by_token"  # noqa: S105 - no password
BEFORE_AUTHENTICATION = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})
#: Requests before authentication: ApiVersions twice, a handshake, and the steps of a mechanism.
MAX_REQUESTS_BEFORE = 20
NEVER = float("inf")
#: Time after a session's end in which requests of the session are still answered. Then the connection closes.
GRACE_S = 1.0
#: Requests whose answers have records: Fetch and ShareFetch.
READS = frozenset({1, 78})
#: Time between the beginnings of two re-authentications of a connection.
REAUTHENTICATION_INTERVAL_S = 1.0
OnFailure = Callable[["Connection", str], None]


@dataclass(frozen=True, slots=True)
class SaslRules:
    """Holds the settings with which a listener authenticates its clients."""

    #: Makes a new exchange for each mechanism that the listener offers.
    mechanisms: Mapping[str, Callable[[], Exchange]] = field(repr=False)
    max_token_bytes: int
    deadline_s: float
    failure_delay_s: float
    #: Returns the time that a credential's expiration is compared with.
    wall_ms: Callable[[], int]
    #: Is called for a failed authentication, with the reason.
    on_failure: OnFailure | None = None
    #: Longest lifetime of a session; 0 is without end.
    lifetime_ms: int = 0


class SaslSession:
    """Holds the state of one connection's SASL authentication."""

    __slots__ = (
        "_began",
        "_connection",
        "_deadline",
        "_end",
        "_frame_limit",
        "_lifetime_ms",
        "_next_start",
        "_reported",
        "ends_at",
        "failed",
        "last_key",
        "raw",
        "rules",
        "server",
    )

    def __init__(self, connection: Connection, rules: SaslRules) -> None:
        self.rules = rules
        self.server = SaslServer(rules.mechanisms)
        #: True after SaslHandshake v0: tokens then come as bare frames.
        self.raw = False
        #: True once an authentication has failed: the connection closes, and no other request of it is served.
        self.failed = False
        #: API key of the last request that was passed on.
        self.last_key = -1
        self.ends_at = NEVER
        #: When the client's last token arrived.
        self._began = 0.0
        self._lifetime_ms = 0
        self._next_start = 0.0
        self._reported = False
        self._connection = connection
        self._frame_limit = connection.max_frame_bytes
        connection.max_frame_bytes = min(self._frame_limit, rules.max_token_bytes)
        loop = asyncio.get_running_loop()
        self._deadline: asyncio.TimerHandle | None = loop.call_later(rules.deadline_s, self._too_late)
        self._end: asyncio.TimerHandle | None = None
        connection.on_close(self._forget_timers)

    def token(self, message: bytes) -> bytes:
        """Handles one SASL token of the client. After the last token, sets the connection's principal.

        Raises SaslError.
        """
        self._began = asyncio.get_running_loop().time()
        if len(message) > self.rules.max_token_bytes:  # frames may be larger in a session that is authenticated again
            raise SaslError("The SASL token is larger than sasl.server.max.receive.size: send a smaller token.")
        answer = self.server.token(message)
        if self.server.state is SaslState.DONE:
            connection = self._connection
            connection.principal = f"User:{self.server.user}"
            connection.state[BY_TOKEN] = self.server.by_token
            connection.max_frame_bytes = self._frame_limit
            self.raw = False
            self._set_lifetime()
        elif self.server.refusal is not None:
            self._report(self.server.refusal)
        return answer

    def _set_lifetime(self) -> None:
        """Sets the time at which the session ends: when the credential expires, or earlier if the settings say so."""
        limits_ms = [self.rules.lifetime_ms] if self.rules.lifetime_ms > 0 else []
        if self.server.expires_ms is not None:
            limits_ms.append(max(0, self.server.expires_ms - self.rules.wall_ms()))
        self._lifetime_ms, self.ends_at = 0, NEVER
        self._forget_timers()
        if limits_ms:
            loop = asyncio.get_running_loop()
            self._lifetime_ms = min(limits_ms)
            self.ends_at = loop.time() + self._lifetime_ms / 1000
            self._end = loop.call_at(self.ends_at + GRACE_S, self._cut_off_waiting)

    @property
    def lifetime_ms(self) -> int:
        """Returns the time from the authentication to the session's end; 0 if the session has no end.

        Also returns 0 until the connection is authenticated.
        """
        return self._lifetime_ms if self.server.state is SaslState.DONE else 0

    def may_handshake(self) -> bool:
        """Returns True if the client may now send a SaslHandshake, which begins an authentication.

        A client that is authenticated may authenticate again only if its session has an end, and at most once a second,
        as in Kafka.
        """
        if self.server.state is not SaslState.DONE:
            return True
        now = asyncio.get_running_loop().time()
        if self.ends_at is NEVER or now < self._next_start:
            return False
        self._next_start = now + REAUTHENTICATION_INTERVAL_S
        return True

    @property
    def ended(self) -> bool:
        return self.ends_at is not NEVER and asyncio.get_running_loop().time() > self.ends_at

    def refuse(self, reason: str, answer: R) -> Later[R]:
        """Returns the response to a failed authentication: it is sent after a delay, then the connection closes.

        Removes the connection's principal first, because the next queued request starts before the connection closes: a
        client that failed to authenticate again must not act as its former user.
        """
        self._connection.principal = None
        self.failed = True
        self._report(reason)

        def answered(_: object) -> R:
            close = partial(self._connection.close, f"its authentication failed: {reason}", "authentication")
            asyncio.get_running_loop().call_soon(close)
            return answer

        loop = asyncio.get_running_loop()
        began = self._began or loop.time()
        # Counted from the client's token on, so that the time for its check does not show.
        return Later(asyncio.sleep(max(0.0, began + self.rules.failure_delay_s - loop.time())), answered)

    def _report(self, reason: str) -> None:
        if self.rules.on_failure is not None and not self._reported:
            self._reported = True
            self.rules.on_failure(self._connection, reason)

    def _cut_off_waiting(self) -> None:
        """Closes the connection if a request of the ended session still waits for records.

        Other requests are answered, and an idle connection stays open, as in Kafka: the client authenticates again
        before its next request. Its SaslHandshake may already be queued behind another request: librdkafka sends it
        behind a JoinGroup.
        """
        self._end = None
        if self._connection.busy and self.last_key in READS:
            self._connection.close("its session ended while a request was waiting", "session end")

    def _too_late(self) -> None:
        self._deadline = None
        seconds = self.rules.deadline_s
        self._connection.close(f"it did not authenticate within {seconds:g} s", "authentication timeout")

    def _forget_timers(self) -> None:
        for timer in (self._deadline, self._end):
            if timer is not None:
                timer.cancel()
        self._deadline = self._end = None


def session_of(connection: Connection) -> SaslSession | None:
    found: SaslSession | None = connection.state.get(SESSION)
    return found


class SaslGate:
    """Passes a request to the dispatcher only if its connection is authenticated and its session has not expired."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch

    def __call__(self, connection: Connection, frame: memoryview) -> Reply | Later[Reply]:
        session = session_of(connection)
        assert session is not None, "a connection of a SASL listener has a session from its acceptance on"
        if session.failed:
            return Close("it sent a request after its authentication failed")
        if session.raw:
            return self._raw(session, frame)
        key = int.from_bytes(frame[:2], "big", signed=True)
        if connection.principal is None:
            if key not in BEFORE_AUTHENTICATION or connection.requests > MAX_REQUESTS_BEFORE:
                return Close(f"it sent a request (API key {key}) before it authenticated")
        elif session.ended and key not in BEFORE_AUTHENTICATION:
            return Close("its session ended, and it did not authenticate again in time")
        session.last_key = key
        return self._dispatch(connection, frame)

    def _raw(self, session: SaslSession, frame: memoryview) -> Reply | Later[Reply]:
        try:
            return [session.token(bytes(frame))]
        except SaslError as error:
            return session.refuse(error.reason, None)
