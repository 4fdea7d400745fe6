"""Finds the types of columns for JSON values: counts the types in the values, and adds or widens columns. Pure code.

The rules, which docs/pipelines.md states for users:

- A null has no type. A field gets a column as soon as one of its values has a type. If its values have several types,
  the most frequent type wins.
- Objects are structs, field by field; arrays have one type of elements. Both get new fields at any depth.
- A field whose numbers are all integers of 64 bits is BIGINT. Otherwise it is DOUBLE or DECIMAL(38,18): the type that
  holds more of its numbers exactly, and DOUBLE if both types hold the same number of them.
- A column keeps its type, except that smaller integers become BIGINT, and BIGINT and smaller decimals become
  DECIMAL(38,18), if a number needs it and the table supports it.
- A field gets no column if its name differs from the name of a column only in case, if its object has `MOST_FIELDS`
  columns already, or if it is deeper than `MOST_DEPTH`.

If the columns can't hold a part of a value, `json_rows` puts the whole value into column `_bad`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from math import isfinite
from typing import Any

from penstock.pipelines.json_names import column_of, columns_by_field, folded

MOST_FIELDS = 2000
MOST_DEPTH = 40


@dataclass(frozen=True, slots=True)
class Scalar:
    """Names a type without parameters by Spark's name, such as bigint or string."""

    name: str


@dataclass(frozen=True, slots=True)
class DecimalOf:
    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class ListOf:
    element: Type


@dataclass(frozen=True, slots=True)
class Struct:
    columns: tuple[tuple[str, Type], ...] = ()


@dataclass(frozen=True, slots=True)
class Other:
    """Represents a column type that can't hold JSON values. Only tables that Penstock did not create have such types.

    `json` is Spark's own JSON text of the type.
    """

    json: str


Type = Scalar | DecimalOf | ListOf | Struct | Other

BOOLEAN, STRING, BIGINT, DOUBLE = Scalar("boolean"), Scalar("string"), Scalar("bigint"), Scalar("double")
FLOAT, DATE, TIMESTAMP = Scalar("float"), Scalar("date"), Scalar("timestamp")
#: Twenty digits before the point, which a widened BIGINT needs, and eighteen after it.
DECIMAL = DecimalOf(38, 18)
INTEGERS = {Scalar("tinyint"): 2**7, Scalar("smallint"): 2**15, Scalar("int"): 2**31, BIGINT: 2**63}
"""Exclusive upper bound of each integer type; its negative is the inclusive lower bound."""

#: A DOUBLE holds every integer below this exactly.
SMALL = 2**53

Number = int | Decimal


# --- numbers


def is_double(value: Number) -> bool:
    """Returns True if a DOUBLE keeps this number: the nearest DOUBLE is written with the same digits."""
    try:
        nearest = float(value)
    except OverflowError:
        return False
    return isfinite(nearest) and Decimal(repr(nearest)) == value


def digits_of(value: Number) -> tuple[int, int]:
    """Returns how many digits the number has before and after the point, without leading and trailing zeros."""
    _, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int), "JSON has no NaN and no infinity"
    count = len(digits)
    while count and digits[count - 1] == 0:
        count, exponent = count - 1, exponent + 1
    return (max(0, count + exponent), max(0, -exponent)) if count else (0, 0)


def is_decimal(value: Number, kind: DecimalOf) -> bool:
    whole, fraction = digits_of(value)
    return _holds(kind, whole, fraction)


def _holds(kind: DecimalOf, whole: int, fraction: int) -> bool:
    return whole <= kind.precision - kind.scale and fraction <= kind.scale


def as_integer(value: Number) -> int | None:
    """Returns the number as an int if it is integral (2.0 counts as 2) and fits into a BIGINT, else None."""
    if isinstance(value, Decimal):
        if not is_decimal(value, DecimalOf(19, 0)):
            return None
        value = int(value)
    return value if -(2**63) <= value < 2**63 else None


# --- counting types in values


