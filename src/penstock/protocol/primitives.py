"""Variable-length numbers and tagged sections: the slow paths that compiled codecs fall back to.

Compiled code handles one-byte numbers and empty tagged sections in line; only the rest comes here.
"""

from collections.abc import Mapping
from struct import Struct as Layout
from typing import Any

MAX_STRING_BYTES = 0x7FFF
MAX_ELEMENTS = 1_000_000
"""Array elements and unknown tags in one message. None has more of them than bytes, so only frames over a megabyte get
near it; it bounds what a large frame full of tiny elements can make of memory."""

MAX_ERROR_MESSAGE_BYTES = 1024
"""An error message that repeats what a client sent could be longer than a string may be: its middle is left out."""

_UVARINT_BYTES = 5
_UVARLONG_BYTES = 10
_UINT32_MAX = 0xFFFFFFFF
_UINT64_MAX = 0xFFFFFFFFFFFFFFFF
_INT32_MAX = 0x7FFFFFFF

Buffer = bytes | bytearray | memoryview


class DecodeError(Exception):
    """Bytes that are not the message they should be."""


class TooManyElementsError(DecodeError):
    """More array elements and tags than the frame has bytes for, or than the reader was allowed."""


class EncodeError(Exception):
    """A value that the wanted version of a message can't carry."""


class UnfitValueError(EncodeError):
    """The value doesn't fit into its field, in any version."""


def _read_unsigned(buf: Buffer, p: int, max_bytes: int, limit: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(p, p + max_bytes):
        byte = buf[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > limit:
                break
            return value, position + 1
        shift += 7
    raise DecodeError(f"a variable-length number at byte {p} is too long")


def read_uvarint(buf: Buffer, p: int) -> tuple[int, int]:
    """An unsigned number of at most 32 bits and the position after it. IndexError when the buffer ends inside."""
    return _read_unsigned(buf, p, _UVARINT_BYTES, _UINT32_MAX)


def read_uvarlong(buf: Buffer, p: int) -> tuple[int, int]:
    return _read_unsigned(buf, p, _UVARLONG_BYTES, _UINT64_MAX)


def read_varint(buf: Buffer, p: int) -> tuple[int, int]:
    """A signed (zig-zag) number of 32 bits."""
    value, p = _read_unsigned(buf, p, _UVARINT_BYTES, _UINT32_MAX)
    return (value >> 1) ^ -(value & 1), p


def read_varlong(buf: Buffer, p: int) -> tuple[int, int]:
    value, p = _read_unsigned(buf, p, _UVARLONG_BYTES, _UINT64_MAX)
    return (value >> 1) ^ -(value & 1), p


def write_uvarint(value: int) -> bytes:
    if value < 0x80:
        return value.to_bytes(1, "big")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_varint(value: int) -> bytes:
    """A signed number of 32 or 64 bits, zig-zag."""
    return write_uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def read_length(buf: Buffer, p: int) -> tuple[int, int]:
    """A compact length (plus one) that needs more than a byte."""
    value, p = _read_unsigned(buf, p, _UVARINT_BYTES, _UINT32_MAX)
    if value > _INT32_MAX:
        raise DecodeError(f"a length of {value} is past any frame")
    return value, p


def read_string_length(buf: Buffer, p: int) -> tuple[int, int]:
    """As `read_length`, for a string: Kafka allows 32,767 bytes."""
    value, p = _read_unsigned(buf, p, _UVARINT_BYTES, _UINT32_MAX)
    if value - 1 > MAX_STRING_BYTES:
        raise DecodeError(f"a string of {value - 1} bytes is longer than {MAX_STRING_BYTES}")
    return value, p


def read_numbers(buf: Buffer, p: int, count: int, letter: str) -> list[Any]:
    """An array too long to have its layout prepared. StructError when the buffer ends inside."""
    return list(Layout(f">{count}{letter}").unpack_from(buf, p))


def read_uuids(buf: Buffer, p: int, count: int) -> list[bytes]:
    end = p + 16 * count
    if end > len(buf):
        raise DecodeError("an array of ids reaches past the end of the frame")
    return [bytes(buf[start : start + 16]) for start in range(p, end, 16)]


def read_unknown_tag(buf: Buffer, p: int, size: int) -> tuple[bytes, int]:
    end = p + size
    if end > len(buf):
        raise DecodeError("a tagged field reaches past the end of the frame")
    return bytes(buf[p:end]), end


def read_unknown_tags(buf: Buffer, p: int, count: int) -> tuple[dict[int, bytes], int]:
    """The body of a tagged section in which this version knows no tag."""
    fields: dict[int, bytes] = {}
    for _ in range(count):
        tag, p = read_uvarint(buf, p)
        size, p = read_uvarint(buf, p)
        fields[tag], p = read_unknown_tag(buf, p, size)
    return fields, p


def write_tags(fields: Mapping[int, bytes]) -> bytes:
    """A whole tagged section, in ascending order of tags."""
    out = [write_uvarint(len(fields))]
    for tag in sorted(fields):
        data = fields[tag]
        out += (write_uvarint(tag), write_uvarint(len(data)), data)
    return b"".join(out)


def shortened(text: bytes) -> bytes:
    """An error message without its middle: it begins with the subject and ends with the remedy."""
    half = MAX_ERROR_MESSAGE_BYTES // 2 - 8
    start, end = text[:half].decode(errors="ignore"), text[-half:].decode(errors="ignore")
    return f"{start} [...] {end}".encode()


def null_error(name: str) -> DecodeError:
    return DecodeError(f"{name} must not be null")


def length_error(name: str, length: int) -> DecodeError:
    return DecodeError(f"{name} has the length {length}")


def too_many_error(name: str) -> DecodeError:
    return TooManyElementsError(f"{name} has more elements than its frame can hold, or than are allowed")


def tag_error(name: str) -> DecodeError:
    return DecodeError(f"the tagged field {name} does not fill its size")


def early_end_error(name: str) -> DecodeError:
    return DecodeError(f"{name} ends too early")


def past_end_error(name: str) -> DecodeError:
    return DecodeError(f"{name} reaches past the end of its frame")


def text_error(name: str) -> DecodeError:
    return DecodeError(f"{name} holds a string that isn't UTF-8")


def value_error(name: str, error: Exception) -> EncodeError:
    return UnfitValueError(f"{name} can't be encoded: {error}")


def lost_value_error(name: str, version: int) -> EncodeError:
    return EncodeError(f"{name} has a value, and version {version} can't carry it")


def uuid_error(name: str) -> EncodeError:
    return UnfitValueError(f"{name} must be 16 bytes")


def string_error(name: str, length: int) -> EncodeError:
    return UnfitValueError(f"{name} is {length} bytes, a string holds at most {MAX_STRING_BYTES}")
