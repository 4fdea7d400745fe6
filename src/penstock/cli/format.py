"""How consumed records are printed: kcat's format strings.

`%t` topic, `%p` partition, `%o` offset, `%T` timestamp, `%k` key, `%s` value, `%h` headers, `%K` and `%S` the lengths
of key and value (-1 where null), `%R` the value's length as four bytes, `%%` a percent sign; `\\n`, `\\t`, `\\r`,
`\\0`, `\\\\`, `\\xHH` are what they are elsewhere. Output is bytes: a value leaves exactly as it was written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from penstock.cli.exit import Exit, Failure

Headers = tuple[tuple[str, bytes | None], ...]


class Consumed(NamedTuple):
    """A record and where it came from."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    log_append_time: bool = False


class Outgoing(NamedTuple):
    """A record to write. Without a timestamp it gets the present, without a partition one by its key."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None


Piece = Callable[[Consumed], bytes]
Formatter = Callable[[Consumed], bytes]

ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def unescape(text: str) -> bytes:
    """A delimiter or format text as the user typed it, backslashes resolved."""
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
                raise Failure(f"\\x wants two hexadecimal digits, not {digits!r}", Exit.USAGE) from None
            at += 4
        else:
            out += ESCAPES.get(following) or f"\\{following}".encode(errors="surrogateescape")
            at += 2
    return bytes(out)


def _length(value: bytes | None) -> int:
    return -1 if value is None else len(value)


def _headers(record: Consumed) -> bytes:
    return b",".join(name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in record.headers)


def _pieces(null: bytes) -> dict[str, Piece]:
    return {
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp,
        "k": lambda record: null if record.key is None else record.key,
        "s": lambda record: null if record.value is None else record.value,
        "h": _headers,
        "K": lambda record: b"%d" % _length(record.key),
        "S": lambda record: b"%d" % _length(record.value),
        "R": lambda record: struct.pack(">i", _length(record.value)),
    }


def _literal(text: bytes) -> Piece:
    return lambda _: text


def compile_format(text: str, *, null: bytes = b"") -> Formatter:
    """A function from record to bytes, the format string read once."""
    known = _pieces(null)
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
            raise Failure(f"-f does not know %{letter}: use %t %p %o %T %k %s %h %K %S %R or %%", Exit.USAGE)
        at += 2
    if plain:
        pieces.append(_literal(unescape(plain)))
    return lambda record: b"".join([piece(record) for piece in pieces])


def delimited(*, key_delimiter: bytes | None, delimiter: bytes, null: bytes = b"") -> Formatter:
    """The default: the value and a delimiter, with -K the key and its delimiter before."""

    def line(record: Consumed) -> bytes:
        value = null if record.value is None else record.value
        if key_delimiter is None:
            return value + delimiter
        return (null if record.key is None else record.key) + key_delimiter + value + delimiter

    return line
