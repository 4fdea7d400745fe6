"""Reads and writes variable-length numbers and tagged sections: the slow paths of compiled codecs.

Compiled code itself handles one-byte numbers and empty tagged sections. For longer numbers and other tagged sections,
it calls these functions.
"""

from collections.abc import Mapping
from struct import Struct as Layout
from typing import Any

MAX_STRING_BYTES = 0x7FFF
MAX_ELEMENTS = 1_000_000
"""The largest number of array elements and unknown tags in one message. Each takes at least a byte, so only frames over
a megabyte can reach this limit. It bounds the memory that a large frame of tiny elements takes once it is decoded."""

MAX_ERROR_MESSAGE_BYTES = 1024
"""The longest error message in a response. The middle of a longer one, which may quote a client, is left out."""

_UVARINT_BYTES = 5
_UVARLONG_BYTES = 10
_UINT32_MAX = 0xFFFFFFFF
_UINT64_MAX = 0xFFFFFFFFFFFFFFFF
_INT32_MAX = 0x7FFFFFFF

Buffer = bytes | bytearray | memoryview


class DecodeError(Exception):
    """Raised if the bytes are not a valid message of the expected type."""


class TooManyElementsError(DecodeError):
    """Raised if a message has more array elements and tags than its frame has bytes, or than the reader allows."""


class EncodeError(Exception):
    """Raised if the requested version of the message can't contain the value of a field."""


class UnfitValueError(EncodeError):
    """Raised if a value does not fit its field in any version of the message."""


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
    """Reads an unsigned 32-bit number. Returns the number and the position after it. Raises IndexError if `buf` is too
    short."""
    return _read_unsigned(buf, p, _UVARINT_BYTES, _UINT32_MAX)


def read_uvarlong(buf: Buffer, p: int) -> tuple[int, int]:
    return _read_unsigned(buf, p, _UVARLONG_BYTES, _UINT64_MAX)


def read_varint(buf: Buffer, p: int) -> tuple[int, int]:
    """Reads a signed (zigzag) number of 32 bits."""
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
    """Encodes a signed (zigzag) number of 32 or 64 bits."""
    return write_uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def read_length(buf: Buffer, p: int) -> tuple[int, int]:
    """Reads a compact length that is encoded in several bytes. Returns the encoded number (length plus one), and the
    position after it."""
    value, p = _read_unsigned(buf, p, _UVARINT_BYTES, _UINT32_MAX)
    if value > _INT32_MAX:
        raise DecodeError(f"a length of {value} is larger than any frame")
    return value, p


def read_string_length(buf: Buffer, p: int) -> tuple[int, int]:
    """Reads a length as `read_length` does. Raises DecodeError for a string of more than 32,767 bytes, which is Kafka's
    limit."""
    value, p = _read_unsigned(buf, p, _UVARINT_BYTES, _UINT32_MAX)
    if value - 1 > MAX_STRING_BYTES:
        raise DecodeError(f"a string of {value - 1} bytes is longer than {MAX_STRING_BYTES}")
    return value, p


def read_numbers(buf: Buffer, p: int, count: int, letter: str) -> list[Any]:
    """Reads an array of `count` numbers that is too long for a precompiled struct format.

    Raises StructError if the buffer ends before the last number.
    """
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
    """Reads `count` tagged fields as raw bytes by tag. Used for a version of a struct that declares no tagged
    fields."""
    fields: dict[int, bytes] = {}
    for _ in range(count):
        tag, p = read_uvarint(buf, p)
        size, p = read_uvarint(buf, p)
        fields[tag], p = read_unknown_tag(buf, p, size)
    return fields, p


def write_tags(fields: Mapping[int, bytes]) -> bytes:
    """Encodes a tagged section, in ascending order of tags."""
    out = [write_uvarint(len(fields))]
    for tag in sorted(fields):
        data = fields[tag]
        out += (write_uvarint(tag), write_uvarint(len(data)), data)
    return b"".join(out)


def shortened(text: bytes) -> bytes:
    """Removes the middle of a long error message. Keeps its start, which has the subject, and its end, which has the
    remedy."""
    half = MAX_ERROR_MESSAGE_BYTES // 2 - 8
    start, end = text[:half].decode(errors="ignore"), text[-half:].decode(errors="ignore")
    return f"{start} [...] {end}".encode()


def null_error(name: str) -> DecodeError:
    return DecodeError(f"{name} must not be null")


def length_error(name: str, length: int) -> DecodeError:
    return DecodeError(f"{name} has the impossible length {length}")


def too_many_error(name: str) -> DecodeError:
    return TooManyElementsError(f"{name} has more elements than its frame has room for, or than the limit allows")


def tag_error(name: str) -> DecodeError:
    return DecodeError(f"the tagged field {name} is shorter than its size")


def early_end_error(name: str) -> DecodeError:
    return DecodeError(f"{name} is incomplete: its frame ends too early")


def past_end_error(name: str) -> DecodeError:
    return DecodeError(f"{name} reaches past the end of its frame")


def text_error(name: str) -> DecodeError:
    return DecodeError(f"{name} holds a string that isn't UTF-8")


def value_error(name: str, error: Exception) -> EncodeError:
    return UnfitValueError(f"{name} can't be encoded: {error}")


def lost_value_error(name: str, version: int) -> EncodeError:
    return EncodeError(f"{name} has a value that version {version} can't carry")


def uuid_error(name: str) -> EncodeError:
    return UnfitValueError(f"{name} must be 16 bytes")


def string_error(name: str, length: int) -> EncodeError:
    return UnfitValueError(f"{name} has {length} bytes, but a string may have at most {MAX_STRING_BYTES}")
