"""Parses kcat's -o: the positions at which `penstock consume` starts and stops.

A position is `beginning`, `end`, `stored`, an offset, `-N` for the last N records of every partition, `s@TIME` for a
start by timestamp, or `e@TIME` for a stop by timestamp. A time is milliseconds since 1970 or an ISO date and time (in
UTC unless it has a UTC offset).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.cli.exit import Exit, Failure

MAX_INT64 = 2**63 - 1


@dataclass(slots=True, frozen=True)
class Beginning:
    pass


@dataclass(slots=True, frozen=True)
class End:
    pass


@dataclass(slots=True, frozen=True)
class Stored:
    """Selects the group's committed offset as the start, or the beginning if the group has no committed offset."""


@dataclass(slots=True, frozen=True)
class Absolute:
    offset: int


@dataclass(slots=True, frozen=True)
class Last:
    count: int


@dataclass(slots=True, frozen=True)
class AtTime:
    timestamp_ms: int


Position = Beginning | End | Stored | Absolute | Last | AtTime


@dataclass(slots=True, frozen=True)
class Span:
    """Holds the range of records to read: from `start` on, and before the time `stop_ms` if it is not None."""

    start: Position
    stop_ms: int | None = None


def parse_span(texts: Iterable[str], default: Position) -> Span:
    start: Position | None = None
    stop_ms: int | None = None
    for text in texts:
        if text.startswith("e@"):
            stop_ms = parse_time(text[2:])
        elif start is not None:
            raise Failure(
                "-o is given twice with a start position: keep one of them (only e@TIME sets a stop)", Exit.USAGE
            )
        else:
            start = parse_position(text)
    return Span(start or default, stop_ms)


def parse_position(text: str) -> Position:
    match text:
        case "beginning" | "earliest":
            return Beginning()
        case "end" | "latest":
            return End()
        case "stored":
            return Stored()
    if text.startswith("s@"):
        return AtTime(parse_time(text[2:]))
    try:
        value = int(text)
    except ValueError:
        raise Failure(f"-o takes beginning, end, stored, N, -N, s@TIME or e@TIME, not {text!r}", Exit.USAGE) from None
    if abs(value) > MAX_INT64:
        raise Failure(f"-o {text} is too large: the maximum offset is {MAX_INT64}", Exit.USAGE)
    return Last(-value) if value < 0 else Absolute(value)


def parse_time(text: str) -> int:
    if text.isdecimal():
        if len(text) > len(str(MAX_INT64)) or int(text) > MAX_INT64:
            raise Failure(f"{text} is too large for a time: the maximum is {MAX_INT64} ms since 1970", Exit.USAGE)
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Failure(
            f"{text!r} is not a time: give a date such as 2026-01-31T12:00:00, or milliseconds since 1970", Exit.USAGE
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
