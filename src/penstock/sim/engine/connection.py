"""Simulates a TCP connection: its two ends, and the two streams of bytes between them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final, Protocol

from penstock.check import check
from penstock.sim.engine.links import RETRANSMIT_MAX_S, RETRANSMIT_S, Channel, Link
from penstock.sim.engine.loop import ProcessLoop, Timeline
from penstock.sim.engine.trace import Trace

#: At most this many bytes are on the wire or unread in the receiver's kernel.
WINDOW_BYTES = 256 * 1024
HIGH_WATER_BYTES = 64 * 1024


class _Signal:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


END: Final = _Signal("FIN")
RESET: Final = _Signal("RST")


class ConnectionHost(Protocol):
    """Defines the methods of a simulated host that its connections call."""

    name: str
    up: bool
    endpoints: dict[Endpoint, None]


class ConnectionFabric(Protocol):
    """Defines the methods of the simulated network that its connections call."""

    timeline: Timeline
    random: Random
    trace: Trace
    split: float
    join: float
    give_up_s: float
    taps: list[Callable[[Endpoint, bytes], None]]


class Stream:
    """Simulates one direction of a connection: the unsent bytes, and the channel that carries the sent bytes."""

    __slots__ = (
        "_channel",
        "_fabric",
        "_receiver",
        "_sender",
        "_unsent",
        "cut_after",
        "ended",
        "unsent_bytes",
        "window",
    )

    def __init__(self, fabric: ConnectionFabric, link: Link, sender: Endpoint, receiver: Endpoint) -> None:
        self._fabric = fabric
        self._sender = sender
        self._receiver = receiver
        self._channel = Channel(link, self._arrived)
        self._unsent: deque[bytes] = deque()
        self.unsent_bytes = 0
        self.window = WINDOW_BYTES
        self.ended: _Signal | None = None
        #: The connection breaks for both ends after this many more bytes; None: it does not.
        self.cut_after: int | None = None

    def write(self, data: bytes) -> None:
        self._unsent.append(data)
        self.unsent_bytes += len(data)
        self.pump()

    def pump(self) -> None:
        """Sends as many of the unsent bytes as the receiver's window allows."""
        unsent, split, random = self._unsent, self._fabric.split, self._fabric.random
        while unsent and self.window > 0 and not self.ended:
            head = unsent.popleft()
            size = min(len(head), self.window)
            if split and size > 1 and random.random() < split:
                size = 1 + int(random.random() * size)
            if size < len(head):
                unsent.appendleft(head[size:])
                head = head[:size]
            self.unsent_bytes -= size
            self.window -= size
            self._send(head)
        self._sender.drained()

    def _send(self, data: bytes) -> None:
        if self.cut_after is not None:
            if len(data) >= self.cut_after:
                self._channel.send(data[: self.cut_after], self.cut_after)
                self.end(RESET)
                self._sender.receive(RESET)
                return
            self.cut_after -= len(data)
        self._channel.send(data, len(data))

    def end(self, signal: _Signal) -> None:
        """Ends the stream with `signal`; unsent bytes are dropped."""
        if self.ended is RESET or self.ended is signal:
            return
        self.ended = signal
        self.drop()
        self._channel.send(signal)

    def hold(self) -> None:
        """Holds back all bytes in flight and all bytes sent from now on, until `release`."""
        self._channel.hold()

    def release(self) -> None:
        self._channel.release()

    def drop(self) -> None:
        self._unsent.clear()
        self.unsent_bytes = 0

    def _arrived(self, item: bytes | _Signal) -> None:
        fabric = self._fabric
        if not self._receiver.host.up:
            self._send_again(fabric.timeline.now + fabric.give_up_s, RETRANSMIT_S)
            return
        shown = f"{len(item)} B" if type(item) is bytes else repr(item)
        fabric.trace.note(self._receiver.host.name, f"< {self._sender.host.name} {shown}")
        self._receiver.receive(item)

    def _send_again(self, until: float, pause: float) -> None:
        """Repeats the transmission while the receiver's machine is off, as the sender's kernel does. Gives up at the
        time `until`.

        When the receiver is on again, it does not know the connection any more and resets it.
        """
        timeline = self._fabric.timeline

        def attempt() -> None:
            if self._receiver.host.up:
                self._receiver.receive(END)
            elif timeline.now >= until:
                self._sender.timed_out()
            else:
                self._send_again(until, min(2 * pause, RETRANSMIT_MAX_S))

        timeline.at(timeline.now + pause, attempt)

    def consumed(self, size: int) -> None:
        """Notes that the receiver has read `size` bytes, so that the sender may send as many more after the link's
        delay."""
        self.window += size
        if self._unsent:
            timeline = self._fabric.timeline
            timeline.at(timeline.now + self._channel.link.conditions.delay_s, self.pump)


