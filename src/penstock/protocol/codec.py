"""Decodes bytes to messages and encodes messages to bytes.

`decode` needs a buffer with exactly one message; `decode_prefix` stops after the first message. A decoded record set is
a view of the buffer. `encode_parts` never copies a record set.
"""

from typing import Any, TypeVar

from penstock.protocol.compile import Reader, Writer, compile_reader, compile_writer
from penstock.protocol.primitives import Buffer, DecodeError, EncodeError, TooManyElementsError, UnfitValueError
from penstock.protocol.schema import Message

__all__ = [
    "Buffer",
    "DecodeError",
    "EncodeError",
    "TooManyElementsError",
    "UnfitValueError",
    "decode",
    "decode_prefix",
    "encode",
    "encode_parts",
    "reader",
    "writer",
]

M = TypeVar("M", bound=Message)


def reader(cls: type[Message], version: int) -> Reader:
    """Returns the function `read(buffer, position, limit) -> (message, position after it)` for a version of a message.

    Raises DecodeError if the message has no such version. `read` raises TooManyElementsError if the message has more
    array elements and tags than `limit`.
    """
    readers = cls.CODECS[0]
    try:
        return readers[version]  # type: ignore[no-any-return]
    except KeyError:
        read = readers[version] = compile_reader(cls, version)
        return read


def writer(cls: type[Message], version: int) -> Writer:
    """Returns the function `write(message) -> chunks`. Raises EncodeError if the message has no such version."""
    writers = cls.CODECS[1]
    try:
        return writers[version]  # type: ignore[no-any-return]
    except KeyError:
        write = writers[version] = compile_writer(cls, version)
        return write


def decode_prefix(cls: type[M], version: int, buf: Buffer, pos: int = 0) -> tuple[M, int]:
    read: Reader = cls.CODECS[0].get(version) or reader(cls, version)
    return read(buf, pos)


def decode(cls: type[M], version: int, buf: Buffer, pos: int = 0) -> M:
    read = cls.CODECS[0].get(version) or reader(cls, version)
    message, end = read(buf, pos)
    if end != len(buf):
        raise DecodeError(f"{cls.__name__} v{version} ends {len(buf) - end} bytes before the end of its frame")
    return message  # type: ignore[no-any-return]


def encode_parts(message: Message, version: int) -> list[Any]:
    """Encodes a message to a list of chunks. Each record set is a separate chunk and is not copied."""
    write: Writer = message.CODECS[1].get(version) or writer(type(message), version)
    return write(message)


def encode(message: Message, version: int) -> bytes:
    write: Writer = message.CODECS[1].get(version) or writer(type(message), version)
    parts = write(message)
    return parts[0] if len(parts) == 1 else b"".join(parts)
