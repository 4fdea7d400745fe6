"""Estimates the memory of groups and members. Measures data from clients with `getsizeof`, and assumes a constant size
for all other data."""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof

GROUP_BYTES = 1000
MEMBER_BYTES = 1500
#: Overhead of a topic name or protocol: its places in tuples, sets and counters.
ENTRY_BYTES = 100


def texts(*given: str | bytes | None) -> int:
    return sum(getsizeof(each) for each in given if each is not None)


def protocols(given: Iterable[tuple[str, bytes]]) -> int:
    return sum(ENTRY_BYTES + getsizeof(name) + getsizeof(metadata) for name, metadata in given)


def topics(names: Iterable[str]) -> int:
    return sum(ENTRY_BYTES + getsizeof(name) for name in names)
