"""Prints consumed records with kcat's format strings.

`%t` topic, `%p` partition, `%o` offset, `%T` timestamp, `%k` key, `%s` value, `%h` headers, `%K` and `%S` the lengths
of key and value (-1 where null), `%R` the value's length as four bytes, `%%` a percent sign; `\\n`, `\\t`, `\\r`,
`\\0`, `\\\\`, `\\xHH` have their usual meaning. Output is bytes: a value is printed exactly as it was written, except
on a terminal, where control characters are shown as escapes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.exit import Exit, Failure
from penstock.cli.output import printable

if TYPE_CHECKING:
    from penstock.records.record import Record

Headers = tuple[tuple[str, bytes | None], ...]


class Consumed(NamedTuple):
    """Holds a record with its topic, partition and offset."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    log_append_time: bool = False


class Place(NamedTuple):
    """Names the topic and partition that records came from, and the type of their timestamps."""

    topic: str
    partition: int
    log_append_time: bool = False


Piece = Callable[[Consumed], bytes]
Formatter = Callable[[Place, "list[Record]"], bytes]
Shown = Callable[[bytes], bytes]
"""A function that returns the bytes to print for bytes of a record."""

ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def unescape(text: str) -> bytes:
    """Returns a delimiter or format text as bytes, with its backslash escapes replaced."""
    out = bytearray()
    at = 0
    while at < len(text):
        char = text[at]
        if char != "\\" or at + 1 == len(text):
            out += char.encode(errors="surrogateescape")
            at += 1
            continue
        following = text[at + 1]
        if following == "x":
            digits = text[at + 2 : at + 4]
            try:
                out.append(int(digits, 16))
            except ValueError:
                raise Failure(f"\\x must be followed by two hexadecimal digits, not {digits!r}", Exit.USAGE) from None
            at += 4
        else:
            out += ESCAPES.get(following) or f"\\{following}".encode(errors="surrogateescape")
            at += 2
    return bytes(out)


def consumed(place: Place, records: list[Record]) -> Iterator[Consumed]:
    topic, partition, appended = place
    return (Consumed(topic, partition, *record, appended) for record in records)


def as_written(value: bytes) -> bytes:
    return value


def for_terminal(value: bytes) -> bytes:
    """Returns bytes of a record in a form that is safe on a terminal: control characters and invalid UTF-8 are
    escaped."""
    return printable(value.decode(errors="backslashreplace"), keep="\n\t").encode()


def _length(value: bytes | None) -> int:
    return -1 if value is None else len(value)


def _headers(record: Consumed) -> bytes:
    return b",".join(name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in record.headers)


def _pieces(null: bytes, shown: Shown) -> dict[str, Piece]:
    return {
        "t": lambda record: shown(record.topic.encode()),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp,
        "k": lambda record: null if record.key is None else shown(record.key),
        "s": lambda record: null if record.value is None else shown(record.value),
        "h": lambda record: shown(_headers(record)),
        "K": lambda record: b"%d" % _length(record.key),
        "S": lambda record: b"%d" % _length(record.value),
        "R": lambda record: struct.pack(">i", _length(record.value)),
    }


def _literal(text: bytes) -> Piece:
    return lambda _: text


def compile_format(text: str, *, null: bytes = b"", shown: Shown = as_written) -> Formatter:
    """Compiles a format string. Returns a function that converts a record to bytes."""
    known = _pieces(null, shown)
    pieces: list[Piece] = []
    plain = ""
    at = 0
    while at < len(text):
        if text[at] != "%":
            plain += text[at]
            at += 1
            continue
        letter = text[at + 1 : at + 2]
        if letter == "%":
            plain += "%"
        elif letter in known:
            if plain:
                pieces.append(_literal(unescape(plain)))
                plain = ""
            pieces.append(known[letter])
        else:
            raise Failure(f"-f does not support %{letter}: use %t %p %o %T %k %s %h %K %S %R or %%", Exit.USAGE)
        at += 2
    if plain:
        pieces.append(_literal(unescape(plain)))
    return lambda place, records: b"".join([piece(each) for each in consumed(place, records) for piece in pieces])


def delimited(
    *, key_delimiter: bytes | None, delimiter: bytes, null: bytes = b"", shown: Shown = as_written
) -> Formatter:
    """Returns the formatter that is used without -f: it writes the value and a delimiter.

    With -K, it writes the key and the key delimiter first.
    """

    def text(value: bytes | None) -> bytes:
        return null if value is None else shown(value)

    def values(_: Place, records: list[Record]) -> bytes:
        found = [value for _, _, _, value, _ in records]
        plain = None not in found and shown is as_written
        return delimiter.join([*(found if plain else map(text, found)), b""])

    def pairs(_: Place, records: list[Record]) -> bytes:
        assert key_delimiter is not None
        return b"".join([text(key) + key_delimiter + text(value) + delimiter for _, _, key, value, _ in records])

    return values if key_delimiter is None else pairs
