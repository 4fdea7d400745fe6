"""Sends the responses of one connection, and counts the bytes that the peer has not read yet.

Small responses of one pass of the event loop are joined into one write. A full transport buffer shows that the peer
does not read. From then on the bytes in this buffer count against the server's budget for unsent responses.
"""

from __future__ import annotations

import asyncio

from penstock.net.framing import SIZE, Buffer
from penstock.net.limits import ByteBudget
from penstock.net.reply import WatchedReply

# Up to this size, one copy into one buffer costs less than a gathered write of small buffers.
JOIN_MAX_BYTES = 16 * 1024
# Small answers of one pass are collected, up to this many buffers, before one write.
OUT_MAX_BUFFERS = 64
# How often a watched response asks whether it is sent, at first and at last, if the peer reads slowly.
FIRST_LOOK_S = 0.001
LAST_LOOK_S = 1.0
_pack_size = SIZE.pack


class Outbox:
    __slots__ = ("_budget", "_gathers", "_transport", "buffers", "unsent_bytes", "unsent_since")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._transport: asyncio.Transport | None = None
        self._gathers = False
        self.buffers: list[Buffer] = []
        #: Bytes that the peer has not read since `unsent_since`; 0 while the peer keeps up.
        self.unsent_bytes = 0
        self.unsent_since = 0.0

    def open(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        # In Python 3.12 and 3.13, asyncio's `writelines` does not call `pause_writing`: the unsent answers of a peer
        # that never reads would grow without bound.
        self._gathers = type(transport).__module__.startswith("uvloop")

    def close(self) -> None:
        """Drops all responses that are not sent, because the connection is lost."""
        self._transport = None
        self.read()

    def put(self, reply: list[Buffer]) -> None:
        """Adds a response, with its size in front, to the responses to write.

        Writes all added responses immediately if this response is large or if many responses were added.
        """
        size = sum(map(len, reply))
        buffers = self.buffers
        if size <= JOIN_MAX_BYTES:
            buffers.append(b"".join((_pack_size(size), *reply)))
            if len(buffers) > OUT_MAX_BUFFERS:
                self.flush()
        else:
            buffers.append(_pack_size(size))
            buffers += reply
            self.flush()

    def put_watched(self, reply: WatchedReply, loop: asyncio.AbstractEventLoop) -> None:
        """Writes a response immediately, and calls the response's `sent` when the transport has sent all bytes."""
        self.put(reply)
        self.flush()
        self._look(reply, loop, 0.0)

    def _look(self, reply: WatchedReply, loop: asyncio.AbstractEventLoop, after_s: float) -> None:
        transport = self._transport
        if transport is None or not transport.get_write_buffer_size():
            reply.sent()
        elif not after_s:  # uvloop writes at the end of its pass
            loop.call_soon(self._look, reply, loop, FIRST_LOOK_S)
        else:
            loop.call_later(after_s, self._look, reply, loop, min(2 * after_s, LAST_LOOK_S))

    def flush(self) -> None:
        """Writes all collected responses to the transport."""
        # `buffers` is emptied first: the transport's write may call `resume_writing`, which flushes again.
        buffers, self.buffers = self.buffers, []
        transport = self._transport
        if transport is not None and buffers:
            if len(buffers) == 1:
                transport.write(buffers[0])
            elif self._gathers:
                transport.writelines(buffers)
            elif max(map(len, buffers)) <= JOIN_MAX_BYTES:
                transport.write(b"".join(buffers))
            else:  # joining answers of many megabytes would take too long
                for part in buffers:
                    transport.write(part)

    def unread(self, now_s: float) -> None:
        """Counts the bytes in the transport's buffer against the budget. Called when the peer stops reading."""
        if self._transport is not None:
            self.unsent_bytes = self._transport.get_write_buffer_size()
            self.unsent_since = now_s
            self._budget.take(self.unsent_bytes)

    def read(self) -> None:
        """Releases the bytes that `unread` counted against the budget. Called when the peer has read them, or when the
        connection is closed."""
        unsent, self.unsent_bytes = self.unsent_bytes, 0
        self._budget.give_back(unsent)
