"""A frame: four bytes of size, big-endian, then that many bytes. What the server and the client share of it."""

import struct

SIZE = struct.Struct(">i")

# A frame that is still arriving owns room in proportion to what has arrived, never to what its size announces.
PARTIAL_MIN_BYTES = 16 * 1024
PARTIAL_GROWTH = 4
# Who waits for an answer has asked for it: up to this size it gets its room at once, and is not moved while it grows.
ANSWER_AT_ONCE_BYTES = 16 * 1024 * 1024

Buffer = bytes | bytearray | memoryview


class PartialFrame:
    """A frame that arrives in several reads, received straight into a buffer that ends up exactly its size."""

    __slots__ = ("_buffer", "received", "size")

    def __init__(self, size: int, first: memoryview, at_once: int = PARTIAL_MIN_BYTES) -> None:
        self.size = size
        self.received = len(first)
        self._buffer = bytearray(min(size, max(at_once, PARTIAL_GROWTH * len(first))))
        self._buffer[: self.received] = first

    @property
    def capacity(self) -> int:
        return len(self._buffer)

    def tail(self) -> memoryview:
        """Where the next bytes belong."""
        if self.received == len(self._buffer):
            self._grow()
        return memoryview(self._buffer)[self.received :]

    def advance(self, count: int) -> bool:
        """Takes note of `count` bytes written to the tail; True when the frame is whole."""
        self.received += count
        return self.received == self.size

    def take(self) -> memoryview:
        return memoryview(self._buffer)

    def _grow(self) -> None:
        capacity = min(self.size, PARTIAL_GROWTH * len(self._buffer))
        try:
            self._buffer.extend(bytes(capacity - len(self._buffer)))
        except BufferError:
            # Some transports still hold the last tail when they ask for the next one.
            grown = bytearray(capacity)
            grown[: self.received] = self._buffer
            self._buffer = grown


def foreign_protocol(start: bytes) -> str | None:
    """What the first bytes of a connection look like when they are no Kafka frame."""
    if start[:2] == b"\x16\x03":
        return "a TLS handshake"
    if start in _HTTP_STARTS:
        return "an HTTP request"
    return None


_HTTP_STARTS = frozenset({b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI "})


class FrameError(Exception):
    """The stream announced a frame that can't be."""


class FrameReader:
    """Cuts one stream into frames: for the side of a connection that waits for few, large answers.

    The server cuts its streams itself, from a buffer that all its connections share.
    """

    __slots__ = ("_head", "_partial", "_view", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int, buffer_bytes: int = 64 * 1024) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._view = memoryview(bytearray(buffer_bytes))
        self._head = 0
        self._partial: PartialFrame | None = None

    def buffer(self) -> memoryview:
        """Where the next bytes of the stream belong."""
        return self._partial.tail() if self._partial is not None else self._view[self._head :]

    def received(self, count: int) -> list[memoryview]:
        """The frames that `count` more bytes complete, each with memory of its own. Raises FrameError."""
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
                raise FrameError(f"a frame of {size} bytes was announced and at most {self.max_frame_bytes} are taken")
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
