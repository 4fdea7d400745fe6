"""Decides which connections the HTTP server keeps when more peers connect than its limits allow. Pure.

    new connection ─► below the limits ───────────────────────────► gets a place
                   └► at a limit ─► a place can be taken away ────► gets this place
                                 └► otherwise ────────────────────► on trial: only a probe is answered

A connection loses its place only if its peer reads its answer too slowly, or if it has no request in progress: slow
readers first, and of these the ones of the host with the most connections. Connections on trial have places of their
own, so `/livez` and `/readyz` answer however busy the server is. If these are all taken, one of them is closed.
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
    """The interface of a connection that has, or asks for, a place."""

    @property
    def host(self) -> str: ...

    @property
    def idle(self) -> bool:
        """Returns True if no request of the connection is in progress, or if its request is a failed login."""
        ...

    @property
    def reads_slowly(self) -> bool:
        """Returns True if the peer leaves its answer unread, or reads it too slowly."""
        ...

    @property
    def unread_bytes(self) -> int:
        """Returns the bytes of the current answer that the peer has not taken."""
        ...


C = TypeVar("C", bound=Occupant)


class Limit(Enum):
    """Lists the limits that can refuse a connection."""

    ALL = "all connections"
    HOST = "the connections of one host"


class Entry(NamedTuple, Generic[C]):
    """Says what happens to a new connection. The server closes the connection `closed`, if there is one."""

    on_trial: Limit | None = None
    """The limit because of which the new connection is on trial; None if it has a place."""
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
        """Registers a new connection. Removes the connection that the server has to close for it."""
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
        """Returns the slow readers to close before a connection gets an answer of `size` bytes.

        Returns None if the connection must not get the answer, because the peer's other connections hold too much.
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
    """Returns the connection that loses its place; None if all connections are in use. The oldest of equals loses."""
    of_host = Counter(each.host for each in crowd)
    ranked = [(each, 2 if each.reads_slowly else 1 if each.idle else 0) for each in crowd]
    in_question = [(each, rank) for each, rank in ranked if rank]
    if not in_question:
        return None
    return max(in_question, key=lambda entry: (entry[1], of_host[entry[0].host]))[0]
