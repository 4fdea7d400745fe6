"""Names all limits of a server, counts its connections, and adds up the bytes that all connections use."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from penstock.security.hosts import canonical_host, is_loopback


@dataclass(frozen=True, slots=True)
class Limits:
    """Holds the limits of a server. If Kafka has the same limit, its name and default are Kafka's."""

    socket_request_max_bytes: int = 104_857_600
    max_connections: int = 2_147_483_647
    descriptor_connections: int = 2_147_483_647
    """The number of connections that the process's limit of open files allows, in addition to `max_connections`."""
    loopback_connections: int = 16
    """The number of loopback connections accepted beyond all other limits, so that an operator can always connect."""
    max_connections_per_ip: int = 2_147_483_647
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    connections_max_idle_ms: int = 600_000
    """How long a connection may be idle before it is closed. Negative: idle connections are never closed."""
    queued_max_request_bytes: int = -1
    """Limit on the bytes of request frames of all connections, also incomplete frames. Zero or negative: no limit."""
    socket_listen_backlog_size: int = 50
    pipelined_max_bytes: int = 64 * 1024
    """Limit on the bytes of requests that wait behind the one in progress, per connection.

    At the limit, reading pauses.
    """
    pipelined_max_requests: int = 100
    write_queue_max_bytes: int = 256 * 1024
    """Unsent bytes of a connection above which it starts no further request.

    One response alone may exceed this limit.
    """
    receive_buffer_bytes: int = 128 * 1024
    """Size of the receive buffer. A server has one and lends it to the connection that is reading."""
    pass_max_requests: int = 64
    """Limit on the requests that one pass of the event loop starts. A request that needs a task counts as eight."""
    pass_max_ms: int = 10
    """Time after which a pass of the event loop starts no more requests. The request in progress may take longer."""
    slow_frame_timeout_ms: int = 30_000
    """How long a frame may take to arrive while other connections wait because of `queued_max_request_bytes`."""
    queued_max_response_bytes: int = 256 * 1024 * 1024
    """Limit on the bytes of responses that all peers together have not read. Zero or negative: no limit."""
    slow_reader_timeout_ms: int = 30_000
    """How long a peer may take to read a response while more than half of `queued_max_response_bytes` is in use."""


class Arrival(NamedTuple):
    """Describes what happens to a new connection: after `wait_s` seconds it is served, or closed if `refused` is set.

    `refused` is the reason that is logged.
    """

    wait_s: float = 0.0
    refused: str | None = None
    closes: str | None = None
    """The host whose oldest TLS handshake is ended to make room for the new connection."""


AT_ONCE = Arrival()


class ConnectionCounts:
    """Counts connections, in total and by address. The server can replace `limits` at any time."""

    __slots__ = ("_by_host", "_loopback", "addresses", "limits", "total")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.addresses: dict[str, str] = {}
        """Maps addresses to host names, for overrides that are given by host name."""
        self.total = 0
        self._loopback = 0
        self._by_host: dict[str, int] = {}

    @property
    def full(self) -> bool:
        """Returns True if the limit on the total number of connections is reached."""
        return self.total >= min(self.limits.descriptor_connections, self.limits.max_connections)

    def refusal(self, host: str, *, protected: bool = False) -> str | None:
        """Returns the reason for which a new connection from this host is refused; None if it is accepted.

        A `protected` listener has no limit on the total number of connections.
        """
        if self._loopback < self.limits.loopback_connections and is_loopback(host):
            return None
        if not protected and self.full:
            return self._refusal_in_all()
        overrides = self.limits.max_connections_per_ip_overrides
        address = canonical_host(host)
        per_host = overrides.get(self.addresses.get(address, address), self.limits.max_connections_per_ip)
        if self._by_host.get(host, 0) >= per_host:
            return f"max.connections.per.ip={per_host} connections are open from {host}: close some or raise that limit"
        return None

    def _refusal_in_all(self) -> str:
        if self.total >= self.limits.descriptor_connections:
            most = self.limits.descriptor_connections
            return f"{most} connections are open, all that ulimit -n (open files) allows: close some or raise it"
        return f"max.connections={self.limits.max_connections} connections are open: close some or raise that limit"

    def add(self, host: str) -> None:
        self.total += 1
        self._loopback += is_loopback(host)
        self._by_host[host] = self._by_host.get(host, 0) + 1

    def remove(self, host: str) -> None:
        self.total -= 1
        self._loopback -= is_loopback(host)
        left = self._by_host[host] - 1
        if left:
            self._by_host[host] = left
        else:
            del self._by_host[host]

    def most(self) -> str:
        """Returns the host with the most connections. If several hosts have equally many, returns the host that
        connected first."""
        return max(self._by_host, key=self._by_host.__getitem__)


NO_BOUND = 2**63 - 1
#: One answer may take this fraction of the bytes that are left.
SHARES = 4


