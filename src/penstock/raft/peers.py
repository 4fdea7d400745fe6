"""Tracks requests in flight: at most one request of each kind per peer.

A request is given up after a timeout, and repeated after a pause.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.raft.config import RaftConfig
from penstock.raft.messages import Request


class InFlight(NamedTuple):
    to: int
    request: Request
    deadline_ms: int


class Peers:
    __slots__ = ("_busy", "_config", "_flights", "_next_id", "_not_before")

    def __init__(self, config: RaftConfig) -> None:
        self._config = config
        self._flights: dict[int, InFlight] = {}
        self._busy: dict[tuple[int, type[Request]], int] = {}
        self._not_before: dict[tuple[int, type[Request]], int] = {}
        self._next_id = 0

    def due_ms(self, to: int, kind: type[Request], now_ms: int) -> int | None:
        """Returns the earliest time at which a request of this kind may be sent to a peer; None while such a request is
        in flight."""
        if (to, kind) in self._busy:
            return None
        return max(now_ms, self._not_before.get((to, kind), now_ms))

    def sent(self, to: int, request: Request, now_ms: int) -> int:
        self._next_id += 1
        self._flights[self._next_id] = InFlight(to, request, now_ms + self._config.request_timeout_ms)
        self._busy[to, type(request)] = self._next_id
        return self._next_id

    def done(self, send_id: int, now_ms: int, *, pause: bool) -> InFlight | None:
        """Removes and returns the request `send_id`, which was answered or failed. Returns None if the request was
        given up before; the caller then ignores its answer."""
        flight = self._flights.pop(send_id, None)
        if flight is None:
            return None
        kind = (flight.to, type(flight.request))
        del self._busy[kind]
        if pause:
            self._not_before[kind] = now_ms + self._config.retry_backoff_ms
        else:
            self._not_before.pop(kind, None)
        return flight

    def pause(self, to: int, kind: type[Request], now_ms: int, for_ms: int | None = None) -> None:
        self._not_before[to, kind] = now_ms + (self._config.retry_backoff_ms if for_ms is None else for_ms)

    def give_up_late(self, now_ms: int) -> None:
        for send_id in [one for one, flight in self._flights.items() if flight.deadline_ms <= now_ms]:
            self.done(send_id, now_ms, pause=True)

    def forget(self) -> None:
        """Gives up all requests in flight. Called when the replica's state changes, because answers to earlier requests
        are then ignored."""
        self._flights.clear()
        self._busy.clear()
        self._not_before.clear()

    def deadline_ms(self) -> int | None:
        return min((flight.deadline_ms for flight in self._flights.values()), default=None)
