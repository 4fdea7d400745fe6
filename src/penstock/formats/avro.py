"""Decodes values in Avro's binary encoding with their schema. Pure code.

A schema is compiled once into nested functions, one for each type. Each function reads a value of its type. Bytes
become base64; dates, times and decimals become text. Package fastavro is not used here, because it holds Python's GIL
while it decodes a value, and has no limit on the depth of recursive values (decision 15).
"""

from __future__ import annotations

import base64
import json
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from penstock.formats.limits import FormatError, Room, check_depth, exact, finite, instant
from penstock.protocol.primitives import DecodeError, read_varlong

#: Decimals with more bytes or digits are shown as bytes.
DECIMAL_MAX_BYTES = 64
SCALE_MAX = 150
#: Types in one schema.
TYPES_MAX = 20_000


@dataclass(slots=True)
class Cursor:
    data: bytes
    at: int
    room: Room

    def long(self) -> int:
        try:
            number, self.at = read_varlong(self.data, self.at)
        except IndexError:
            raise FormatError("the data ends inside a number") from None
        except DecodeError:
            raise FormatError(f"the number at byte {self.at} is too long") from None
        return number

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise FormatError(f"the {size} bytes at byte {self.at} reach past the end of the data")
        found = self.data[self.at : end]
        self.at = end
        return found


Reader = Callable[[Cursor, int], Any]
"""Reads one value at the cursor; the second argument is the depth."""


def compile_schema(text: str, references: Sequence[str] = ()) -> Reader:
    """Compiles a schema. Returns a function that reads values of the schema. Raises FormatError.

    `references` are the texts of other schemas: they define types that this schema uses by name.
    """
    compiler = _Compiler()
    for each in references:
        compiler.compile(_parsed(each), "", 0)
    return compiler.compile(_parsed(text), "", 0)


def decode(reader: Reader, data: bytes, start: int, room: Room) -> Any:
    """Decodes the bytes from `start` to the end of the data as one value. Raises FormatError."""
    cursor = Cursor(data, start, room)
    found = reader(cursor, 0)
    if cursor.at != len(data):
        raise FormatError(f"{len(data) - cursor.at} bytes follow the Avro value")
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the Avro schema is not JSON: {error}") from None


# --- types without a name


def _null(cursor: Cursor, depth: int) -> None:
    cursor.room.take()


def _boolean(cursor: Cursor, depth: int) -> bool:
    cursor.room.take()
    return cursor.take(1) != b"\0"


def _long(cursor: Cursor, depth: int) -> int | str:
    cursor.room.take()
    return exact(cursor.long())


def _floating(layout: struct.Struct) -> Reader:
    def read(cursor: Cursor, depth: int) -> float | str:
        cursor.room.take()
        return finite(layout.unpack(cursor.take(layout.size))[0])

    return read