class Endpoint(asyncio.Transport):
    """Simulates one end of a connection: the asyncio transport of its process."""

    def __init__(
        self,
        fabric: ConnectionFabric,
        loop: ProcessLoop,
        host: ConnectionHost,
        peername: tuple[str, int],
        *,
        outgoing: bool,
    ) -> None:
        super().__init__({"peername": peername, "sockname": (host.name, 0)})
        self.loop = loop
        self.host = host
        self.outgoing = outgoing
        self.peer: Endpoint
        self.out: Stream
        self._fabric = fabric
        self._protocol: asyncio.BaseProtocol | None = None
        self._received: deque[bytes | _Signal] = deque()
        self._reading = True
        self._read_scheduled = False
        self._closing = False
        self._closed = False
        self._gone = False
        self._write_paused = False
        self._resuming = False
        self._high = HIGH_WATER_BYTES
        self._low = HIGH_WATER_BYTES // 4

    def __repr__(self) -> str:
        return f"<{self.host.name}→{self.get_extra_info('peername')[0]}>"

    # Calls from the network, outside any process.

    def receive(self, item: bytes | _Signal) -> None:
        if self._closed or self._gone:
            if item is not RESET:
                self.out.end(RESET)
            return
        self._received.append(item)
        if not self._read_scheduled:
            self._schedule_read()

    def drained(self) -> None:
        """Called when unsent bytes have been sent: closes a closing connection once all bytes are sent, or resumes a
        paused writer."""
        out = self.out
        if self._closing and not out.unsent_bytes and not out.ended:
            out.end(END)
            self.loop.call_soon(self._lost, None)
        elif self._write_paused and out.unsent_bytes <= self._low and not self._resuming:
            self._resuming = True
            self.loop.call_soon(self._resume_writing)

    def timed_out(self) -> None:
        if not self._closed and not self._gone:
            self.loop.call_soon(self._lost, TimeoutError("the connection timed out"))

    def killed(self) -> None:
        """Closes the end because its process died or dropped the connection; the kernel notifies the peer."""
        self._forget()
        self.out.end(RESET if self._received else END)

    def vanish(self) -> None:
        """Forgets the connection because the machine lost power; the peer is not notified."""
        self._gone = True
        self.out.drop()

    # Calls in the process.

    def accept(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        if not self._closed and not self._gone:
            self.attach(factory())

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self._schedule_read()

    def _schedule_read(self) -> None:
        if self._received and self._reading and not self._read_scheduled and self._protocol is not None:
            self._read_scheduled = True
            self.loop.call_soon(self._read)

    def _read(self) -> None:
        self._read_scheduled = False
        if self._closed or not self._reading or not self._received:
            return
        item = self._received.popleft()
        if isinstance(item, _Signal):
            self._read_signal(item)
        elif not self._closing:
            self._feed(self._joined(item) if self._received else item)
        if self._received:
            self._schedule_read()

    def _read_signal(self, signal: _Signal) -> None:
        if signal is RESET:
            self._lost(ConnectionResetError("the peer reset the connection"))
            return
        check(self._protocol is not None, "a signal is read only once the end has a protocol")
        keep = isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol) and self._protocol.eof_received()
        if not keep:
            self.close()

    def _joined(self, first: bytes) -> bytes:
        """Returns `first` alone or, at random, joined with all bytes received after it."""
        received = self._received
        if isinstance(received[0], _Signal) or self._fabric.random.random() >= self._fabric.join:
            return first
        pieces = [first]
        while received and isinstance(received[0], bytes):
            pieces.append(received.popleft())  # type: ignore[arg-type]
        return b"".join(pieces)

    def _feed(self, data: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            left = len(data)
            while left and not self._closing:
                buffer = memoryview(protocol.get_buffer(left))
                size = min(len(buffer), left)
                start = len(data) - left
                buffer[:size] = data if size == len(data) else data[start : start + size]
                left -= size
                protocol.buffer_updated(size)
        elif isinstance(protocol, asyncio.Protocol):
            protocol.data_received(data)
        self.peer.out.consumed(len(data))

    def _lost(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._forget()
        self.out.drop()
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _forget(self) -> None:
        self._closed = self._closing = True
        self.host.endpoints.pop(self, None)

    # asyncio.Transport

    def write(self, data: Any) -> None:
        if not data or self._closing or self._closed or self.loop.dead:
            return
        data = bytes(data)
        for tap in self._fabric.taps:
            tap(self, data)
        self.out.write(data)
        self._maybe_pause()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def _maybe_pause(self) -> None:
        if self.out.unsent_bytes > self._high and not self._write_paused and self._protocol is not None:
            self._write_paused = True
            self._protocol.pause_writing()

    def _resume_writing(self) -> None:
        self._resuming = False
        if self._write_paused and self.out.unsent_bytes <= self._low and not self._closed:
            self._write_paused = False
            if self._protocol is not None:
                self._protocol.resume_writing()

    def close(self) -> None:
        if self._closing or self.loop.dead:
            return
        self._closing = True
        self.drained()

    def abort(self) -> None:
        if self._closed or self.loop.dead:
            return
        self._closing = True
        self.out.end(RESET)
        self.loop.call_soon(self._lost, None)

    def is_closing(self) -> bool:
        return self._closing

    def write_eof(self) -> None:
        self.out.end(END)

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._schedule_read()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = (HIGH_WATER_BYTES if low is None else 4 * low) if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self.out.unsent_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