@dataclass(slots=True)
class Seen:
    """Counts the values of one field by type. The counts of several tasks can be merged in any order."""

    booleans: int = 0
    strings: int = 0
    numbers: int = 0
    integers: int = 0
    """Count of numbers written without a point that a BIGINT holds."""
    longs: int = 0
    """Count of numbers that a BIGINT holds, including numbers such as 2.0."""
    doubles: int = 0
    decimals: int = 0
    low: int = 0
    high: int = 0
    """The least and the greatest number among those in `longs` and 0."""
    whole: int = 0
    fraction: int = 0
    """The most digits of a number in `decimals` before and after its point."""
    lists: int = 0
    objects: int = 0
    element: Seen | None = None
    fields: dict[str, Seen] = field(default_factory=dict)

    def add(self, value: Any, depth: int = 0) -> None:
        match value:
            case None:
                return
            case bool():
                self.booleans += 1
            case str():
                self.strings += 1
            case int() | Decimal():
                self._add_number(value)
            case list():
                self.lists += 1
                if value and depth < MOST_DEPTH:
                    self.element = self.element or Seen()
                    for each in value:
                        self.element.add(each, depth + 1)
            case dict():
                self.objects += 1
                if depth < MOST_DEPTH:
                    for name, each in value.items():
                        if each is not None:
                            self._field(name).add(each, depth + 1)
                    self._bound()

    def _add_number(self, value: Number) -> None:
        self.numbers += 1
        if isinstance(value, int) and -SMALL < value < SMALL:
            self._add_small(value)
            return
        integer = as_integer(value)
        if integer is not None:
            self.longs += 1
            self.integers += isinstance(value, int)
            self.low, self.high = min(self.low, integer), max(self.high, integer)
        self.doubles += is_double(value)
        whole, fraction = digits_of(value)
        if _holds(DECIMAL, whole, fraction):
            self.decimals += 1
            self.whole, self.fraction = max(self.whole, whole), max(self.fraction, fraction)

    def _add_small(self, value: int) -> None:
        """Counts an integer that every numeric type can hold."""
        self.integers += 1
        self.longs += 1
        self.doubles += 1
        self.decimals += 1
        self.low, self.high = min(self.low, value), max(self.high, value)
        self.whole = max(self.whole, len(str(abs(value))) if value else 0)

    def _field(self, name: str) -> Seen:
        found = self.fields.get(name)
        if found is None:
            found = self.fields[name] = Seen()
        return found

    def _bound(self) -> None:
        """Keeps only the first `MOST_FIELDS` fields in alphabetical order.

        This order does not depend on the order in which tasks merge their counts.
        """
        if len(self.fields) > MOST_FIELDS:
            self.fields = {name: self.fields[name] for name in sorted(self.fields)[:MOST_FIELDS]}

    def merge(self, other: Seen) -> None:
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.whole, self.fraction = max(self.whole, other.whole), max(self.fraction, other.fraction)
        if other.element is not None:
            self.element = self.element or Seen()
            self.element.merge(other.element)
        for name, seen in other.fields.items():
            self._field(name).merge(seen)
        self._bound()

    def to_json(self) -> dict[str, Any]:
        """Returns the counts of this field and of all nested fields as JSON, without zeros."""
        found: dict[str, Any] = {name: getattr(self, name) for name in (*_COUNTS, *_BOUNDS)}
        found["element"] = self.element.to_json() if self.element is not None else None
        found["fields"] = {name: seen.to_json() for name, seen in self.fields.items()}
        return {name: value for name, value in found.items() if value}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Seen:
        seen = cls(**{name: value for name, value in found.items() if name not in ("element", "fields")})
        if "element" in found:
            seen.element = cls.from_json(found["element"])
        seen.fields = {name: cls.from_json(each) for name, each in found.get("fields", {}).items()}
        return seen


_COUNTS = ("booleans", "strings", "numbers", "integers", "longs", "doubles", "decimals", "lists", "objects")
_BOUNDS = ("low", "high", "whole", "fraction")


