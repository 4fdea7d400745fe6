"""Tests the simulated wall clock of one machine."""

from random import Random

from penstock.sim.engine.clock import EPOCH_MS, SimClock
from penstock.sim.engine.loop import Timeline


def test_clock_that_jumped_back_remembers_the_latest_time_it_showed() -> None:
    clock = SimClock(Timeline(Random(1)))
    assert clock.latest_ms == EPOCH_MS
    clock.jump(500)
    clock.jump(-300)
    assert (clock.wall_ms(), clock.latest_ms) == (EPOCH_MS + 200, EPOCH_MS + 500)
    clock.jump(-900)
    assert (clock.wall_ms(), clock.latest_ms) == (EPOCH_MS - 700, EPOCH_MS + 500)
    clock.jump(2_000)
    assert clock.wall_ms() == clock.latest_ms == EPOCH_MS + 1_300
