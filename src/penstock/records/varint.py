"""Reads and writes the zigzag varints of records: small numbers, positive or negative, take few bytes.

Loops over records decode one-byte numbers themselves; these functions are for longer numbers.
"""

from __future__ import annotations

from penstock.protocol.errors import ErrorCode, KafkaError

_MAX_INT32_SHIFT = 28
_MAX_INT64_SHIFT = 63


def read_varint(data: bytes, pos: int) -> tuple[int, int]:
    """Reads a 32-bit number at `pos`. Returns it and the next position. Raises IndexError if `data` is too short."""
    byte = data[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    return _read_long(data, pos, _MAX_INT32_SHIFT, 0xFFFFFFFF)


def read_varlong(data: bytes, pos: int) -> tuple[int, int]:
    """Reads a 64-bit number at `pos`. Returns it and the next position. Raises IndexError if `data` is too short."""
    byte = data[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    return _read_long(data, pos, _MAX_INT64_SHIFT, 0xFFFFFFFFFFFFFFFF)


def _read_long(data: bytes, pos: int, max_shift: int, mask: int) -> tuple[int, int]:
    raw = 0
    shift = 0
    while (byte := data[pos]) >= 0x80:
        raw |= (byte & 0x7F) << shift
        pos += 1
        shift += 7
        if shift > max_shift:
            raise KafkaError(ErrorCode.INVALID_RECORD, "A record has a number that is longer than its type allows.")
    raw = (raw | byte << shift) & mask  # as in Kafka, bits beyond the width of the type are dropped
    return (raw >> 1) ^ -(raw & 1), pos + 1


def varint(value: int) -> bytes:
    """Encodes `value`, a 32-bit or 64-bit number."""
    raw = (value << 1) ^ (value >> 63)
    if raw < 0x80:
        return _ONE_BYTE[raw]
    if raw < 0x4000:
        return bytes((raw & 0x7F | 0x80, raw >> 7))
    raw &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


_ONE_BYTE = tuple(bytes((raw,)) for raw in range(0x80))
_KEPT_BELOW = 0x4000


class _Varints(dict[int, bytes]):
    """Caches encoded numbers. Small numbers are encoded only once, because nearly all lengths and deltas are small."""

    def __missing__(self, value: int) -> bytes:
        encoded = varint(value)
        if 0 <= value < _KEPT_BELOW:
            self[value] = encoded
        return encoded


VARINTS = _Varints()
