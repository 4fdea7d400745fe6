"""Cuts byte streams into frames, for server and client. A frame is a size (four bytes, big-endian) and its content."""

import struct
from collections.abc import Callable

SIZE = struct.Struct(">i")

# An incomplete frame gets memory in proportion to the bytes that have arrived, not to its announced size.
PARTIAL_MIN_BYTES = 16 * 1024
PARTIAL_GROWTH = 4
# A client expects its responses: a response of up to this size gets its memory at once, and is never copied to grow.
ANSWER_AT_ONCE_BYTES = 16 * 1024 * 1024

Buffer = bytes | bytearray | memoryview


class PartialFrame:
    """Collects a frame that arrives in several reads. Each read goes directly into a buffer, which grows to the frame's
    size."""

    __slots__ = ("_allocated", "_buffer", "received", "size")

    def __init__(
        self,
        size: int,
        first: memoryview,
        at_once: int = PARTIAL_MIN_BYTES,
        allocated: Callable[[int], None] | None = None,
    ) -> None:
        """Creates the first buffer. At each allocation, calls `allocated` with the number of new bytes."""
        self.size = size
        self.received = len(first)
        self._allocated = allocated
        self._buffer = bytearray(min(size, max(at_once, PARTIAL_GROWTH * len(first))))
        self._buffer[: self.received] = first
        if allocated is not None:
            allocated(len(self._buffer))

    @property
    def capacity(self) -> int:
        return len(self._buffer)

    def tail(self) -> memoryview:
        """Returns the free part of the buffer, into which the next bytes of the frame are read."""
        if self.received == len(self._buffer):
            self._grow()
        return memoryview(self._buffer)[self.received :]

    def advance(self, count: int) -> bool:
        """Records that `count` bytes were read into the free part of the buffer. Returns True if the frame is
        complete."""
        self.received += count
        return self.received == self.size

    def take(self) -> memoryview:
        return memoryview(self._buffer)

    def _grow(self) -> None:
        held = len(self._buffer)
        capacity = min(self.size, PARTIAL_GROWTH * held)
        try:
            self._buffer.extend(bytes(capacity - held))
        except BufferError:
            # Some transports still hold the previous tail when they ask for the next one.
            grown = bytearray(capacity)
            grown[: self.received] = self._buffer
            self._buffer = grown
        if self._allocated is not None:
            self._allocated(capacity - held)


def size_refusal(size: int, max_bytes: int) -> str:
    """Returns the log text for a connection that is closed because it announced a request of a forbidden size."""
    limit = f", over socket.request.max.bytes={max_bytes}" if size > 0 else ""
    return f"it announced a request of {size} bytes{limit}"


def foreign_protocol(start: bytes) -> str | None:
    """Returns the name of another protocol, such as HTTP, if the first bytes of a connection look like that protocol;
    otherwise None."""
    if start[:2] == b"\x16\x03":
        return "a TLS handshake"
    if start in _HTTP_STARTS:
        return "an HTTP request"
    return None


_HTTP_STARTS = frozenset({b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI "})


class FrameError(Exception):
    """Raised if the stream announces a frame with an impossible size or a size above the limit."""


class FrameReader:
    """Cuts one stream into frames, for clients, which receive few and large responses.

    The connections of a server do not use this class: they read into a buffer that they all share.
    """

    __slots__ = ("_head", "_partial", "_view", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int, buffer_bytes: int = 64 * 1024) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._view = memoryview(bytearray(buffer_bytes))
        self._head = 0
        self._partial: PartialFrame | None = None

    def buffer(self) -> memoryview:
        """Returns the buffer into which the next bytes of the stream are read."""
        return self._partial.tail() if self._partial is not None else self._view[self._head :]

    def received(self, count: int) -> list[memoryview]:
        """Takes over `count` bytes that were read into the buffer. Returns the frames that are now complete.

        Each frame has its own memory. Raises FrameError.
        """
        if self._partial is not None:
            if not self._partial.advance(count):
                return []
            whole = self._partial.take()
            self._partial = None
            return [whole]
        frames = []
        view = self._view
        end = self._head + count
        position = 0
        while end - position >= 4:
            size: int = SIZE.unpack_from(view, position)[0]
            if not 0 <= size <= self.max_frame_bytes:
                raise FrameError(
                    f"the peer announced a frame of {size} bytes, and at most {self.max_frame_bytes} are accepted"
                )
            position += 4
            if position + size > end:
                self._partial = PartialFrame(size, view[position:end], ANSWER_AT_ONCE_BYTES)
                position = end
                break
            frames.append(memoryview(bytes(view[position : position + size])))
            position += size
        self._head = end - position
        view[: self._head] = bytes(view[position:end])
        return frames
