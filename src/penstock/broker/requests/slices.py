"""Work with more elements than one pass of the loop has time for: slices of all such requests take turns.

A slice is done in one go, and between two slices everybody else is served. A pass of the loop has one slice, however
many large requests there are. Slices are counted, not timed: the simulator repeats them exactly.

Python's collector of cycles looks at every object now and then, and stops everything for that: 50 ms for the objects of
a hundred thousand elements, of which none is in a cycle. It pauses for every step of such a request, for its work in
threads and until its next slice, but not while the request waits for anything else. Garbage must not pile up while
large requests follow each other without a gap, so the pause ends when there are `PAUSE_MAX_OBJECTS`.
"""

from __future__ import annotations

import asyncio
import gc
import types
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

T = TypeVar("T")

#: Partitions of one slice: 2 ms of a Fetch, 15 ms of a Produce.
SLICE_PARTITIONS = 500
#: Objects made and not freed since the collector's last look, from which on it looks at them whatever is served.
PAUSE_MAX_OBJECTS = 1_000_000


class Slices:
    __slots__ = ("_collects", "_lock", "_served")

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._served = 0
        self._collects = False

    async def turn(self) -> None:
        """Returns when the caller may do its next slice: requests come in the order in which they asked."""
        with self.uncollected():
            async with self._lock:
                await asyncio.sleep(0)

    async def serve(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that serves a large request: the collector pauses for its steps."""
        return await self._steps(coroutine)

    @types.coroutine
    def _steps(self, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        value, thrown = None, None
        while True:
            with self.uncollected():
                try:
                    awaited = coroutine.send(value) if thrown is None else coroutine.throw(thrown)
                except StopIteration as done:
                    result: T = done.value
                    return result
                finally:
                    thrown = None  # an error that this frame holds, and whose traceback has this frame, is a cycle
            try:
                with self.uncollected() if awaited is None else nullcontext():  # None: others have their turn
                    value = yield awaited
            except BaseException as error:
                thrown = error

    @contextmanager
    def uncollected(self) -> Iterator[None]:
        """While this is done, garbage in cycles waits."""
        self._begin()
        try:
            yield
        finally:
            self._end()

    def _begin(self) -> None:
        if not self._served:
            self._collects = gc.isenabled()
        self._served += 1
        if gc.get_count()[0] <= PAUSE_MAX_OBJECTS:
            gc.disable()
        elif self._collects:
            gc.enable()

    def _end(self) -> None:
        self._served -= 1
        if not self._served and self._collects:
            gc.enable()


def starts(count: int) -> range:
    """Where the slices of so many partitions start."""
    return range(0, count, SLICE_PARTITIONS)
