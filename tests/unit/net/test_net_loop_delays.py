"""Tests the measurement of event loop delays, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from penstock.net.loop_delays import PERIOD_S, STALL_US, LoopDelays


class StubLoop:
    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Any, tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Any, *args: Any) -> asyncio.TimerHandle:
        self.timers.append((when, call, args))
        return cast(asyncio.TimerHandle, None)

    def run_timer(self, late_s: float) -> None:
        when, call, args = self.timers.pop()
        self.now = when + late_s
        call(*args)


def test_each_event_loop_delay_is_counted_and_a_long_delay_counts_as_a_stall() -> None:
    delays, loop = LoopDelays(), StubLoop()
    delays._next(cast(asyncio.AbstractEventLoop, loop))
    for late_s in (0.0, 0.003, STALL_US / 1_000_000 + 0.001, 2.0):
        loop.run_timer(late_s)
    assert sum(delays.delays.counts) == 4
    assert delays.stalls == 2
    assert 1_999_000 <= delays.longest_us <= 2_000_000
    assert loop.timers[0][0] == loop.now + PERIOD_S


def test_measurement_of_loop_delays_ignores_a_second_start_and_a_second_stop() -> None:
    async def scenario() -> None:
        delays = LoopDelays()
        delays.start()
        timer = delays._timer
        delays.start()
        assert delays._timer is timer
        delays.stop()
        assert timer is not None
        assert timer.cancelled()
        delays.stop()

    asyncio.run(scenario())
