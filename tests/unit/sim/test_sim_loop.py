"""Tests the simulated event loop: virtual time, the order of callbacks, pauses, blocking calls, killed processes."""

import asyncio
from random import Random

import pytest

from penstock.sim.engine.loop import ProcessDied, ProcessKilled, SimulationError, Timeline, run_in


def timeline(seed: int = 1) -> Timeline:
    return Timeline(Random(seed))


def test_sleeping_a_virtual_day_takes_no_real_time_and_ends_at_the_exact_virtual_time() -> None:
    world = timeline()
    main = world.process("main")

    async def sleeper() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    assert world.run(sleeper(), main) == 86_400


def test_callbacks_of_a_process_run_in_the_order_of_their_call_soon_calls() -> None:
    world = timeline()
    main = world.process("main")
    seen: list[int] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in range(100):
            loop.call_soon(seen.append, number)
        await asyncio.sleep(1)

    world.run(run(), main)
    assert seen == list(range(100))


def order_of_timers(seed: int) -> list[int]:
    world = timeline(seed)
    main = world.process("main")
    seen: list[int] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in range(10):
            loop.call_at(5.0, seen.append, number)
        await asyncio.sleep(6)

    world.run(run(), main)
    return seen


def test_the_seed_decides_the_order_of_timers_due_at_the_same_time() -> None:
    orders = {tuple(order_of_timers(seed)) for seed in range(5)}
    assert len(orders) == 5
    assert order_of_timers(3) == order_of_timers(3)
    assert sorted(order_of_timers(3)) == list(range(10))


def test_a_paused_process_runs_its_overdue_timers_when_it_resumes() -> None:
    world = timeline()
    main, other = world.process("main"), world.process("other")
    seen: list[float] = []

    async def ticking() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            seen.append(asyncio.get_running_loop().time())

    async def run() -> None:
        ticks = asyncio.ensure_future(run_in(other, ticking()))
        await asyncio.sleep(1.5)
        other.stop()
        await asyncio.sleep(10)
        other.resume()
        await ticks

    world.run(run(), main)
    assert seen == [1.0, 11.5, 12.5]


def test_blocking_call_blocks_only_the_simulated_process_that_makes_the_call() -> None:
    world = timeline()
    main, other = world.process("main"), world.process("other")

    async def blocked() -> float:
        other.block(3)
        await asyncio.sleep(1)
        return asyncio.get_running_loop().time()

    async def run() -> tuple[float, float]:
        waiting = asyncio.ensure_future(run_in(other, blocked()))
        await asyncio.sleep(1)
        return asyncio.get_running_loop().time(), await waiting

    assert world.run(run(), main) == (1.0, 3.0)


def test_a_paused_process_does_not_resume_when_its_blocking_call_ends() -> None:
    world = timeline()
    main, other = world.process("main"), world.process("other")

    async def now() -> float:
        await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    async def run() -> float:
        other.stop()
        other.block(1)
        waiting = asyncio.ensure_future(run_in(other, now()))
        await asyncio.sleep(5)
        other.resume()
        return await waiting

    assert world.run(run(), main) == 5.0


def test_a_killed_process_runs_no_callback() -> None:
    world = timeline()
    main, other = world.process("main"), world.process("other")
    seen: list[str] = []

    async def victim() -> None:
        try:
            asyncio.get_running_loop().call_later(2, seen.append, "timer")
            await asyncio.sleep(2)
            seen.append("went on")
        finally:
            asyncio.get_running_loop().call_soon(seen.append, "last words")
            asyncio.ensure_future(asyncio.sleep(1)).add_done_callback(print)

    async def run() -> None:
        waiting = asyncio.ensure_future(run_in(other, victim()))
        await asyncio.sleep(1)
        other.kill()
        with pytest.raises(ProcessDied):
            await waiting
        with pytest.raises(ProcessDied):
            await run_in(other, asyncio.sleep(1))
        await asyncio.sleep(10)

    world.run(run(), main)
    assert seen == []
    assert world.failures == []


def test_simulated_process_can_be_killed_inside_a_call_that_it_makes() -> None:
    world = timeline()
    main, other = world.process("main"), world.process("other")
    seen: list[str] = []

    async def victim() -> None:
        try:
            other.kill()
            raise ProcessKilled
        except Exception:
            seen.append("survived")

    async def run() -> None:
        with pytest.raises(ProcessDied):
            await run_in(other, victim())

    world.run(run(), main)
    assert seen == []
    assert world.failures == []


def test_uncaught_exception_of_a_simulated_process_is_recorded() -> None:
    world = timeline()
    main = world.process("main")

    async def run() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    world.run(run(), main)
    assert [type(failure.error) for failure in world.failures] == [ZeroDivisionError]


def test_a_simulated_process_cannot_start_a_thread() -> None:
    world = timeline()
    main = world.process("main")

    async def run() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(SimulationError, match="thread"):
        world.run(run(), main)


def test_run_without_timers_and_events_is_reported_as_a_deadlock() -> None:
    world = timeline()
    main = world.process("main")

    async def run() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(SimulationError, match="Deadlock at"):
        world.run(run(), main)
    main.kill()


def test_callbacks_that_schedule_each_other_without_end_are_reported_as_a_livelock() -> None:
    world = timeline()
    main = world.process("main")

    def again() -> None:
        asyncio.get_running_loop().call_soon(again)

    async def run() -> None:
        again()
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="Livelock at"):
        world.run(run(), main)
    main.kill()