def _data(cursor: Cursor, depth: int) -> str:
    found = cursor.take(cursor.long())
    cursor.room.take(len(found) * 4 // 3)
    return base64.b64encode(found).decode()


def _string(cursor: Cursor, depth: int) -> str:
    found = cursor.take(cursor.long())
    cursor.room.take(len(found))
    return found.decode(errors="replace")


_PLAIN: dict[str, Reader] = {
    "null": _null,
    "boolean": _boolean,
    "int": _long,
    "long": _long,
    "float": _floating(struct.Struct("<f")),
    "double": _floating(struct.Struct("<d")),
    "bytes": _data,
    "string": _string,
}


# --- logical types: text for a number or for bytes


def _date(days: int) -> int | str:
    try:
        return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    except OverflowError:
        return exact(days)


def _time(digits: int) -> Callable[[int], int | str]:
    def show(number: int) -> int | str:
        in_a_day = 0 <= number < 86_400 * 10**digits
        return str(instant(number, digits, "")).partition("T")[2] if in_a_day else exact(number)

    return show


def _timestamp(digits: int, zone: str) -> Callable[[int], int | str]:
    return lambda number: instant(number, digits, zone)


_OF_NUMBERS: dict[str, Callable[[int], int | str]] = {
    "date": _date,
    "time-millis": _time(3),
    "time-micros": _time(6),
    **{
        f"{prefix}timestamp-{unit}": _timestamp(digits, zone)
        for prefix, zone in (("", "Z"), ("local-", ""))
        for unit, digits in (("millis", 3), ("micros", 6), ("nanos", 9))
    },
}


def _shown_number(show: Callable[[int], int | str]) -> Reader:
    def read(cursor: Cursor, depth: int) -> int | str:
        cursor.room.take()
        return show(cursor.long())

    return read


def _decimal(schema: dict[str, Any]) -> Callable[[bytes], str] | None:
    """Returns a function that turns the bytes of a decimal into text.

    Returns None if the scale is invalid: Avro then treats the type as plain bytes.
    """
    scale = schema.get("scale", 0)
    if type(scale) is not int or not 0 <= scale <= SCALE_MAX:
        return None

    def show(data: bytes) -> str:
        if len(data) > DECIMAL_MAX_BYTES:
            return base64.b64encode(data).decode()
        number = int.from_bytes(data, "big", signed=True)
        return format(Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale)), "f")

    return show


def _duration(data: bytes) -> dict[str, int]:
    months, days, milliseconds = struct.unpack("<III", data)
    return {"months": months, "days": days, "milliseconds": milliseconds}


def _of_bytes(schema: dict[str, Any], size: int | None) -> Callable[[bytes], Any]:
    """Returns a function that converts bytes of this type to JSON. `size` is the size of a fixed type, else None."""
    match schema.get("logicalType"), size:
        case "decimal", _:
            if (shown := _decimal(schema)) is not None:
                return shown
        case "uuid", 16:
            return lambda data: str(uuid.UUID(bytes=data))
        case "duration", 12:
            return _duration
    return lambda data: base64.b64encode(data).decode()


# --- types that contain others


