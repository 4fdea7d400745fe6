"""Maps field names of JSON values to column names, and back. Pure code.

A table has columns besides the value's fields, and a column's name has no spaces or dots. So a character that is not
allowed in a column name becomes `%` and its two hexadecimal digits, as in a URL (`a b` is column `a%20b`). If a field
has the name of a column that Penstock adds, its underscore is escaped (`_key` is column `%5Fkey`). A field whose
name begins and ends with an underscore is escaped too, because Delta adds such columns in a merge (`_row_id_`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from penstock.pipelines.topics import PLACES

BAD = "_bad"
"""The column with the whole value, if the other columns do not hold all of it."""
OWN = ("_key", *PLACES, BAD, "_bad_value", "_bad_reason", "_gone")
"""Columns that are not fields of the value."""

#: The column of the field with the empty name; in other columns, digits follow a `%`.
_EMPTY = "%"
#: Characters that Delta refuses in names, the separator of nested fields, the quote, and the escape character itself.
_UNSAFE = re.compile(r"[\x00-\x20\x7f,;{}()=.`%]")
#: Names that Delta gives to columns of its own.
_DELTAS = re.compile(r"_.*_")


def column_of(field: str, *, top: bool) -> str:
    """Returns the column name for a field. `top` is False for a field of a nested object.

    With `top`, the result is never the name of a column that Penstock adds, such as `_key`.
    """
    if not field:
        return _EMPTY
    safe = _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", field)
    return f"%5F{safe[1:]}" if top and (folded(safe) in _OWN or _DELTAS.fullmatch(safe)) else safe


def field_of(column: str) -> str:
    return "" if column == _EMPTY else unquote(column, errors="surrogatepass")


def columns_by_field(columns: Iterable[str]) -> dict[str, str]:
    """Returns a dict from field names to the given column names.

    A column whose name Penstock would have escaped (for example `a.b`) belongs to the field with exactly this name.
    """
    found = {}
    for column in columns:
        field = field_of(column)
        named_here = column in (column_of(field, top=True), column_of(field, top=False))
        found[field if named_here else column] = column
    return found


def folded(name: str) -> str:
    """Returns a form of the name that is equal for names that Spark treats as the same.

    Spark ignores case, by Java's rules.
    """
    return name.upper().casefold().replace("i\u0307", "i")


_OWN = frozenset(folded(name) for name in OWN)