class ByteBudget:
    """Counts the bytes that the server's connections hold.

    One budget counts request frames, another budget counts responses. While the budget for frames is used up,
    connections wait before they read a new frame. A frame that has begun to arrive is read to its end, so the limit can
    be exceeded, as in Kafka's memory pool.
    """

    __slots__ = ("_waiting", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def exhausted(self) -> bool:
        return 0 < self.limit <= self.used

    @property
    def room(self) -> int:
        """Returns the number of bytes that may still be used."""
        return max(0, self.limit - self.used) if self.limit > 0 else NO_BOUND

    @property
    def share(self) -> int:
        """Returns the number of bytes that the next response may use.

        This is only a fraction of `room`, so that room is left for other responses.
        """
        return self.room // SHARES

    @property
    def strained(self) -> bool:
        """Returns True if more than half of the limit is in use."""
        return 0 < self.limit < 2 * self.used

    @property
    def overdrawn(self) -> bool:
        """Returns True if more than twice the limit is in use."""
        return 0 < 2 * self.limit < self.used

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, count: int) -> None:
        self.used += count

    def give_back(self, count: int) -> None:
        self.used -= count
        while self._waiting and not self.exhausted:
            wake = next(iter(self._waiting))
            del self._waiting[wake]
            wake()

    def wait(self, wake: Callable[[], None]) -> None:
        self._waiting[wake] = None

    def forget(self, wake: Callable[[], None]) -> None:
        self._waiting.pop(wake, None)


class Idler(Protocol):
    """Declares the interface of a connection, or of a similar object, that an IdleWheel watches."""

    active_tick: int
    idle_slot: int

    def idle_expired(self) -> bool:
        """Closes the connection, or keeps it open if a request is in progress. Called after a whole idle period.

        Returns True if the connection is closed, False if it stays open.
        """
        ...


class IdleWheel:
    """Finds idle connections at almost no cost per request: a request only stores the current tick in its connection.

    Connections are kept in slots, one slot for each tick. Each slot is examined once per idle period. A connection that
    was active since the last examination moves to the slot of its new deadline. A connection that was not active has
    been idle too long, so its `idle_expired` is called.
    """

    SLOTS = 16

    __slots__ = ("_slots", "now")

    def __init__(self) -> None:
        self.now = 0
        # One slot more than the period has ticks, so that activity just before a tick still counts a whole period.
        self._slots: list[dict[Idler, None]] = [{} for _ in range(self.SLOTS + 1)]

    def add(self, idler: Idler) -> None:
        idler.active_tick = self.now
        self._put(idler)

    def _put(self, idler: Idler) -> None:
        # The slot of `now` was just visited; it is visited again after a full turn.
        idler.idle_slot = idler.active_tick % len(self._slots)
        self._slots[idler.idle_slot][idler] = None

    def remove(self, idler: Idler) -> None:
        self._slots[idler.idle_slot].pop(idler, None)

    def tick(self) -> None:
        """Advances the wheel by one slot, and examines the connections in this slot.

        Called every sixteenth of the idle period.
        """
        self.now += 1
        due = self._slots[self.now % len(self._slots)]
        if not due:
            return
        oldest_kept = self.now - self.SLOTS
        looked_at = list(due)
        due.clear()
        for idler in looked_at:
            if idler.active_tick >= oldest_kept or not idler.idle_expired():
                idler.active_tick = max(idler.active_tick, oldest_kept)
                self._put(idler)


class LimitedLog:
    """Limits how many log lines a peer can cause: logs some lines of each kind per period, and counts the omitted
    lines."""

    LINES = 5
    PERIOD_S = 10.0

    __slots__ = ("_kinds", "_logger", "_time")

    def __init__(self, logger: logging.Logger, time: Callable[[], float]) -> None:
        self._logger = logger
        self._time = time
        self._kinds: dict[str, tuple[float, int]] = {}

    def info(self, kind: str, message: Callable[[], str]) -> None:
        """Logs the text that `message` returns, if the limit for log lines allows it. Otherwise does not call
        `message`."""
        if self._shows(kind, logging.INFO):
            self._logger.info("%s", message())

    def warning(self, kind: str, message: str) -> None:
        if self._shows(kind, logging.WARNING):
            self._logger.warning("%s", message)

    def exception(self, kind: str, message: str, error: BaseException) -> None:
        """Logs an error with its stack trace, if the limit for log lines allows it.

        The limit applies because a peer may be able to cause this error at will.
        """
        if self._shows(kind, logging.ERROR):
            self._logger.error("%s", message, exc_info=error)

    def _shows(self, kind: str, level: int) -> bool:
        if not self._logger.isEnabledFor(level):
            return False
        now = self._time()
        since, lines = self._kinds.get(kind, (now, 0))
        if now - since >= self.PERIOD_S:
            if lines > self.LINES:
                left_out = lines - self.LINES
                self._logger.log(level, "%d log lines of the same kind as the next line were left out", left_out)
            since, lines = now, 0
        self._kinds[kind] = (since, lines + 1)
        return lines < self.LINES
