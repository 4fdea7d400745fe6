"""Decides when a pipeline stops.

A signal only sets a flag, because an exception in the signal handler would interrupt a call into Java.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: A signal may arrive twice at once, from the terminal and the parent process: only a later one means "stop now".
AGAIN_S = 1.0


class Ending:
    """Tells a pipeline to stop at a deadline or a signal.

    A second signal raises KeyboardInterrupt, if it arrives at least AGAIN_S seconds after the first.
    """

    def __init__(self, until_s: float | None, now: Callable[[], float] = time.monotonic) -> None:
        self._until_s = until_s
        self._now = now
        self._asked_s: float | None = None

    def on_signal(self, *_: object) -> None:
        if self._asked_s is not None and self._now() - self._asked_s >= AGAIN_S:
            raise KeyboardInterrupt
        if self._asked_s is None:
            self._asked_s = self._now()

    def due(self) -> bool:
        return self._asked_s is not None or (self._until_s is not None and self._now() >= self._until_s)


@contextmanager
def signals(handle: Callable[..., None]) -> Iterator[None]:
    """Calls `handle` for SIGINT and SIGTERM while the block runs, so that these signals don't interrupt a call into
    Spark."""
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