@dataclass(slots=True)
class _Compiler:
    named: dict[str, Reader] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    """Names that are defined, before their type is compiled: a record may contain itself."""
    types: int = 0

    def compile(self, schema: Any, namespace: str, depth: int) -> Reader:
        check_depth(depth)
        self.types += 1
        if self.types > TYPES_MAX:
            raise FormatError(f"the Avro schema has more than {TYPES_MAX} types")
        if isinstance(schema, str):
            return _PLAIN.get(schema) or self._reference(schema, namespace)
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if not isinstance(schema, dict):
            raise FormatError(f"the Avro schema has {str(schema)[:40]!r} where a type is expected")
        return self._complex(schema, namespace, depth)

    def _complex(self, schema: dict[str, Any], namespace: str, depth: int) -> Reader:
        kind = schema.get("type")
        match kind:
            case "record" | "error":
                return self._record(schema, namespace, depth)
            case "enum":
                return self._enum(schema, namespace)
            case "fixed":
                return self._fixed(schema, namespace)
            case "array":
                return _array(self.compile(schema.get("items"), namespace, depth + 1))
            case "map":
                return _map(self.compile(schema.get("values"), namespace, depth + 1))
            case "bytes":
                return _variable(_of_bytes(schema, None))
            case "int" | "long" if str(schema.get("logicalType")) in _OF_NUMBERS:
                return _shown_number(_OF_NUMBERS[schema["logicalType"]])
        return self.compile(kind, namespace, depth + 1)

    def _reference(self, name: str, namespace: str) -> Reader:
        candidates = [name] if "." in name or not namespace else [f"{namespace}.{name}", name]
        found = next((each for each in candidates if each in self.known), None)
        if found is None:
            raise FormatError(f"the Avro schema has no type {name[:80]!r}")
        named = self.named
        return lambda cursor, depth: named[found](cursor, depth)

    def _define(self, schema: dict[str, Any], namespace: str) -> tuple[str, str]:
        """Returns the full name of a named type, and the namespace of the types inside it."""
        name, own = schema.get("name"), schema.get("namespace", namespace)
        if not isinstance(name, str) or not isinstance(own, str):
            raise FormatError(f"the Avro schema has a type of kind {schema.get('type')} without a name")
        full = name if "." in name or not own else f"{own}.{name}"
        self.known.add(full)
        return full, full.rpartition(".")[0]

    def _record(self, schema: dict[str, Any], namespace: str, depth: int) -> Reader:
        full, inner = self._define(schema, namespace)
        given = schema.get("fields")
        if not isinstance(given, list) or not all(isinstance(each, dict) and "name" in each for each in given):
            raise FormatError(f"the Avro record {full[:80]} has no list of fields")
        fields = [(str(each["name"]), self.compile(each.get("type"), inner, depth + 1)) for each in given]

        def read(cursor: Cursor, depth: int) -> dict[str, Any]:
            check_depth(depth)
            cursor.room.take()
            found = {}
            for name, reader in fields:
                cursor.room.take(len(name))
                found[name] = reader(cursor, depth + 1)
            return found

        self.named[full] = read
        return read

    def _enum(self, schema: dict[str, Any], namespace: str) -> Reader:
        full, _ = self._define(schema, namespace)
        symbols = schema.get("symbols")
        if not isinstance(symbols, list):
            raise FormatError(f"the Avro enum {full[:80]} has no list of symbols")

        def read(cursor: Cursor, depth: int) -> str:
            index = cursor.long()
            if not 0 <= index < len(symbols):
                raise FormatError(f"the enum {full[:80]} has no symbol {index}")
            symbol = str(symbols[index])
            cursor.room.take(len(symbol))
            return symbol

        self.named[full] = read
        return read

    def _fixed(self, schema: dict[str, Any], namespace: str) -> Reader:
        full, _ = self._define(schema, namespace)
        size = schema.get("size")
        if type(size) is not int or size < 0:
            raise FormatError(f"the Avro type {full[:80]} has no size")
        show = _of_bytes(schema, size)

        def read(cursor: Cursor, depth: int) -> Any:
            cursor.room.take(size * 4 // 3)
            return show(cursor.take(size))

        self.named[full] = read
        return read

    def _union(self, schema: list[Any], namespace: str, depth: int) -> Reader:
        branches = [self.compile(each, namespace, depth + 1) for each in schema]

        def read(cursor: Cursor, depth: int) -> Any:
            index = cursor.long()
            if not 0 <= index < len(branches):
                raise FormatError(f"a union of {len(branches)} types has no type with index {index}")
            return branches[index](cursor, depth)

        return read


def _variable(show: Callable[[bytes], Any]) -> Reader:
    def read(cursor: Cursor, depth: int) -> Any:
        found = cursor.take(cursor.long())
        cursor.room.take(len(found) * 4 // 3)
        return show(found)

    return read


def _blocks(cursor: Cursor) -> Iterator[None]:
    """Yields once for each element of an array or map. Avro stores the elements in blocks; each begins with a count."""
    while count := cursor.long():
        if count < 0:
            cursor.long()  # the bytes of the block
        for _ in range(abs(count)):
            yield


def _array(item: Reader) -> Reader:
    def read(cursor: Cursor, depth: int) -> list[Any]:
        check_depth(depth)
        cursor.room.take()
        return [item(cursor, depth + 1) for _ in _blocks(cursor)]

    return read


def _map(value: Reader) -> Reader:
    def read(cursor: Cursor, depth: int) -> dict[str, Any]:
        check_depth(depth)
        cursor.room.take()
        found: dict[str, Any] = {}
        for _ in _blocks(cursor):
            name = _string(cursor, depth)
            found[name] = value(cursor, depth + 1)
        return found

    return read
