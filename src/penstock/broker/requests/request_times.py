"""Measures the phases of requests, by API, with Kafka's meanings: queue, local, remote, throttle, send and total.

Only some requests are timed; for all others, only a counter is decremented. At first every request of an API is timed.
Then the gaps between timed requests grow, until on average one of `every` requests is timed. A timed request counts for
all requests of its API since the previous timed request, so that counts, sums and quantiles are estimates for all
requests. The length of the gaps varies, because a client may repeat its requests in a fixed order. The gaps come from a
fixed sequence: no randomness of the node is used.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, NamedTuple, Protocol

from penstock.histogram import Histogram
from penstock.net.later import Later
from penstock.net.reply import Reply, WatchedReply

#: Upper bounds of the histogram's buckets in nanoseconds; the last bucket has no bound.
BOUNDS_NS = tuple(int(ms * 1_000_000) for ms in (0.1, 0.25, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 5000))
PHASES = ("queue", "local", "remote", "throttle", "send", "total")
#: While an API has had fewer requests, all of them are timed. Afterwards the mean gap grows by one for as many more.
ALL_TIMED = 64
#: Measurements that are collected before they are counted: one loop over them costs less than single calls.
PENDING_MAX = 32
NEVER = sys.maxsize


class Countdown(Protocol):
    """Counts the requests of one API version down to the next timed request.

    The number of requests that have arrived is `until - left`.
    """

    left: int
    """Requests until the next timed request."""
    until: int
    """The number of the next timed request."""
    gap: int
    """Requests from the last timed request to the next one."""


class Began(NamedTuple):
    """Holds the time at which a timed request began, and the number of requests for which it counts."""

    at_ns: int
    weight: int
    """The number of requests that the timed request stands for."""


class TimedConnection(Protocol):
    """Defines the interface of a connection from which the waiting times of its requests are read."""

    @property
    def waiting_since_ns(self) -> int:
        """Returns the time at which the request began to wait for its start; 0 if it did not wait."""
        ...

    @property
    def muted_s(self) -> float:
        """Returns for how many more seconds the connection is muted."""
        ...


#: One histogram for each phase of an API's requests, in the order of PHASES.
ApiTimes = tuple[Histogram, ...]
#: The API's name, the weight of a timed request, and the durations of its phases in nanoseconds.
Measured = tuple[str, int, tuple[int, ...]]


class RequestTimes:
    def __init__(self, nanoseconds: Callable[[], int] = lambda: 0, every: int = 0) -> None:
        """Creates the measurement.

        On average one of `every` requests of a busy API is timed; if `every` is 0, no request is timed.
        """
        self.nanoseconds = nanoseconds
        self._every = every
        self._state = 1
        self._apis: dict[str, ApiTimes] = {}
        self._pending: list[Measured] = []
        #: The countdowns of all routes, with the names of their APIs.
        self.countdowns: list[tuple[str, Countdown]] = []

    def requests(self) -> dict[str, int]:
        """Returns the number of requests by API. The count is exact: it includes requests that are not timed."""
        found: dict[str, int] = {}
        for name, countdown in self.countdowns:
            found[name] = found.get(name, 0) + countdown.until - countdown.left
        return found

    def first(self) -> int:
        """Returns the number of the first request to time: 1, or NEVER if no request is timed."""
        return 1 if self._every else NEVER

    def begin(self, countdown: Countdown) -> Began:
        """Starts to time a request, and chooses how many requests later the next request is timed."""
        began = Began(self.nanoseconds(), countdown.gap)
        mean = min(self._every, 1 + countdown.until // ALL_TIMED)
        self._state = (self._state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        countdown.left = countdown.gap = 1 + (self._state >> 8) % (2 * mean - 1)
        countdown.until += countdown.left
        return began

    def record(self, measured: Measured) -> None:
        self._pending.append(measured)
        if len(self._pending) >= PENDING_MAX:
            self._count_pending()

    def by_api(self) -> dict[str, ApiTimes]:
        """Returns the histograms of all APIs that have had a timed request."""
        self._count_pending()
        return self._apis

    def _count_pending(self) -> None:
        for name, weight, durations in self._pending:
            api = self._apis.get(name)
            if api is None:
                api = self._apis[name] = tuple(Histogram(BOUNDS_NS) for _ in PHASES)
            for histogram, duration_ns in zip(api, durations):
                histogram.add(duration_ns, weight)
        self._pending.clear()


class Sample:
    """Measures one request, from its dispatch until its response is sent."""

    __slots__ = ("_began", "_connection", "_local_end", "_made", "_name", "_queued", "_throttle", "_times", "_weight")

    def __init__(self, times: RequestTimes, name: str, began: Began, connection: TimedConnection) -> None:
        self._times = times
        self._name = name
        self._began, self._weight = began
        self._connection = connection
        since = connection.waiting_since_ns
        self._queued = max(0, self._began - since) if since else 0
        self._local_end = 0
        self._made = 0
        self._throttle = 0

    def watch(self, reply: Reply | Later[Reply]) -> Reply | Later[Reply]:
        """Returns the reply in a wrapper that notes when the reply is made and when it is sent."""
        if isinstance(reply, Later):
            source = reply.source
            if isinstance(source, asyncio.Future):
                self._local_end = self._times.nanoseconds()
            else:
                source = FirstStep(source, self._suspended)
            return Later(source, partial(self._made_by, reply.make))
        return self._answered(reply)

    def _suspended(self) -> None:
        self._local_end = self._times.nanoseconds()

    def _made_by(self, make: Callable[[asyncio.Future[Any]], Reply], done: asyncio.Future[Any]) -> Reply:
        return self._answered(make(done))

    def _answered(self, reply: Reply) -> Reply:
        self._made = self._times.nanoseconds()
        self._throttle = int(self._connection.muted_s * 1_000_000_000)
        if isinstance(reply, list):
            return WatchedReply(reply, self._sent)
        self._record(self._made)
        return reply

    def _sent(self) -> None:
        self._record(self._times.nanoseconds())

    def _record(self, end: int) -> None:
        began, made, queued = self._began, self._made, self._queued
        local_end = self._local_end or made
        durations = (queued, local_end - began, made - local_end, self._throttle, end - made, end - began + queued)
        self._times.record((self._name, self._weight, durations))


class FirstStep(Coroutine[Any, Any, Any]):
    """Runs a handler's coroutine, and calls `suspended` when the coroutine waits for the first time.

    The time after this call counts as remote time.
    """

    __slots__ = ("_coroutine", "_suspended")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], suspended: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._suspended: Callable[[], None] | None = suspended

    def send(self, value: Any) -> Any:
        awaited = self._coroutine.send(value)
        if self._suspended is not None:
            self._suspended()
            self._suspended = None
        return awaited

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()
