"""Writes server-sent events, and limits the number of streams that are open at the same time.

A stream is an asynchronous iterator. The connection asks for the next part only when the peer has taken all earlier
bytes. So a stream buffers nothing for a slow peer, and a peer that takes no bytes for some time is cut off. A source of
events yields HEARTBEAT after HEARTBEAT_S seconds without an event, so that a lost peer is noticed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

#: Streams open at the same time. Other requests keep the rest of the connections.
MAX_STREAMS = 16
HEARTBEAT_S = 10.0
HEARTBEAT = b": alive\n\n"
EVENT_STREAM = "text/event-stream"

Chunks = AsyncGenerator[bytes, None]


def message(kind: str, value: Any) -> bytes:
    """Returns one server-sent event, with the JSON on one data line."""
    return f"event: {kind}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


class TooManyStreamsError(Exception):
    """Raised if MAX_STREAMS streams are open already."""


class Streams:
    """Counts open streams, and gives each a slot number below MAX_STREAMS."""

    def __init__(self) -> None:
        self._free = list(range(MAX_STREAMS))

    def open(self, make: Callable[[int], Chunks]) -> EventStream:
        """Opens a stream. Calls `make` with the stream's slot number to get the source of its events.

        Raises TooManyStreamsError.
        """
        if not self._free:
            raise TooManyStreamsError
        slot = self._free.pop()
        return EventStream(make(slot), lambda: self._free.append(slot))

    @property
    def count(self) -> int:
        return MAX_STREAMS - len(self._free)


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
