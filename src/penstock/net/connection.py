"""Serves one accepted connection: cuts bytes into frames, gives frames to the dispatcher, and sends replies in order.

A connection is in one of these states, and starts its next request only if it is free:
  free       no request in progress, not muted, the peer reads its responses
  busy       a request is in progress
  muted      a quota delays the next request; finished responses are still sent
  congested  more than `write_queue_max_bytes` of responses are unsent
While a connection is not free, arriving frames are queued up to `pipelined_max_bytes`. Then reading pauses, and TCP
slows the peer down. A free connection also queues frames when this pass of the loop has started enough requests
(`turns`).
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from penstock.net.framing import SIZE, PartialFrame, foreign_protocol, size_refusal
from penstock.net.later import Later, result_of
from penstock.net.outbox import Outbox
from penstock.net.reply import Close, Reply, WatchedReply
from penstock.net.tls import peer_certificate
from penstock.net.traffic import NONE, Traffic, traffic_of
from penstock.net.turns import TASK_COST

if TYPE_CHECKING:
    from penstock.net.server import Listener, Server


Dispatch = Callable[["Connection", memoryview], Reply | Later[Reply]]

_unpack_size = SIZE.unpack_from
EAGER_TASKS = sys.version_info >= (3, 12)


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_busy",
        "_closing",
        "_congested",
        "_eof",
        "_head",
        "_held_bytes",
        "_make",
        "_mute_timer",
        "_muted_until",
        "_on_close",
        "_outbox",
        "_partial",
        "_partial_since",
        "_queue",
        "_queued_bytes",
        "_reading",
        "_rest",
        "_server",
        "_task",
        "_transport",
        "_waits_for_budget",
        "_waits_for_turn",
        "active_tick",
        "client_id",
        "id",
        "idle_slot",
        "listener",
        "max_frame_bytes",
        "peer_host",
        "peer_port",
        "principal",
        "requests",
        "state",
        "waiting_since_ns",
    )

    def __init__(self, server: "Server", listener: "Listener") -> None:
        self._server = server
        self.listener = listener
        self.id = 0
        self.peer_host = ""
        self.peer_port = 0
        self.principal: Any = None
        self.client_id: str | None = None
        self.state: dict[str, Any] = {}
        """Values that the dispatcher keeps here: client software, negotiated versions, sessions."""
        self.requests = 0
        self.waiting_since_ns = 0
        """When the connection began to wait for its turn; 0 unless its request starts after such a wait."""
        self.max_frame_bytes = server.limits.socket_request_max_bytes
        """The largest accepted request. The dispatcher may lower this limit, for example before authentication."""
        self.active_tick = 0
        self.idle_slot = 0
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._rest = b""
        """Bytes that arrived when the queue of frames was full. They are cut into frames when the queue is empty."""
        self._partial: PartialFrame | None = None
        self._partial_since = 0.0
        self._queue: deque[memoryview] | None = None
        self._queued_bytes = 0
        self._held_bytes = 0
        self._busy = False
        self._task: asyncio.Future[Any] | None = None
        self._make: Callable[[asyncio.Future[Any]], Reply] = result_of
        self._congested = False
        self._mute_timer: asyncio.Handle | None = None
        self._muted_until = 0.0
        self._reading = True
        self._waits_for_budget = False
        self._waits_for_turn = False
        self._eof = False
        self._closing = False
        self._on_close: list[Callable[[], None]] | None = None
        self._outbox = Outbox(server.unsent)

    def __repr__(self) -> str:
        return f"connection {self.id} from {self.peer_host}:{self.peer_port} on {self.listener.name}"

    # Methods for the dispatcher and the broker

    @property
    def closed(self) -> bool:
        """Returns True if the connection is closed or about to close, so that a response would be lost."""
        return self._closing or self._transport is None

    @property
    def busy(self) -> bool:
        return self._busy

    def close(self, reason: str, kind: str = "closed") -> None:
        """Closes the connection once all finished responses are sent. Drops requests that have not started.

        `kind` groups log lines, because the number of lines of each kind is limited.
        """
        if not self._closing:
            self._server.log.warning(kind, f"{self!r} closed: {reason}")
            self._shut()

    def mute_for(self, seconds: float) -> None:
        """Delays further requests of this connection for the given time.

        If called several times, the latest end time applies.
        """
        until = self._server.loop.time() + seconds
        if self._mute_timer is not None:
            if self._muted_until >= until:
                return
            self._mute_timer.cancel()
        self._muted_until = until
        self._mute_timer = self._server.loop.call_at(until, self._unmute)

    @property
    def muted_s(self) -> float:
        """Returns the remaining time in seconds for which `mute_for` delays requests of this connection."""
        return 0.0 if self._mute_timer is None else max(0.0, self._muted_until - self._server.loop.time())

    def on_close(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once, when the connection is closed; immediately if it is closed already."""
        if self._transport is None:
            callback()
        elif self._on_close is None:
            self._on_close = [callback]
        else:
            self._on_close.append(callback)

    def peer_certificate(self) -> dict[str, Any] | None:
        """Returns the verified certificate of a TLS client, as `tls.peer_certificate` does; None without a
        certificate."""
        return None if self._transport is None else peer_certificate(self._transport.get_extra_info("ssl_object"))

    def traffic(self) -> Traffic:
        return NONE if self._transport is None else traffic_of(self._transport)

    # Transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outbox.open(self._transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer_host, self.peer_port = str(peer[0]), int(peer[1])
        self._transport.set_write_buffer_limits(high=self._server.limits.write_queue_max_bytes)
        if not self._server.admit(self):
            self._shut(abort=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self.listener.leave(self.traffic())
        self._transport = None
        self._congested = False
        self._outbox.close()
        self._server.forget(self)
        if self._partial is not None:
            self._drop_partial()
        if self._waits_for_budget:
            self._waits_for_budget = False
            self._server.budget.forget(self._budget_freed)
        if self._on_close is not None:
            callbacks, self._on_close = self._on_close, None
            for callback in callbacks:
                callback()
        # Requests of a peer that sends them without waiting for answers and hangs up are still served.
        if not self._closing and self._queue is not None:
            self._unmute()
        else:
            self._closing = True
            self._drop_queue()
            self._unmute()

    def eof_received(self) -> bool:
        self._eof = True
        # True keeps the transport open: the requests received so far are answered first, then `_settle` closes it.
        return self.listener.tls is None and (self._busy or self._queue is not None)

    def pause_writing(self) -> None:
        self._congested = True
        if self._transport is not None:
            self._outbox.unread(self._server.loop.time())
            if self._server.unsent.overdrawn:
                self._server.loop.call_soon(self._server.cut_slow_readers)  # not from inside the transport's write
            self._server.watch_slow_readers()

    def slow_reader_since(self) -> float | None:
        """Returns the time at which the oldest unread response was written; None if the peer has read all responses."""
        return self._outbox.unsent_since if self._outbox.unsent_bytes else None

    @property
    def unsent_bytes(self) -> int:
        return self._outbox.unsent_bytes

    def resume_writing(self) -> None:
        self._congested = False
        self._outbox.read()
        self.active_tick = self._server.wheel.now
        self._continue()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._partial is not None:
            return self._partial.tail()
        if self._head:
            # Only a part of a size prefix has arrived: the next read continues behind it.
            count = len(self._head)
            self._server.receive_view[:count] = self._head
            return self._server.receive_view[count:]
        return self._server.receive_view

    def buffer_updated(self, nbytes: int) -> None:
        self.active_tick = self._server.wheel.now
        if self._closing:
            return
        if self._partial is not None:
            if self._partial.advance(nbytes):
                frame = self._partial.take()
                self._drop_partial()
                self._frame(frame)
        else:
            self._parse(nbytes)
        if self._outbox.buffers:
            self._outbox.flush()
        if self._queue is not None or self._server.budget.limit > 0 or self._eof:
            self._settle()

    # Bytes to frames

    def _parse(self, count: int) -> None:
        view = self._server.receive_view
        if self._head:
            count += len(self._head)
            self._head = b""
        self._cut(view, count)

    def _cut(self, view: memoryview, count: int) -> None:
        most = self._server.limits.pipelined_max_requests
        position = 0
        while count - position >= 4:
            size: int = _unpack_size(view, position)[0]
            start = position + 4
            if not 0 < size <= self.max_frame_bytes:
                self._refuse(size, bytes(view[position:start]))
                return
            end = start + size
            if end > count:
                self._begin_partial(size, view[start:count])
                return
            if self._queue is not None and len(self._queue) >= most:
                self._keep_rest(bytes(view[position:count]))
                return
            # A copy, so that the handler may keep the frame while other connections use the receive buffer.
            self._frame(memoryview(bytearray(view[start:end])))
            if self._closing:
                return
            position = end
        if position < count:
            self._head = bytes(view[position:count])

    def _keep_rest(self, rest: bytes) -> None:
        """Stores the received bytes whose requests can't start yet. They stay one block of bytes, because one read may
        contain thousands of small requests."""
        self._rest = rest
        self._queued_bytes += len(rest)
        self._server.budget.take(len(rest))

    def _cut_rest(self) -> None:
        rest, self._rest = self._rest, b""
        self._queued_bytes -= len(rest)
        self._cut(memoryview(rest), len(rest))
        self._server.budget.give_back(len(rest))
        if self._transport is None and self._partial is not None:
            self._drop_partial()  # the peer is gone, so this request never becomes complete

    def _begin_partial(self, size: int, first: memoryview) -> None:
        self._partial = PartialFrame(size, first, allocated=self._server.budget.take)
        self._partial_since = self._server.loop.time()

    def _drop_partial(self) -> None:
        partial = self._partial
        assert partial is not None
        self._partial = None
        self._server.budget.give_back(partial.capacity)

    def slow_frame_since(self) -> float | None:
        """Returns the time at which the incomplete frame began to arrive; None if there is no incomplete frame."""
        return self._partial_since if self._partial is not None else None

    def _refuse(self, size: int, start: bytes) -> None:
        foreign = foreign_protocol(start) if self.requests == 0 else None
        if foreign:
            speaks = self.listener.security_protocol
            self.close(
                f"it sent {foreign}, but listener {self.listener.name} speaks Kafka's protocol ({speaks})", foreign
            )
        else:
            self.close(size_refusal(size, self.max_frame_bytes), "size")

    # Frames to replies

    def _frame(self, frame: memoryview) -> None:
        turns = self._server.turns
        if (
            self._busy
            or self._congested
            or self._mute_timer is not None
            or self._queue is not None
            or (turns.open and not turns.may_start())
        ):
            if self._queue is None:
                self._queue = deque()
            self._queue.append(frame)
            self._queued_bytes += len(frame)
            self._server.budget.take(len(frame))
            self._wait_for_turn()
        else:
            self._start(frame)

    def _start(self, frame: memoryview) -> None:
        self.requests += 1
        turns = self._server.turns
        if not turns.open:
            turns.begin()
        try:
            reply = self._server.dispatch(self, frame)
        except Exception as error:
            self._failed(error)
            return
        if type(reply) is list:
            if not self._closing:
                self._outbox.put(reply)
        elif reply is None:
            pass
        elif isinstance(reply, Close):
            self.close(reply.reason)
        elif isinstance(reply, WatchedReply):
            if not self._closing:
                self._outbox.put_watched(reply, self._server.loop)
        else:
            self._await(reply, len(frame))  # type: ignore[arg-type]

    def _await(self, reply: Later[Reply], size: int) -> None:
        loop = self._server.loop
        source = reply.source
        future: asyncio.Future[Any]
        if isinstance(source, asyncio.Future):
            future = source
        elif EAGER_TASKS:
            future = asyncio.Task(source, loop=loop, eager_start=True)  # type: ignore[call-arg, unused-ignore]
        else:
            self._server.turns.charge(TASK_COST)
            future = loop.create_task(source)
        self._make = reply.make
        if future.done():
            self._answer(future)
            return
        self._busy = True
        self._task = future
        self._held_bytes = size
        self._server.budget.take(size)
        self._server.in_progress[self] = None
        future.add_done_callback(self._finished)

    def _finished(self, future: "asyncio.Future[Any]") -> None:
        self._busy = False
        self._task = None
        server = self._server
        server.in_progress.pop(self, None)
        self._answer(future)
        held, self._held_bytes = self._held_bytes, 0
        if self._queue is not None:
            self._drain()
        else:
            if self._outbox.buffers:
                self._outbox.flush()
            if self._eof:
                self._settle()
        server.budget.give_back(held)
        if server.stopping:
            server.request_finished()

    def _answer(self, future: "asyncio.Future[Any]") -> None:
        make, self._make = self._make, result_of
        if future.cancelled():
            self.close("its request was cancelled", "cancelled")
            return
        try:
            reply: Reply = make(future)
        except Exception as error:
            self._failed(error)
            return
        if type(reply) is list:
            if not self._closing:
                self._outbox.put(reply)
        elif isinstance(reply, WatchedReply):
            if not self._closing:
                self._outbox.put_watched(reply, self._server.loop)
        elif isinstance(reply, Close):
            self.close(reply.reason)

    def _failed(self, error: Exception) -> None:
        """Closes the connection after an exception of the dispatcher.

        The exception is unexpected, because the dispatcher handles all expected errors itself.
        """
        self._server.log.exception("request failed", f"an unexpected error in a request handler closes {self!r}", error)
        self.close("its request failed; the log has the exception", "failed")

    # The queue behind the request in progress

    def _continue(self) -> None:
        if self._queue is not None or self._eof or not self._reading:
            self._drain()

    def take_turn(self) -> None:
        self._waits_for_turn = False
        self._drain(1)
        if not self._waits_for_turn:
            self.waiting_since_ns = 0

    def _wait_for_turn(self) -> None:
        """Asks the event loop to start this connection's next request in its next pass.

        Does nothing while the connection can't start a request: for example, while an earlier request is in progress.
        """
        if not (self._waits_for_turn or self._busy or self._congested or self._mute_timer is not None or self._closing):
            self._waits_for_turn = True
            self._server.turns.wait(self)
            self.waiting_since_ns = self._server.turns.now_ns

    def _drain(self, most: int = sys.maxsize) -> None:
        queue = self._queue
        turns = self._server.turns
        while (queue or self._rest) and not (
            self._busy or self._congested or self._mute_timer is not None or self._closing
        ):
            if not queue:
                self._cut_rest()
                continue
            if not most or (turns.open and not turns.may_start()):
                self._wait_for_turn()
                break
            most -= 1
            frame = queue.popleft()
            self._queued_bytes -= len(frame)
            self._server.budget.give_back(len(frame))
            self._start(frame)
        if not queue and not self._rest:
            self._queue = None
        if self._outbox.buffers:
            self._outbox.flush()
        self._settle()

    def _settle(self) -> None:
        """Pauses reading if the queue of requests or the server's memory budget is full; otherwise resumes reading.

        If the peer has hung up, closes the connection after the last response.
        """
        if self._closing or self._transport is None:
            return
        if self._eof and not self._busy and self._queue is None:
            self._shut()
            return
        limits = self._server.limits
        queue = self._queue
        budget = self._server.budget
        full = queue is not None and (
            bool(self._rest)
            or self._queued_bytes >= limits.pipelined_max_bytes
            or len(queue) >= limits.pipelined_max_requests
        )
        if budget.exhausted and self._partial is None and not self._waits_for_budget:
            self._waits_for_budget = True
            budget.wait(self._budget_freed)
            self._server.watch_slow_frames()
        read = not (full or self._waits_for_budget or self._eof)
        if read != self._reading:
            self._reading = read
            if read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _budget_freed(self) -> None:
        self._waits_for_budget = False
        self._settle()

    def _unmute(self) -> None:
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._mute_timer = None
        self._continue()

    # The end

    def finish(self) -> None:
        """Stops reading and drops requests that have not started.

        Closes the connection once no request is in progress.
        """
        self._drop_queue()
        self._eof = True
        self._settle()

    def abort(self) -> None:
        """Closes the connection at once and cancels the request in progress."""
        self._shut(abort=True)
        if self._task is not None:
            self._task.cancel()

    def idle_expired(self) -> bool:
        if self._busy or self._queue is not None or self._mute_timer is not None:
            return self._congested and self._expire("it read no answers")
        return self._expire("idle")

    def _expire(self, why: str) -> bool:
        limit = self._server.limits.connections_max_idle_ms
        self._server.logger.debug("%r closed: %s for %d ms (connections.max.idle.ms)", self, why, limit)
        self._shut(abort=self._congested)
        return True

    def _drop_queue(self) -> None:
        if self._queue is not None:
            self._queue = None
            self._rest = b""
            freed, self._queued_bytes = self._queued_bytes, 0
            self._server.budget.give_back(freed)

    def _shut(self, abort: bool = False) -> None:
        self._closing = True
        self._drop_queue()
        if self._transport is not None:
            self._outbox.flush()
            if abort:
                self._transport.abort()
            else:
                self._transport.close()
