"""Decodes Protobuf messages with the descriptor of their type. Pure code.

The result is a dict from field names to values, as `protoc --decode` prints them: a field that is not in the message is
left out, and a field that the type does not define has its number as its name. Bytes become base64; timestamps,
durations and wrappers have the form of Protobuf's own JSON. Package protobuf provides the descriptors.
"""

from __future__ import annotations

import base64
import struct
from typing import Any

from penstock.formats.descriptors import is_map, is_repeated
from penstock.formats.limits import FormatError, Room, check_depth, exact, finite, instant
from penstock.formats.protobuf_wire import Wire, WireField, raw_fields, read_message, read_number

#: Types of fields by the numbers in a descriptor.
_DOUBLE, _FLOAT, _STRING, _GROUP, _MESSAGE, _BYTES, _BOOL, _ENUM = 1, 2, 9, 10, 11, 12, 8, 14
_WIRE = {
    **dict.fromkeys((_DOUBLE, 6, 16), Wire.FIXED64),
    **dict.fromkeys((_FLOAT, 7, 15), Wire.FIXED32),
    **dict.fromkeys((_STRING, _MESSAGE, _BYTES), Wire.BYTES),
    _GROUP: Wire.GROUP,
}
_SIGNED = {3: 64, 5: 32, 15: 32, 16: 64, _ENUM: 32}
"""Bits of the types whose numbers have a sign: int64, int32, sfixed32, sfixed64 and enum."""
_UINT32, _SINT32, _SINT64 = 13, 17, 18
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


def decode(message_type: Any, data: bytes, start: int, room: Room) -> Any:
    """Decodes the bytes from `start` to the end of the data as one message. Raises FormatError."""
    return _message(message_type, read_message(data, start, room), room, 0)


def _message(message_type: Any, fields: list[WireField], room: Room, depth: int) -> Any:
    check_depth(depth)
    types = message_type.fields_by_number
    known: dict[int, list[WireField]] = {}
    unknown: list[WireField] = []
    for each in fields:
        if each.number in types and _fits(types[each.number], each.wire):
            known.setdefault(each.number, []).append(each)
        else:
            unknown.append(each)
    found: dict[str, Any] = {}
    for number, given in known.items():
        field = types[number]
        room.take(len(field.name))
        found[field.name] = _value(field, given, room, depth)
    found |= raw_fields(unknown, room, depth)
    return _shown(message_type, found)


def _fits(field: Any, wire: Wire) -> bool:
    own = _WIRE.get(field.type, Wire.VARINT)
    packed = wire is Wire.BYTES and is_repeated(field) and own is not Wire.GROUP
    return wire is own or packed


def _value(field: Any, given: list[WireField], room: Room, depth: int) -> Any:
    """Returns the value of a field. `given` lists all occurrences of the field in the message."""
    if is_map(field):
        entries = (_single(field, each.raw, room, depth) for each in given)
        types = field.message_type.fields_by_name
        return {
            _key(each.get("key", _default(types["key"]))): each.get("value", _default(types["value"]))
            for each in entries
        }
    if is_repeated(field):
        return [value for each in given for value in _values(field, each, room, depth)]
    if field.type == _MESSAGE:  # as in Protobuf, further occurrences are merged into the first
        return _single(field, b"".join(each.raw for each in given), room, depth)
    return _single(field, given[-1].raw, room, depth)


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _values(field: Any, given: WireField, room: Room, depth: int) -> list[Any]:
    own = _WIRE.get(field.type, Wire.VARINT)
    if given.wire is own:
        return [_single(field, given.raw, room, depth)]
    return [_single(field, raw, room, depth) for raw in _unpacked(given.raw, own, room)]


def _unpacked(data: bytes, wire: Wire, room: Room) -> list[int]:
    """Returns the numbers of a packed repeated field."""
    found: list[int] = []
    at, size = 0, {Wire.FIXED64: 8, Wire.FIXED32: 4}.get(wire, 0)
    if size and len(data) % size:
        raise FormatError(f"a packed field has {len(data) % size} bytes after its last number")
    while at < len(data):
        room.take()
        if size:
            number, at = int.from_bytes(data[at : at + size], "little"), at + size
        else:
            number, at = read_number(data, at)
        found.append(number)
    return found


def _single(field: Any, raw: Any, room: Room, depth: int) -> Any:
    kind = field.type
    if kind == _MESSAGE:
        return _message(field.message_type, read_message(raw, 0, room, depth + 1), room, depth + 1)
    if kind == _GROUP:
        return _message(field.message_type, raw, room, depth + 1)
    if kind == _STRING:
        room.take(len(raw))
        return raw.decode(errors="replace")
    if kind == _BYTES:
        room.take(len(raw) * 4 // 3)
        return base64.b64encode(raw).decode()
    return _number(field, raw)


def _number(field: Any, raw: int) -> Any:
    kind = field.type
    if kind == _DOUBLE:
        return finite(struct.unpack("<d", raw.to_bytes(8, "little"))[0])
    if kind == _FLOAT:
        return finite(struct.unpack("<f", raw.to_bytes(4, "little"))[0])
    if kind == _BOOL:
        return raw != 0
    if kind in (_SINT32, _SINT64):
        raw &= 0xFFFFFFFF if kind == _SINT32 else raw
        return exact((raw >> 1) ^ -(raw & 1))
    if kind in _SIGNED:
        half = 1 << (_SIGNED[kind] - 1)
        number = ((raw + half) & (2 * half - 1)) - half
        if kind == _ENUM:
            known = field.enum_type.values_by_number.get(number)
            return number if known is None else known.name
        return exact(number)
    return exact(raw & 0xFFFFFFFF if kind == _UINT32 else raw)


def _shown(message_type: Any, found: dict[str, Any]) -> Any:
    """Returns a timestamp or duration as text, and a wrapper message as its value. Any other message is unchanged."""
    name = message_type.full_name
    if name in _WRAPPERS:
        return found.get("value", _default(message_type.fields_by_name["value"]))
    if name not in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        return found
    seconds, nanos = int(found.get("seconds", 0)), int(found.get("nanos", 0))
    total = seconds * 10**9 + nanos
    if name == "google.protobuf.Timestamp":
        return instant(total, 9)
    whole, rest = divmod(abs(total), 10**9)
    return f"{'-' if total < 0 else ''}{whole}.{rest:09d}s"


def _default(field: Any) -> Any:
    """Returns the default value of a field that a wrapper message or a map entry leaves out."""
    if field.type == _MESSAGE:
        return {}
    if field.type == _ENUM:
        return _number(field, field.default_value)
    return base64.b64encode(field.default_value).decode() if field.type == _BYTES else field.default_value
