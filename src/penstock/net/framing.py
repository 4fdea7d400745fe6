"""A frame: four bytes of size, big-endian, then that many bytes. What the server and the client share of it."""

import struct

SIZE = struct.Struct(">i")

# A frame that is still arriving owns room in proportion to what has arrived, never to what its size announces.
PARTIAL_MIN_BYTES = 16 * 1024
PARTIAL_GROWTH = 4

Buffer = bytes | bytearray | memoryview


class PartialFrame:
    """A frame that arrives in several reads, received straight into a buffer that ends up exactly its size."""

    __slots__ = ("_buffer", "received", "size")

    def __init__(self, size: int, first: memoryview) -> None:
        self.size = size
        self.received = len(first)
        self._buffer = bytearray(min(size, max(PARTIAL_MIN_BYTES, PARTIAL_GROWTH * len(first))))
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