# --- growing columns


def grown(known: Struct, seen: Seen, *, widens: bool, fixed: frozenset[str] = frozenset()) -> Struct:
    """Returns a table's columns, extended so that they hold the values in `seen`. `widens` allows wider column types.

    The table is partitioned by the columns in `fixed`. Such a column keeps its type if it exists. A new one whose
    values are objects or arrays becomes a STRING column.
    """
    columns = _grown_struct(known, seen, widens, 0, fixed).columns
    there = {column for column, _ in known.columns}
    return Struct(tuple((column, _one(kind) if column in fixed - there else kind) for column, kind in columns))


def _one(kind: Type) -> Type:
    return STRING if isinstance(kind, Struct | ListOf) else kind


def _grown_struct(known: Struct, seen: Seen, widens: bool, depth: int, fixed: frozenset[str] = frozenset()) -> Struct:
    columns = dict(known.columns)
    by_field = columns_by_field(columns)
    taken = {folded(column) for column in columns}
    for name in sorted(seen.fields):
        column = by_field.get(name)
        if column is not None:
            columns[column] = _grown(columns[column], seen.fields[name], widens and column not in fixed, depth + 1)
            continue
        column = column_of(name, top=not depth)
        found = _new(seen.fields[name], depth + 1)
        if found is not None and folded(column) not in taken and len(columns) < MOST_FIELDS:
            columns[column] = found
            taken.add(folded(column))
    return Struct(tuple(columns.items()))


def _grown(known: Type, seen: Seen, widens: bool, depth: int) -> Type:
    match known:
        case Struct():
            return _grown_struct(known, seen, widens, depth)
        case ListOf(element):
            return ListOf(_grown(element, seen.element, widens, depth + 1)) if seen.element is not None else known
        case DecimalOf():
            smaller = _holds(DECIMAL, known.precision - known.scale, known.scale)
            return DECIMAL if widens and smaller and not _holds(known, seen.whole, seen.fraction) else known
        case Scalar() if widens and known in INTEGERS:
            if seen.decimals > seen.longs:
                return DECIMAL
            return known if -INTEGERS[known] <= seen.low and seen.high < INTEGERS[known] else BIGINT
        case _:
            return known


def _new(seen: Seen, depth: int) -> Type | None:
    """Returns the type of a new column; None if the field has only nulls or is nested too deeply."""
    if depth > MOST_DEPTH:
        return None
    kinds: list[tuple[int, Type | None]] = [
        (seen.objects, _new_struct(seen, depth)),
        (seen.lists, _new_list(seen, depth)),
        (seen.strings, STRING),
        (seen.numbers, _new_number(seen)),
        (seen.booleans, BOOLEAN),
    ]
    count, found = max(((count, kind) for count, kind in kinds if kind is not None), key=lambda each: each[0])
    return found if count else None


def _new_struct(seen: Seen, depth: int) -> Type | None:
    found = _grown_struct(Struct(), seen, False, depth)
    return found if found.columns else None


def _new_list(seen: Seen, depth: int) -> Type | None:
    element = _new(seen.element, depth + 1) if seen.element is not None else None
    return ListOf(element) if element is not None else None


def _new_number(seen: Seen) -> Type:
    if seen.integers == seen.numbers:
        return BIGINT
    return DOUBLE if seen.doubles >= seen.decimals else DECIMAL


def widened(before: Struct, after: Struct, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Type]]:
    """Yields the path and the new type of each column whose type differs between `before` and `after`.

    In a path, `element` stands for an array's elements.
    """
    old = dict(before.columns)
    for column, kind in after.columns:
        if column in old:
            yield from _widened(old[column], kind, (*path, column))


def _widened(before: Type, after: Type, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Type]]:
    if isinstance(before, Struct) and isinstance(after, Struct):
        yield from widened(before, after, path)
    elif isinstance(before, ListOf) and isinstance(after, ListOf):
        yield from _widened(before.element, after.element, (*path, "element"))
    elif before != after:
        yield path, after
