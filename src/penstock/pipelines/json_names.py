"""Field names of JSON values as column names, and back. Pure.

A table's columns are more than a value's fields, differ in more than case, and have no spaces or dots. So a character
that no column name may have becomes `%` and its two hexadecimal digits, as in an address (`a b` is column `a%20b`), and
a field that is named like a column of the record's own has its underscore written so (`_key` is `%5Fkey`), as has one
that is named like those that Delta adds while it merges (`_row_id_`, all begin and end with an underscore).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from penstock.pipelines.topics import PLACES

BAD = "_bad"
"""The column that holds a value which the others don't hold in full."""
OWN = ("_key", *PLACES, BAD, "_bad_value", "_bad_reason", "_gone")
"""Columns that are not fields of the value."""

#: The name of the field whose name is empty: every other `%` is followed by digits.
_EMPTY = "%"
#: What Delta refuses in names, what separates names of nested fields, what quotes them, and what is written with `%`.
_UNSAFE = re.compile(r"[\x00-\x20\x7f,;{}()=.`%]")
#: What Delta calls columns of its own.
_DELTAS = re.compile(r"_.*_")


def column_of(field: str, *, top: bool) -> str:
    """`top`: it is a field of the value itself, which must not be named like a column of the record's own."""
    if not field:
        return _EMPTY
    safe = _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", field)
    return f"%5F{safe[1:]}" if top and (folded(safe) in _OWN or _DELTAS.fullmatch(safe)) else safe


def field_of(column: str) -> str:
    return "" if column == _EMPTY else unquote(column, errors="surrogatepass")


def columns_by_field(columns: Iterable[str]) -> dict[str, str]:
    """Which column holds a field. One that was not named here, such as `a.b`, holds the field of its own name."""
    found = {}
    for column in columns:
        field = field_of(column)
        named_here = column in (column_of(field, top=True), column_of(field, top=False))
        found[field if named_here else column] = column
    return found


def folded(name: str) -> str:
    """Equal for names that Spark takes for the same: it compares letters by their upper and then lower case."""
    return name.upper().casefold().replace("i\u0307", "i")


_OWN = frozenset(folded(name) for name in OWN)
