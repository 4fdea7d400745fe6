"""Measures the callbacks of a node's event loop one by one: their CPU time, or the lines of Python that they run."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest

from penstock.testing import Broker, loop_thread


@dataclass(slots=True)
class Longest:
    """Holds the largest cost of one callback, and the name of this callback."""

    cost: float = 0.0
    name: str = ""

    def see(self, cost: float, handle: asyncio.Handle) -> None:
        if cost > self.cost:
            callback = handle._callback  # type: ignore[attr-defined]
            task = getattr(callback, "__self__", None)
            self.cost = cost
            self.name = str(task.get_coro()) if isinstance(task, asyncio.Task) else str(callback)


@contextmanager
def cpu_of_callbacks(broker: Broker) -> Iterator[Longest]:
    """Measures the CPU seconds of each callback that the broker's event loop runs inside the block."""
    with _measured(broker.run(_thread()), time.thread_time) as longest:
        yield longest


@contextmanager
def lines_of_callbacks(broker: Broker) -> Iterator[Longest]:
    """Counts the lines of Python of each callback that the broker's event loop runs inside the block.

    The count depends on no clock: a list of 1,000 items counts the same on every machine.
    """
    lines = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    async def trace(tracer: Any) -> None:
        sys.settrace(tracer)

    broker.run(trace(count))
    try:
        with _measured(broker.run(_thread()), lambda: lines) as longest:
            yield longest
    finally:
        broker.run(trace(None))


@contextmanager
def asyncio_loop() -> Iterator[None]:
    """Runs brokers that start inside the block on asyncio's own event loop, whose callbacks can be measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_thread, "new_event_loop", asyncio.new_event_loop)
        yield


async def _thread() -> int:
    return threading.get_ident()


@contextmanager
def _measured(thread: int, meter: Callable[[], float]) -> Iterator[Longest]:
    original = asyncio.Handle._run
    longest = Longest()

    def run(handle: asyncio.Handle) -> None:
        if threading.get_ident() != thread:
            original(handle)
            return
        before = meter()
        original(handle)
        longest.see(meter() - before, handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", run)
        yield longest
