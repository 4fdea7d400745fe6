"""Measures how late the event loop runs its timers. A timer that is late shows that a callback has blocked the loop."""

from __future__ import annotations

import asyncio

from penstock.histogram import Histogram

PERIOD_S = 0.02
BOUNDS_US = (500, 1000, 2500, 5000, 10_000, 20_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000)
#: A delay of more than this is a stall. Requests are cut so that none holds the loop for longer.
STALL_US = 50_000


class LoopDelays:
    """Measures the delays of the running event loop from `start` to `stop`."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self.delays = Histogram(BOUNDS_US)
        self.stalls = 0
        self.longest_us = 0

    def start(self) -> None:
        """Begins to measure. No-op if the measurement has already begun."""
        if self._timer is None:
            self._next(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + PERIOD_S
        self._timer = loop.call_at(due, self._measure, loop, due)

    def _measure(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        delay_us = max(0, int((loop.time() - due) * 1_000_000))
        self.delays.add(delay_us)
        self.longest_us = max(self.longest_us, delay_us)
        if delay_us > STALL_US:
            self.stalls += 1
        self._next(loop)
