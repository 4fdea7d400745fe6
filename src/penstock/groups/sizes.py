"""Bytes that groups and members take in memory: Python's own sizes of what clients sent, estimates of the rest."""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof

GROUP_BYTES = 1000
MEMBER_BYTES = 1500
#: Of a topic name or a protocol besides its own bytes: its place in tuples, sets and counters.
ENTRY_BYTES = 100


def texts(*given: str | bytes | None) -> int:
    return sum(getsizeof(each) for each in given if each is not None)


def protocols(given: Iterable[tuple[str, bytes]]) -> int:
    return sum(ENTRY_BYTES + getsizeof(name) + getsizeof(metadata) for name, metadata in given)


def topics(names: Iterable[str]) -> int:
    return sum(ENTRY_BYTES + getsizeof(name) for name in names)
