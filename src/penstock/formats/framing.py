"""Reads the prefix that clients of a schema registry write: a zero byte, the schema's id, and for Protobuf the path of
the message in its file. Pure."""

from __future__ import annotations

from penstock.formats.limits import FormatError
from penstock.protocol.primitives import DecodeError, read_varint

#: Bytes of the zero byte and the schema's id.
REGISTRY_PREFIX = 5
#: Levels of nested message types that a path may name.
PATH_MAX = 32


def schema_id(data: bytes) -> int | None:
    """Returns the schema id in front of the data; None if the data has no such prefix."""
    if len(data) < REGISTRY_PREFIX or data[0]:
        return None
    return int.from_bytes(data[1:REGISTRY_PREFIX], "big")


def message_path(data: bytes) -> tuple[tuple[int, ...], int]:
    """Returns the path of the message type in its file, and the position of the message.

    (1, 0) is the first message type inside the second one. A single zero is short for the first message type.
    """
    try:
        count, at = read_varint(data, REGISTRY_PREFIX)
        if not 0 <= count <= PATH_MAX:
            raise FormatError(f"the path of its message type has {count} parts")
        path = []
        for _ in range(count):
            index, at = read_varint(data, at)
            path.append(index)
    except (IndexError, DecodeError):
        raise FormatError("it ends inside the path of its message type") from None
    return tuple(path) or (0,), at
