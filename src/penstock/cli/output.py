"""Prints results on stdout, as a table or as JSON, and notes and progress on stderr.

`rich` draws tables on a terminal and is imported only there. A pipe gets plain columns, which need no import and are
easy to cut. JSON is one document per command (a list of objects for a listing); its keys are the columns in snake_case.

Names, ids and messages come from outside and may contain terminal control sequences. So all output goes through
`printable` or `json_text`, which show control characters as escapes. Only `consume` prints bytes unchanged, and only if
stdout is not a terminal.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

Row = Mapping[str, Any]
PROGRESS_EVERY_S = 5.0  # interval of plain lines, where stderr is not a terminal
REDRAW_EVERY_S = 0.1
_CONTROLS_BEYOND_JSON = re.compile(
    "[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)  # json.dumps escapes control characters below U+0020


def printable(text: str, *, keep: str = "") -> str:
    """Returns the text with control characters as escapes such as \\x1b and \\n. Characters in `keep` are kept."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Returns readable JSON in which terminal control characters are escapes."""
    separators = None if indent else (",", ":")
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, default=_plain)
    return escaped(text)


def escaped(text: str) -> str:
    """Escapes the control characters from U+007F on in JSON text. JSON itself escapes only those below U+0020."""
    return _CONTROLS_BEYOND_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def rows(how: str, columns: Sequence[str], found: Iterable[Row], *, empty: str = "") -> None:
    """Prints a list of rows. `columns` names the keys that a table shows, in order; JSON has every key of a row."""
    listed = list(found)
    if how == "json":
        print(json_text([dict(row) for row in listed], indent=2))
    elif not listed:
        note(empty)
    elif sys.stdout.isatty():
        _rich_table(columns, listed)
    else:
        _plain_table(columns, listed)


def record(how: str, fields: Row) -> None:
    """Prints one object, as `name value` lines or as a JSON object."""
    if how == "json":
        print(json_text(dict(fields), indent=2))
        return
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        print(f"{name:<{width}}  {cell(value)}")


def note(text: str) -> None:
    """Prints a note on stderr. Notes are not part of a command's result, which goes to stdout."""
    if text:
        print(printable(text), file=sys.stderr)


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun: `1 record`, `2,000 records`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def cell(value: Any) -> str:
    return printable(_shown(value))


def _shown(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case dict():
            return ", ".join(f"{name}={inner}" for name, inner in value.items()) or "-"
        case list() | tuple() | set() | frozenset():
            return ",".join(_shown(each) for each in value) or "-"
        case bytes():
            return value.decode(errors="replace")
        case _:
            return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode(errors="replace")
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def _plain_table(columns: Sequence[str], listed: Sequence[Row]) -> None:
    grid = [[column.upper() for column in columns]]
    grid += [[cell(row.get(column)) for column in columns] for row in listed]
    widths = [max(len(line[i]) for line in grid) for i in range(len(columns))]
    for line in grid:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())


def _rich_table(columns: Sequence[str], listed: Sequence[Row]) -> None:
    from rich.console import Console

    Console().print(rich_table(columns, listed))


def rich_table(columns: Sequence[str], listed: Sequence[Row], colours: Mapping[str, str] | None = None) -> Any:
    """Builds a table for a terminal. `colours` maps a cell's text to its style."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold underline")
    for column in columns:
        numeric = all(isinstance(row.get(column), int | None) for row in listed)
        table.add_column(column.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        cells = [cell(row.get(column)) for column in columns]
        table.add_row(*(Text(each, style=(colours or {}).get(each, "")) for each in cells))
    return table


class Progress:
    """Shows the progress of long work: on a terminal redraws one line, elsewhere prints a line now and then.

    with Progress("produced", unit="records") as progress:
        progress.add(500)
    """

    def __init__(self, label: str, *, total: int | None = None, unit: str = "", quiet: bool = False) -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self.done = 0
        self.quiet = quiet
        self._moving = sys.stderr.isatty()
        self._began = self._shown = time.monotonic()
        self._drawn = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._drawn and self._moving:
            self._draw()
            print(file=sys.stderr)

    def add(self, count: int = 1) -> None:
        self.done += count
        now = time.monotonic()
        if not self.quiet and now - self._shown >= (REDRAW_EVERY_S if self._moving else PROGRESS_EVERY_S):
            self._shown = now
            self._draw()

    @property
    def line(self) -> str:
        elapsed = max(time.monotonic() - self._began, 1e-9)
        of = f" of {self.total:,} ({self.done * 100 // max(self.total, 1)} %)" if self.total is not None else ""
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.label} {self.done:,}{of}{unit}, {self.done / elapsed:,.0f}/s"

    def _draw(self) -> None:
        self._drawn = True
        if self._moving:
            print(f"\r\x1b[K{printable(self.line)}", end="", file=sys.stderr, flush=True)
        else:
            print(printable(self.line), file=sys.stderr, flush=True)
