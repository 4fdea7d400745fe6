"""Tests the watchdog: it stops and names an iteration of an event loop that never ends."""

import asyncio
from random import Random

import pytest

from penstock.sim.engine.loop import Timeline
from penstock.sim.engine.watchdog import EndlessTurnError, watched


def spin_for_ever() -> None:
    while True:
        pass


async def endless() -> None:
    await asyncio.sleep(2)
    spin_for_ever()


def test_endless_event_loop_iteration_is_stopped_and_the_error_names_its_process_and_function() -> None:
    timeline = Timeline(Random(1))
    where = r"test_sim_watchdog\.py:\d+ spin_for_ever, called from .* endless"
    stuck = rf"An event loop turn of n1 at 2\.000 s has not ended .*{where}"
    with pytest.raises(EndlessTurnError, match=stuck), watched(timeline, cpu_s=0.05):
        timeline.run(endless(), timeline.process("n1"))


def test_watchdog_does_not_stop_a_run_of_many_short_event_loop_iterations() -> None:
    timeline = Timeline(Random(1))

    async def busy() -> str:
        for _ in range(30_000):
            await asyncio.sleep(0)
        return "done"

    with watched(timeline, cpu_s=0.02):
        assert timeline.run(busy(), timeline.process("n1")) == "done"
