"""Writes server-sent events, and limits the number of streams that are open at the same time.

A stream is an asynchronous iterator. The connection asks for the next part only when the peer has taken all earlier
bytes. So a stream buffers nothing for a slow peer, and a peer that takes no bytes for some time is cut off. A source of
events yields HEARTBEAT after HEARTBEAT_S seconds without an event, so that a lost peer is noticed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

from penstock.http.messages import encoded
from penstock.http.shares import Shares

#: Streams open at the same time, in all and of one user. Other requests keep the rest of the connections.
MAX_STREAMS, MAX_STREAMS_OF_USER = 16, 8
HEARTBEAT_S = 10.0
HEARTBEAT = b": alive\n\n"
EVENT_STREAM = "text/event-stream"

Chunks = AsyncGenerator[bytes, None]


def message(kind: str, value: Any) -> bytes:
    """Returns one server-sent event, with the JSON on one data line."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encoded(value).json)


class Streams:
    """Limits the number of open streams, and gives each stream a slot number below MAX_STREAMS."""

    def __init__(self) -> None:
        self._shares = Shares("streams", "close one", MAX_STREAMS, MAX_STREAMS_OF_USER)
        self._free = list(range(MAX_STREAMS))

    def open(self, user: str, make: Callable[[int], Chunks]) -> EventStream:
        """Opens a stream of a user. Calls `make` with the stream's slot number to get the source of its events.

        Raises LimitReachedError.
        """
        self._shares.take(user)
        slot = self._free.pop()

        def release() -> None:
            self._free.append(slot)
            self._shares.give_back(user)

        return EventStream(make(slot), release)

    @property
    def count(self) -> int:
        return self._shares.count


class EventStream:
    """Represents an open stream. The reader must call `aclose`, even if it has read nothing."""

    def __init__(self, chunks: Chunks, release: Callable[[], None]) -> None:
        self._chunks = chunks
        self._release: Callable[[], None] | None = release

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()
            await self._chunks.aclose()
