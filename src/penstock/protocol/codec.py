"""Bytes to messages and back.

`decode` wants the whole buffer; `decode_prefix` stops where the message does. Record sets come out as views of the
buffer and go in as they are given, so `encode_parts` never copies one.
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
    """`read(buffer, position, limit) -> (message, position after it)`; DecodeError for a version that isn't there.

    `limit` bounds array elements and tags: TooManyElementsError for more.
    """
    readers = cls.CODECS[0]
    try:
        return readers[version]  # type: ignore[no-any-return]
    except KeyError:
        read = readers[version] = compile_reader(cls, version)
        return read


def writer(cls: type[Message], version: int) -> Writer:
    """`write(message) -> chunks`; raises EncodeError for a version that isn't there."""
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
        raise DecodeError(f"{cls.__name__} v{version} leaves {len(buf) - end} bytes over")
    return message  # type: ignore[no-any-return]


def encode_parts(message: Message, version: int) -> list[Any]:
    """Chunks that each have a length; the record sets among them are the very objects the message holds."""
    write: Writer = message.CODECS[1].get(version) or writer(type(message), version)
    return write(message)


def encode(message: Message, version: int) -> bytes:
    write: Writer = message.CODECS[1].get(version) or writer(type(message), version)
    parts = write(message)
    return parts[0] if len(parts) == 1 else b"".join(parts)
