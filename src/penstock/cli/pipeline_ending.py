"""When a pipeline is to stop. A signal is noted, not raised: amid a call into Java it would leave that torn."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: One signal may come twice, from a terminal and from whoever started us: only a later one means "at once".
AGAIN_S = 1.0


class Ending:
    """When to stop: at a time, or at a signal. Another signal a moment later is for at once."""

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
    """Instead of an interrupt in the middle of a call into Spark."""
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
