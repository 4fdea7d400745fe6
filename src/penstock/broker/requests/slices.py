"""Serves large requests in slices, so that other requests are served between two slices.

Each pass of the event loop runs at most one slice: several large requests take turns. The size of a slice is a number
of elements, not a time, so that the simulator repeats it exactly.

Python's garbage collector visits every object from time to time and stops the process meanwhile: for 50 ms if a request
has a hundred thousand elements, although none of them is in a reference cycle. So the collector is disabled while a
large request runs, on the event loop or in threads, and while it waits for its next slice. It is enabled while the
request waits for other events. If large requests follow each other without a gap, the collector is enabled again at
`PAUSE_MAX_OBJECTS` objects, so that garbage does not pile up.
"""

from __future__ import annotations

import asyncio
import gc
import types
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

T = TypeVar("T")

#: Partitions in one slice: they take 2 ms in a Fetch, 15 ms in a Produce.
SLICE_PARTITIONS = 500
#: Objects created and not freed since the last collection, above which the collector runs even during a large request.
PAUSE_MAX_OBJECTS = 1_000_000


class Slices:
    __slots__ = ("_collects", "_lock", "_served")

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._served = 0
        self._collects = False

    async def turn(self) -> None:
        """Waits until the caller may run its next slice. Waiting callers run in the order of their calls."""
        with self.uncollected():
            async with self._lock:
                await asyncio.sleep(0)

    async def serve(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine that serves a large request, and returns its result.

        Python's garbage collector is disabled while the coroutine runs, and enabled while it waits for other events.
        """
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
                    thrown = None  # else this frame and the error's traceback would be a reference cycle
            try:
                with self.uncollected() if awaited is None else nullcontext():  # None: sleep(0), the next step follows
                    value = yield awaited
            except BaseException as error:
                thrown = error

    @contextmanager
    def uncollected(self) -> Iterator[None]:
        """Disables Python's garbage collector inside the `with` block."""
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
    """Splits `count` partitions into slices. Returns the index of the first partition of each slice."""
    return range(0, count, SLICE_PARTITIONS)
