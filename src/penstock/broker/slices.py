"""Work with more elements than one pass of the loop has time for: slices of all such requests take turns.

A slice is done in one go, and between two slices everybody else is served. A pass of the loop has one slice, however
many large requests there are. Slices are counted, not timed: the simulator repeats them exactly.

Python's collector of cycles looks at every object now and then, and stops everything for that: 50 ms for the objects of
a hundred thousand elements, of which none is in a cycle. It pauses while such a request is served, but not while one
waits.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: Partitions of one slice: 2 ms of a Fetch, 15 ms of a Produce.
SLICE_PARTITIONS = 500


class Slices:
    __slots__ = ("_collects", "_lock", "_served")

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._served = 0
        self._collects = False

    async def turn(self) -> None:
        """Returns when the caller may do its next slice: requests come in the order in which they asked."""
        async with self._lock:
            await asyncio.sleep(0)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """While a large request is served, garbage in cycles waits."""
        self._begin()
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside of `serving`, while the request waits for something."""
        self._end()
        try:
            yield
        finally:
            self._begin()

    def _begin(self) -> None:
        if not self._served:
            self._collects = gc.isenabled()
            gc.disable()
        self._served += 1

    def _end(self) -> None:
        self._served -= 1
        if not self._served and self._collects:
            gc.enable()


def starts(count: int) -> range:
    """Where the slices of so many partitions start."""
    return range(0, count, SLICE_PARTITIONS)
