"""Limits the size of a decoded value, and converts numbers that JSON readers can't represent. Pure code."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

#: Nested messages, records, lists and maps.
DEPTH_MAX = 64
#: Numbers, texts, names and messages in one decoded value.
VALUES_MAX = 10_000
#: Characters of texts and names in one decoded value.
TEXT_MAX = 512 * 1024
#: Bytes of a key or value that is decoded.
DATA_MAX_BYTES = 256 * 1024
#: Browsers and many other readers of JSON round whole numbers beyond this one.
EXACT_MAX = 2**53 - 1
_EPOCH = datetime(1970, 1, 1)


class FormatError(ValueError):
    """Raised if data or a schema can't be decoded. The message gives the reason, without a full stop."""


@contextmanager
def schema_errors() -> Iterator[None]:
    """Turns the errors that an invalid schema causes inside the `with` block into FormatError.

    A user who may register schemas can register invalid ones. They must not make a whole HTTP response fail.
    """
    try:
        yield
    except FormatError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise FormatError(f"the schema can't be used ({type(error).__name__})") from error


class Room:
    """Holds the limits that are left: the number of values and the length of text that may still be decoded."""

    __slots__ = ("text", "values")

    def __init__(self, values: int = VALUES_MAX, text: int = TEXT_MAX) -> None:
        self.values = values
        self.text = text

    def take(self, text: int = 0) -> None:
        self.values -= 1
        self.text -= text
        if self.values < 0 or self.text < 0:
            raise FormatError("the record has too many values or too much text to be shown")

    def part(self) -> Room:
        """Returns the limits for one key or value: VALUES_MAX and TEXT_MAX, or less if less is left."""
        return Room(min(VALUES_MAX, self.values), min(TEXT_MAX, self.text))

    def spend(self, before: Room, after: Room) -> None:
        """Subtracts what one key or value has used. `before` and `after` are its limits before and after decoding."""
        self.values -= before.values - max(after.values, 0)
        self.text -= before.text - max(after.text, 0)


def check_depth(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise FormatError(f"the data or its schema is nested deeper than {DEPTH_MAX} levels")


def exact(number: int) -> int | str:
    """Returns an integer unchanged, or as text if it is so large that JavaScript would round it."""
    return number if -EXACT_MAX <= number <= EXACT_MAX else str(number)


def finite(number: float) -> float | str:
    """Returns a float unchanged; NaN and infinities become text, because JSON has no numbers for them."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def instant(number: int, digits: int, zone: str = "Z") -> int | str:
    """Returns a time since 1970 as ISO 8601 text. `digits` counts the digits after the second: 3 for milliseconds.

    Returns the number itself if the time is outside the years 1 to 9999.
    """
    seconds, rest = divmod(number, 10**digits)
    try:
        text = (_EPOCH + timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        return exact(number)
    return f"{text}.{rest:0{digits}d}{zone}" if digits else f"{text}{zone}"
