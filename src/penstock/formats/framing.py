"""Reads the prefix that clients of a schema registry write in front of data. Pure code.

The prefix is a zero byte and the schema's id. For Protobuf, the path of the message type in its file follows.
"""

from __future__ import annotations

from penstock.formats.limits import FormatError
from penstock.protocol.primitives import DecodeError, read_varint

#: Bytes of the zero byte and the schema's id.
REGISTRY_PREFIX = 5
#: Levels of nested message types that a path may name.
PATH_MAX = 32


def schema_id(data: bytes) -> int | None:
    """Returns the schema id in the registry prefix; None if the data has no such prefix."""
    if len(data) < REGISTRY_PREFIX or data[0]:
        return None
    return int.from_bytes(data[1:REGISTRY_PREFIX], "big")


def message_path(data: bytes) -> tuple[tuple[int, ...], int]:
    """Returns the path of the message type in its file, and the position at which the message begins.

    The path (1, 0) means: the first type that is nested in the file's second type. An empty path in the data means the
    file's first type, and is returned as (0,).
    """
    try:
        count, at = read_varint(data, REGISTRY_PREFIX)
        if not 0 <= count <= PATH_MAX:
            raise FormatError(f"the path of the message type has {count} parts, but the maximum is {PATH_MAX}")
        path = []
        for _ in range(count):
            index, at = read_varint(data, at)
            path.append(index)
    except (IndexError, DecodeError):
        raise FormatError("the data ends inside the path of the message type") from None
    return tuple(path) or (0,), at
