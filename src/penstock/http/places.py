"""Decides which connections the HTTP server keeps when more peers connect than its limits allow. Pure code.

    new connection ─► below the limits ─────────────────────────────────► admitted
                   └► at a limit ─► another connection can be closed ───► admitted, the other one is closed
                                 └► otherwise ──────────────────────────► on trial: only a probe is answered

To make room for a new connection, the server closes only a connection whose peer reads a response too slowly, or a
connection without a request in progress. Slow readers are closed first, then idle connections; both from the host with
the most connections. A probe is a request for `/livez` or `/readyz`. Connections on trial have their own limit, so
probes are answered even by a busy server. At that limit, one of the connections on trial is closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

MAX_CONNECTIONS = 64
#: Connections on trial: a probe sends its request at once, so few places are enough.
PROBE_PLACES = 8
#: Bytes of answers that the connections of one host may leave unread; one answer alone may be larger.
UNREAD_MAX_BYTES = 32 * 1024 * 1024


class Occupant(Protocol):
    """Defines the interface of a connection that `Places` counts."""

    @property
    def host(self) -> str: ...

    @property
    def idle(self) -> bool:
        """Returns True if no request is in progress, or only a failed login whose response is delayed."""
        ...

    @property
    def reads_slowly(self) -> bool:
        """Returns True if the peer reads the current response too slowly or not at all."""
        ...

    @property
    def unread_bytes(self) -> int:
        """Returns how many bytes of the current response the peer has not read yet."""
        ...


C = TypeVar("C", bound=Occupant)


class Limit(Enum):
    """Lists the limits on the number of connections."""

    ALL = "all connections"
    HOST = "the connections of one host"


class Entry(NamedTuple, Generic[C]):
    """Holds the decision about a new connection. The server has to close the connection `closed` if it is not None."""

    on_trial: Limit | None = None
    """The limit because of which the new connection is on trial; None if the connection is admitted."""
    closed: C | None = None


class Places(Generic[C]):
    def __init__(self, per_host: int) -> None:
        self._per_host = per_host
        #: In the order of their arrival, as `_on_trial`.
        self._placed: dict[C, None] = {}
        self._on_trial: dict[C, None] = {}

    def __len__(self) -> int:
        return len(self._placed) + len(self._on_trial)

    def __iter__(self) -> Iterator[C]:
        return iter((*self._placed, *self._on_trial))

    def enter(self, new: C) -> Entry[C]:
        """Admits a new connection or puts it on trial. The result has the connection to close for it, if any."""
        crowd = [each for each in self._placed if each.host == new.host]
        limit = Limit.HOST if len(crowd) >= self._per_host else None
        if limit is None and len(self._placed) >= MAX_CONNECTIONS:
            crowd, limit = list(self._placed), Limit.ALL
        loser = None if limit is None else _loser(crowd)
        if limit is None or loser is not None:
            if loser is not None:
                del self._placed[loser]
            self._placed[new] = None
            return Entry(closed=loser)
        if len(self._on_trial) >= PROBE_PLACES:
            loser = _loser(list(self._on_trial)) or next(iter(self._on_trial))
            del self._on_trial[loser]
        self._on_trial[new] = None
        return Entry(limit, loser)

    def leave(self, connection: C) -> None:
        self._placed.pop(connection, None)
        self._on_trial.pop(connection, None)

    def in_the_way(self, answering: C, size: int) -> list[C] | None:
        """Returns the connections to close before a response of `size` bytes is sent: slow readers on the same host.

        Returns None if the response must not be sent, because the host would still have too many unread bytes.
        """
        others = [each for each in self._placed if each.host == answering.host and each is not answering]
        held = sum(each.unread_bytes for each in others)
        closed: list[C] = []
        for each in others:
            if held == 0 or held + size <= UNREAD_MAX_BYTES:
                break
            if each.reads_slowly:
                held -= each.unread_bytes
                closed.append(each)
        return closed if held == 0 or held + size <= UNREAD_MAX_BYTES else None


def _loser(crowd: list[C]) -> C | None:
    """Returns the connection to close for a new connection; None if all connections are in use.

    Prefers slow readers to idle connections, then the host with the most connections, then the oldest connection.
    """
    of_host = Counter(each.host for each in crowd)
    ranked = [(each, 2 if each.reads_slowly else 1 if each.idle else 0) for each in crowd]
    in_question = [(each, rank) for each, rank in ranked if rank]
    if not in_question:
        return None
    return max(in_question, key=lambda entry: (entry[1], of_host[entry[0].host]))[0]
