"""Reads Protobuf's wire format without a schema: the field numbers and the raw values. Pure code."""

from __future__ import annotations

import base64
from enum import IntEnum
from typing import Any, NamedTuple

from penstock.formats.limits import FormatError, Room, check_depth, exact
from penstock.protocol.primitives import DecodeError, read_uvarlong


class Wire(IntEnum):
    """Lists the wire types of Protobuf."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    GROUP = 3
    GROUP_END = 4
    FIXED32 = 5


class WireField(NamedTuple):
    number: int
    wire: Wire
    raw: Any
    """A number without a sign for VARINT, FIXED64 and FIXED32, bytes for BYTES, and the fields of a GROUP."""


def read_message(data: bytes, start: int, room: Room, depth: int = 0) -> list[WireField]:
    """Reads one message, from `start` to the end of the data, and returns its fields. Raises FormatError."""
    found, end = _fields(data, start, None, room, depth)
    assert end == len(data)
    return found


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """Returns the unsigned number at `at`, and the position after it. Raises FormatError."""
    try:
        return read_uvarlong(data, at)
    except IndexError:
        raise FormatError("the data ends inside a number") from None
    except DecodeError:
        raise FormatError(f"the number at byte {at} is too long") from None


def _fields(data: bytes, at: int, group: int | None, room: Room, depth: int) -> tuple[list[WireField], int]:
    """Returns the fields from `at` on, and the position after the last of them.

    Reads to the end of the data, or to the end of the group with the number `group`. Raises FormatError.
    """
    check_depth(depth)
    found: list[WireField] = []
    while at < len(data):
        began = at
        tag, at = read_number(data, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29 or kind > Wire.FIXED32:
            raise FormatError(f"no valid field begins at byte {began}")
        wire = Wire(kind)
        raw: Any = None
        room.take()
        match wire:
            case Wire.VARINT:
                raw, at = read_number(data, at)
            case Wire.FIXED64 | Wire.FIXED32:
                size = 8 if wire is Wire.FIXED64 else 4
                raw, at = int.from_bytes(_part(data, at, size), "little"), at + size
            case Wire.BYTES:
                size, at = read_number(data, at)
                raw, at = _part(data, at, size), at + size
            case Wire.GROUP:
                raw, at = _fields(data, at, number, room, depth + 1)
            case Wire.GROUP_END:
                if number != group:
                    raise FormatError(f"group {number} ends at byte {began}, but this group is not open")
                return found, at
        found.append(WireField(number, wire, raw))
    if group is not None:
        raise FormatError(f"group {group} does not end before the data ends")
    return found, at


def _part(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise FormatError(f"the {size} bytes at byte {at} reach past the end of the data")
    return data[at : at + size]


def decode_raw(data: bytes, start: int, room: Room) -> dict[str, Any]:
    """Decodes a message without its schema: returns a dict by field number, as `protoc --decode_raw` prints it.

    Raises FormatError.
    """
    return raw_fields(read_message(data, start, room), room, 0)


def raw_fields(fields: list[WireField], room: Room, depth: int) -> dict[str, Any]:
    """Returns a dict from field number to value. A field that occurs several times has a list of its values."""
    found: dict[str, list[Any]] = {}
    for each in fields:
        found.setdefault(str(each.number), []).append(_raw(each, room, depth))
    return {number: values[0] if len(values) == 1 else values for number, values in found.items()}


def _raw(field: WireField, room: Room, depth: int) -> Any:
    match field.wire:
        case Wire.GROUP:
            return raw_fields(field.raw, room, depth + 1)
        case Wire.BYTES:
            return _guessed(field.raw, room, depth)
    return exact(field.raw)


def _guessed(data: bytes, room: Room, depth: int) -> Any:
    """Guesses the meaning of bytes: printable text, otherwise a message, otherwise other text or base64."""
    room.take(len(data))
    try:
        text: str | None = data.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None and text.isprintable():
        return text
    try:
        inner = read_message(data, 0, room, depth + 1)
    except FormatError:
        return base64.b64encode(data).decode() if text is None else text
    return raw_fields(inner, room, depth + 1)
