"""Converts JSON values to rows of a table's columns. Pure code.

If the columns can hold all fields of a value, the row has all these fields. Otherwise the row has the fields that fit,
and column `_bad` has the whole value as text. A null field and a missing field are the same.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NoReturn

from penstock.pipelines.json_names import BAD, columns_by_field
from penstock.pipelines.json_types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGERS,
    STRING,
    TIMESTAMP,
    DecimalOf,
    ListOf,
    Scalar,
    Seen,
    Struct,
    Type,
    as_integer,
    is_decimal,
    is_double,
)

Row = dict[str, Any]


class _NoObjectError(Exception):
    """Raised if a value is not a JSON object, or is a JSON object that does not fit into columns."""


def text_of(value: bytes) -> str:
    """Returns a value as text for column `_bad`. Bytes that are not UTF-8 are written as `\\xNN`."""
    return value.decode("utf-8", errors="backslashreplace")


def seen_in(values: Iterable[bytes]) -> Seen:
    """Counts the fields and types of all JSON objects among the values, and returns the counts."""
    seen = Seen()
    for value in values:
        try:
            seen.add(_object(value))
        except _NoObjectError:
            continue
    return seen


class Rows:
    """Converts values to rows. Not thread-safe. `fixed` names the columns that the table is partitioned by."""

    def __init__(self, columns: Struct, fixed: frozenset[str] = frozenset()) -> None:
        self._lost = False
        self._convert = self._struct(columns, fixed)

    def row(self, value: bytes) -> Row:
        self._lost = False
        try:
            found: Row = self._convert(_object(value))
        except _NoObjectError:
            return {BAD: text_of(value)}
        if self._lost:
            found[BAD] = text_of(value)
        return found

    # A converter returns the part of a value that a column can hold, and calls `_lose` if that is not the whole value.

    def _lose(self) -> None:
        self._lost = True

    def _converter(self, kind: Type) -> Callable[[Any], Any]:
        match kind:
            case Struct():
                return self._struct(kind)
            case ListOf(element):
                return self._list(element)
            case DecimalOf():
                return self._checked(lambda value: _decimal(value, kind))
            case Scalar() if kind in INTEGERS:
                return self._checked(lambda value: _integer(value, INTEGERS[kind]))
            case Scalar():
                return self._checked(_SCALARS.get(kind, _nothing))
            case _:
                return self._checked(_nothing)

    def _checked(self, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns a function that converts values with `convert`, which returns None for a value that does not fit the
        column.

        For such a value, the function also notes that column `_bad` has to keep the whole JSON value.
        """

        def converted(value: Any) -> Any:
            if value is None:
                return None
            found = convert(value)
            if found is None:
                self._lose()
            return found

        return converted

    def _struct(self, kind: Struct, fixed: frozenset[str] = frozenset()) -> Callable[[Any], Any]:
        types = dict(kind.columns)
        converters = {column: self._converter(each) for column, each in types.items()}
        directories = {column: self._checked(_directory) for column in fixed if types.get(column) == STRING}
        converters |= directories
        by_field = {name: (column, converters[column]) for name, column in columns_by_field(types).items()}

        def converted(value: Any) -> Row | None:
            if type(value) is not dict:
                if value is not None:
                    self._lose()
                return None
            row = {}
            for name, each in value.items():
                if each is None:
                    continue
                found = by_field.get(name)
                if found is None:
                    self._lose()
                else:
                    row[found[0]] = found[1](each)
            return row

        return converted

    def _list(self, element: Type) -> Callable[[Any], Any]:
        convert = self._converter(element)

        def converted(value: Any) -> list[Any] | None:
            if type(value) is list:
                return [convert(each) for each in value]
            if value is not None:
                self._lose()
            return None

        return converted


# --- single values; None if the column can't hold the value


def _nothing(value: Any) -> None:
    return None


def _integer(value: Any, bound: int) -> int | None:
    found = value if type(value) is int else as_integer(value) if type(value) is Decimal else None
    return found if found is not None and -bound <= found < bound else None


def _double(value: Any) -> float | None:
    return float(value) if type(value) in (int, Decimal) and is_double(value) else None


def _float(value: Any) -> float | None:
    found = _double(value)
    try:
        return found if found is None or struct.unpack("f", struct.pack("f", found))[0] == found else None
    except OverflowError:
        return None


def _decimal(value: Any, kind: DecimalOf) -> Decimal | None:
    return Decimal(value) if type(value) in (int, Decimal) and is_decimal(value, kind) else None


def _date(value: Any) -> date | None:
    try:
        found = date.fromisoformat(value) if type(value) is str else None
    except ValueError:
        return None
    return found if found is not None and found.isoformat() == value else None


def _timestamp(value: Any) -> datetime | None:
    """Returns a parsed timestamp; None if the text has no time zone or is more precise than microseconds."""
    try:
        found = datetime.fromisoformat(value) if type(value) is str else None
    except ValueError:
        return None
    digits = (
        value.replace(",", ".").partition(".")[2].rstrip("Z").partition("+")[0].partition("-")[0]
        if found is not None
        else ""
    )
    return found if found is not None and found.tzinfo is not None and len(digits) <= 6 else None


def _directory(value: Any) -> str | None:
    """Returns the text if it can be a value of a partition column; otherwise None.

    Each partition of the table is a directory with the value in its name, so the length is limited.
    """
    if type(value) is not str or value in ("", _NO_VALUE):
        return None
    return value if len(_ESCAPED.sub("%00", value).encode()) <= MOST_DIRECTORY else None


#: Bytes left for the value in the 255 bytes of a directory's name, which also has the column's name.
MOST_DIRECTORY = 200
#: The name that Spark and Delta give to the directory of null.
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
#: Characters that Spark escapes in names of directories as `%` and two digits.
_ESCAPED = re.compile(r"""[\x00-\x20\x7f"#%'*/:=?\\{}\[\]^<>|]""")

_SCALARS: dict[Scalar, Callable[[Any], Any]] = {
    BOOLEAN: lambda value: value if type(value) is bool else None,
    STRING: lambda value: value if type(value) is str else None,
    DOUBLE: _double,
    FLOAT: _float,
    DATE: _date,
    TIMESTAMP: _timestamp,
}


# --- text


def _object(value: bytes) -> dict[str, Any]:
    """Parses a JSON object. Numbers with a point or an exponent become decimals, unrounded. Raises _NoObjectError."""
    try:
        text = value.decode()
        found = _DECODER.decode(text)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False, default=str).encode()  # raises for half of a surrogate pair
    except (ValueError, ArithmeticError, RecursionError):
        raise _NoObjectError from None
    if type(found) is not dict:
        raise _NoObjectError
    return found


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("the JSON object has the same field name twice")
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse, object_pairs_hook=_pairs)
