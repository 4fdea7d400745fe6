"""Manages the listeners of a node and the connections that they accept."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.net.connection import Connection, Dispatch
from penstock.net.limits import AT_ONCE, Arrival, ByteBudget, ConnectionCounts, IdleWheel, LimitedLog, Limits
from penstock.net.loop_delays import LoopDelays
from penstock.net.network import Listening, Network, RealNetwork
from penstock.net.reply import Reply
from penstock.net.traffic import NONE, Traffic
from penstock.net.turns import Turns
from penstock.security.hosts import canonical_host

__all__ = ["Connection", "Dispatch", "Limits", "Listener", "Reply", "Server"]

_logger = logging.getLogger("penstock.net")

SLOW_FRAME_CHECK_S = 1.0
SLOW_READER_CHECK_S = 1.0
# A handler that ignores its cancellation must not delay the stop of a node any longer.
CUT_OFF_S = 1.0
# A connection that is refused after a wait serves nothing until it is closed.
REFUSED_MUTE_S = 60.0


@dataclass(slots=True, eq=False)
class Listener:
    """Describes an address to listen on. After `Server.start`, `port` is the port in use, even if 0 was requested."""

    name: str = "PLAINTEXT"
    host: str = "127.0.0.1"
    port: int = 0
    security_protocol: str = "PLAINTEXT"
    tls: Callable[[], ssl.SSLContext] | None = None
    """A function that returns the TLS context for the next connection.

    So a renewed certificate needs no new listener.
    """
    protected: bool = False
    """True if brokers and controllers connect here. They are accepted even if clients have used up all connections."""
    on_accept: Callable[[Connection], None] | None = None
    """A function that is called for each accepted connection, before its first frame."""
    connections: int = field(default=0, init=False)
    gone: Traffic = field(default=NONE, init=False)
    """The bytes sent and received on connections that are closed now."""

    def leave(self, traffic: Traffic) -> None:
        self.gone = Traffic(self.gone.received + traffic.received, self.gone.sent + traffic.sent)


@dataclass(frozen=True, slots=True)
class _Admission:
    """Implements `TlsAdmission` for a listener: counts a peer as a connection before its TLS handshake begins."""

    server: Server
    listener: Listener
    context: Callable[[], ssl.SSLContext]

    def enter(self, host: str) -> Arrival | None:
        if not self.server.may_connect(host, self.listener):
            return None
        self.server.counts.add(host)
        return self.server.arrival(host, self.listener)

    def completed(self, host: str) -> None:
        """Does nothing: the connection remains counted until it is closed."""

    def leave(self, host: str) -> None:
        self.server.counts.remove(host)

    def failed(self, host: str, reason: str) -> None:
        self.server.log.warning("handshake", f"TLS handshake with {host} on {self.listener.name} failed: {reason}")


class Server:
    """Accepts connections on several listeners and gives their requests to one dispatcher.

    `dispatch(connection, frame)` returns the reply at once, or a `Later`. It should not raise: an exception closes the
    connection. Everything runs on the event loop in which `start` was awaited.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        limits: Limits | None = None,
        *,
        network: Network | None = None,
        logger: logging.Logger = _logger,
        nanoseconds: Callable[[], int] = lambda: 0,
    ) -> None:
        """Creates a server; `start` opens its listeners.

        The clock `nanoseconds` is used to limit the time that a pass of the event loop spends on requests. Without this
        clock, only the number of requests in a pass is limited.
        """
        self.dispatch = dispatch
        self.limits = limits or Limits()
        self.network = network or RealNetwork()
        self.logger = logger
        self.listeners: list[Listener] = []
        self.connections: dict[int, Connection] = {}
        self.counts = ConnectionCounts(self.limits)
        self.budget = ByteBudget(self.limits.queued_max_request_bytes)
        self.unsent = ByteBudget(self.limits.queued_max_response_bytes)
        self.wheel = IdleWheel()
        self.receive_view = memoryview(bytearray(self.limits.receive_buffer_bytes))
        self.in_progress: dict[Connection, None] = {}
        """Connections with a request in progress, including those whose peer hung up."""
        #: Decides when new connections are served, by host and listener; None serves all of them at once.
        self.arrivals: Callable[[str, Listener], Arrival] | None = None
        self.accepted = 0
        self.refused = 0
        self._requests_of_the_gone = 0
        self.stopping = False
        self.turns: Turns
        self.loop_delays = LoopDelays()
        self._nanoseconds = nanoseconds
        self.loop: asyncio.AbstractEventLoop
        self.log: LimitedLog
        self._open: list[Listening] = []
        self._wheel_timer: asyncio.TimerHandle | None = None
        self._slow_frames_timer: asyncio.TimerHandle | None = None
        self._slow_readers_timer: asyncio.TimerHandle | None = None
        self._quiet: asyncio.Event

    async def start(self, listeners: Iterable[Listener]) -> list[Listener]:
        """Opens all listeners; if one address can't be bound, opens none and raises OSError."""
        self.loop = asyncio.get_running_loop()
        self.turns = Turns(self.limits, self.loop.call_soon, self._nanoseconds)
        self.log = LimitedLog(self.logger, self.loop.time)
        self._quiet = asyncio.Event()
        await self._resolve_overrides()
        try:
            for listener in listeners:
                await self.listen(listener)
        except BaseException:
            self._close_listeners()
            raise
        if self.limits.connections_max_idle_ms >= 0:
            self._wheel_turn()
        return self.listeners

    def use(self, dispatch: Dispatch) -> None:
        """Sets the dispatcher. Requests that have already started keep the previous dispatcher."""
        self.dispatch = dispatch

    def limit_connections(self, limits: Limits) -> None:
        """Replaces the limits on the number of connections. All other limits stay as the constructor set them."""
        self.counts.limits = limits

    async def listen(self, listener: Listener) -> Listener:
        """Opens one more listener on a running server."""
        opened = await self.network.listen(
            listener.host,
            listener.port,
            lambda: Connection(self, listener),
            backlog=self.limits.socket_listen_backlog_size,
            tls=None if listener.tls is None else _Admission(self, listener, listener.tls),
        )
        listener.port = opened.port
        self._open.append(opened)
        self.listeners.append(listener)
        return listener

    async def stop(self, grace_s: float = 10.0) -> None:
        """Stops accepting connections, sends the responses to requests in progress, then closes all connections."""
        self.stopping = True
        self._close_listeners()
        for connection in list(self.connections.values()):
            connection.finish()
        if await self._quiet_within(grace_s):
            return
        left = dict.fromkeys((*self.connections.values(), *self.in_progress))
        self.logger.warning(
            "stopping: %d connections with requests in progress were closed, %.1f s after the stop began",
            len(left),
            grace_s,
        )
        for connection in left:
            connection.abort()
        await self._quiet_within(CUT_OFF_S)

    async def _quiet_within(self, seconds: float) -> bool:
        if self.connections or self.in_progress:
            self._quiet.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._quiet.wait()
            except TimeoutError:
                return False
        return True

    def _close_listeners(self) -> None:
        self.loop_delays.stop()
        for opened in self._open:
            opened.close()
        self._open.clear()
        for timer in (self._wheel_timer, self._slow_frames_timer, self._slow_readers_timer):
            if timer is not None:
                timer.cancel()

    async def _resolve_overrides(self) -> None:
        """Resolves the host names in max.connections.per.ip.overrides, because connections only have addresses."""
        for host in self.limits.max_connections_per_ip_overrides:
            try:
                ipaddress.ip_address(host)
            except ValueError:
                for address in await self.network.resolve(host):
                    self.counts.addresses[canonical_host(address)] = host

    @property
    def requests(self) -> int:
        """Returns the number of requests received. Adds up all connections at each call, so do not call it often."""
        return self._requests_of_the_gone + sum(each.requests for each in self.connections.values())

    # Calls of connections

    def may_connect(self, peer_host: str, listener: Listener) -> bool:
        """Returns True if the limits allow one more connection; logs and counts a refusal."""
        if self.stopping:
            reason: str | None = "the node is stopping"
        else:
            reason = self.counts.refusal(peer_host, protected=listener.protected)
        if reason is None and listener.protected and self.counts.full:
            self._make_room()
        if reason is not None:
            self.refused += 1
            self.log.warning("refused", f"connection from {peer_host} on {listener.name} refused: {reason}")
        return reason is None

    def admit(self, connection: Connection) -> bool:
        if connection.listener.tls is None:  # a TLS connection was counted before its handshake
            if not self.may_connect(connection.peer_host, connection.listener):
                return False
            self.counts.add(connection.peer_host)
        self.accepted += 1
        connection.id = self.accepted
        self.connections[connection.id] = connection
        connection.listener.connections += 1
        self.wheel.add(connection)
        if connection.listener.on_accept is not None:
            connection.listener.on_accept(connection)
        if connection.listener.tls is None:
            self._delay(connection, self.arrival(connection.peer_host, connection.listener))
        return True

    def arrival(self, host: str, listener: Listener) -> Arrival:
        return AT_ONCE if self.arrivals is None else self.arrivals(host, listener)

    def _delay(self, connection: Connection, arrival: Arrival) -> None:
        """Delays the requests of a new connection, to keep the limit on the rate of new connections.

        `arrival` contains the delay. If `arrival` refuses the connection, the connection is closed after the delay.
        """
        if arrival.refused is not None:
            self.refused += 1
            connection.mute_for(arrival.wait_s + REFUSED_MUTE_S)
            self.loop.call_later(arrival.wait_s, connection.close, arrival.refused, "connection rate")
        elif arrival.wait_s:
            connection.mute_for(arrival.wait_s)

    def _make_room(self) -> None:
        """Closes the client connection that was idle longest, so that another node of the cluster can connect, as in
        Kafka."""
        clients = (each for each in self.connections.values() if not each.listener.protected and not each.closed)
        idle = min(clients, key=lambda each: each.active_tick, default=None)
        if idle is not None:
            self.log.warning(
                "displaced", f"{idle!r} closed: max.connections is reached and another node needs a connection"
            )
            idle.abort()

    def forget(self, connection: Connection) -> None:
        if self.connections.pop(connection.id, None) is not None:
            self._requests_of_the_gone += connection.requests
            self.counts.remove(connection.peer_host)
            connection.listener.connections -= 1
            self.wheel.remove(connection)
            if self.stopping:
                self.request_finished()

    def request_finished(self) -> None:
        if not self.connections and not self.in_progress:
            self._quiet.set()

    # Time

    def _wheel_turn(self) -> None:
        period_s = self.limits.connections_max_idle_ms / 1000 / IdleWheel.SLOTS
        self._wheel_timer = self.loop.call_later(period_s, self._wheel_turn)
        if self.connections:
            self.wheel.tick()

    def watch_slow_frames(self) -> None:
        if self._slow_frames_timer is None:
            self._slow_frames_timer = self.loop.call_later(SLOW_FRAME_CHECK_S, self.shed_slow_frames)

    def shed_slow_frames(self) -> None:
        """Closes connections whose frames arrive too slowly, if other connections wait for the frame budget."""
        self._slow_frames_timer = None
        if not self.budget.waiting:
            return
        oldest = self.loop.time() - self.limits.slow_frame_timeout_ms / 1000
        for connection in list(self.connections.values()):
            since = connection.slow_frame_since()
            if since is not None and since <= oldest:
                connection.close(
                    "its request arrives too slowly while other requests wait for queued.max.request.bytes", "slow"
                )
        self.watch_slow_frames()

    def watch_slow_readers(self) -> None:
        if self._slow_readers_timer is None and self.unsent.strained:
            self._slow_readers_timer = self.loop.call_later(SLOW_READER_CHECK_S, self.shed_slow_readers)

    def shed_slow_readers(self) -> None:
        """Closes connections that do not read their responses, if unread responses take much memory."""
        self._slow_readers_timer = None
        if not self.unsent.strained:
            return
        oldest = self.loop.time() - self.limits.slow_reader_timeout_ms / 1000
        for connection in list(self.connections.values()):
            since = connection.slow_reader_since()
            if since is not None and since <= oldest:
                self._cut_slow_reader(connection)
        self.watch_slow_readers()

    def cut_slow_readers(self) -> None:
        """Closes connections whose peers do not read, until the unread responses fit their limit.

        Begins with the response that has been unread longest. Does nothing unless unread responses use more than twice
        their limit.
        """
        if not self.unsent.overdrawn:
            return
        excess = self.unsent.used - self.unsent.limit
        waiting = [
            (since, each) for each in self.connections.values() if (since := each.slow_reader_since()) is not None
        ]
        for _, connection in sorted(waiting, key=lambda entry: entry[0]):
            if excess <= 0:
                return
            excess -= connection.unsent_bytes
            self._cut_slow_reader(connection)

    def _cut_slow_reader(self, connection: Connection) -> None:
        limit = f"penstock.queued.max.response.bytes={self.unsent.limit}"
        reason = f"it doesn't read its answer, and unread answers take {self.unsent.used} bytes ({limit})"
        self.log.warning("slow reader", f"{connection!r} closed: {reason}")
        connection.abort()
