"""Tests the timers, the load and the end of a coordinator."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from plain_coordinator import (
    PlainMachine,
    PlainTurn,
    code_of,
    end_marker,
    future_of,
    in_virtual_time,
    plain,
    read,
    token,
    write,
)
from test_coordinator_runtime import MemoryPartition

from penstock.broker.coordinators import loading
from penstock.broker.coordinators.runtime import (
    STOPPED,
    TIMER_RETRY_SECONDS,
    Coordinator,
    Phase,
)
from penstock.protocol.errors import ErrorCode, KafkaError

# --- timers


@pytest.mark.parametrize("how", ["run", "run with records", "post", "post with records", "arm", "load"])
def test_every_way_to_change_the_state_sets_the_timer_to_the_next_deadline(how: str) -> None:
    async def scenario() -> None:
        coordinator = plain(MemoryPartition())
        machine = coordinator.machine
        if how == "load":
            machine.deadline = 2000
        coordinator.active()

        def decide(_: PlainMachine, turn: PlainTurn) -> None:
            machine.deadline = 2000
            if how.endswith("records"):
                turn.records.append((b"k", b"v"))

        if how.startswith("run"):
            coordinator.run(decide)
        elif how.startswith("post"):
            coordinator.post(decide)
        elif how == "arm":
            machine.deadline = 2000
            coordinator.arm()
        await asyncio.sleep(10)
        assert machine.timers == [2001]

    in_virtual_time(scenario)


@pytest.mark.parametrize(
    ("deadlines", "fired"),
    [([5000, 2000], [2001]), ([2000, 2000, 2000], [2001]), ([2000, 5000], [2001]), ([5000, 3000, 4000], [3001])],
)
def test_coordinator_timer_fires_once_at_the_earliest_deadline(deadlines: list[int], fired: list[int]) -> None:
    async def scenario() -> None:
        coordinator = plain(MemoryPartition())
        coordinator.active()
        for deadline in deadlines:
            coordinator.machine.deadline = deadline
            coordinator.arm()
        await asyncio.sleep(10)
        assert coordinator.machine.timers == fired
        coordinator.machine.deadline = 12_000
        coordinator.arm()
        await asyncio.sleep(10)
        assert coordinator.machine.timers == [*fired, 12_001]

    in_virtual_time(scenario)


def test_coordinator_timer_is_tried_again_until_enough_replicas_are_in_sync() -> None:
    async def scenario() -> None:
        partition = MemoryPartition()
        coordinator = plain(partition)
        coordinator.active()
        partition.isr = [1]
        coordinator.machine.deadline = 1000
        coordinator.arm()
        await asyncio.sleep(1.2)
        assert coordinator.machine.timers == []
        partition.isr = [1, 2]
        await asyncio.sleep(5)
        assert coordinator.machine.timers == [1001 + int(TIMER_RETRY_SECONDS * 1000)]

    in_virtual_time(scenario)


def test_timer_of_a_closed_coordinator_does_not_fire() -> None:
    async def scenario() -> None:
        coordinator = plain(MemoryPartition())
        coordinator.active()
        coordinator.machine.deadline = 1000
        coordinator.arm()
        coordinator.close()
        coordinator.arm()
        await asyncio.sleep(10)
        assert coordinator.machine.timers == []

    in_virtual_time(scenario)


# --- loading and closing


@pytest.mark.parametrize("smaller", [0, 1])
def test_log_of_exactly_the_limit_is_loaded_within_a_request_and_a_larger_log_is_not(
    smaller: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        partition = MemoryPartition()
        await future_of(plain(partition).run(write(b"a")))
        monkeypatch.setattr(loading, "INLINE_LOAD_BYTES", partition.size - smaller)
        coordinator = plain(partition)
        if smaller:
            with pytest.raises(KafkaError) as refused:
                coordinator.post(lambda machine, turn: None)
            assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await asyncio.sleep(1)
        assert coordinator.run(read) == [b"a"]

    in_virtual_time(scenario)


async def large_log(monkeypatch: pytest.MonkeyPatch, batches: int) -> MemoryPartition:
    """Returns a log that is loaded in slices of one batch each."""
    partition = MemoryPartition()
    writer = plain(partition)
    for number in range(batches):
        await future_of(writer.run(write(b"%d" % number)))
    monkeypatch.setattr(loading, "LOAD_CHUNK_BYTES", 1)
    return partition


@pytest.mark.parametrize("use", ["active", "run", "post", "write_marker"])
def test_requests_during_a_background_load_are_refused_and_the_log_is_applied_once(
    use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        partition = await large_log(monkeypatch, 4)
        coordinator = plain(partition)
        load = asyncio.get_running_loop().create_task(coordinator.load())
        await asyncio.sleep(0)
        await coordinator.load()  # no-op: the log is being loaded already
        assert coordinator.phase is Phase.LOADING
        calls: dict[str, Any] = {
            "active": coordinator.active,
            "run": lambda: coordinator.run(read),
            "post": lambda: coordinator.post(lambda machine, turn: None),
            "write_marker": lambda: coordinator.write_marker(end_marker(), 9, True, 2),
        }
        with pytest.raises(KafkaError) as refused:
            calls[use]()
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await load
        await coordinator.load()
        assert coordinator.run(read) == [b"0", b"1", b"2", b"3"]
        assert coordinator.machine.loads == 1
        assert len(partition.batches) == 4

    in_virtual_time(scenario)


@pytest.mark.parametrize("task", ["caller", "background"])
def test_closed_coordinator_stops_its_load_after_the_current_slice(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        partition = await large_log(monkeypatch, 10)
        coordinator = plain(partition)
        if task == "caller":
            load = asyncio.get_running_loop().create_task(coordinator.load())
        else:
            monkeypatch.setattr(loading, "INLINE_LOAD_BYTES", 0)
            with pytest.raises(KafkaError):
                coordinator.active()
        for _ in range(7):
            await asyncio.sleep(0)
        applied = len(coordinator.machine.applied)
        assert 1 <= applied <= 8
        coordinator.close()
        await asyncio.sleep(1)
        assert len(coordinator.machine.applied) <= applied + 1
        assert coordinator.phase is Phase.CLOSED
        assert coordinator.machine.loads == 0
        if task == "caller":
            assert load.done()

    in_virtual_time(scenario)


def test_other_tasks_run_between_the_slices_of_a_load_even_if_no_read_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cached(bytes):
        def read_now(self) -> bytes:
            return self

        async def read(self) -> bytes:
            return self

    async def scenario() -> None:
        partition = await large_log(monkeypatch, 10)
        stored = type(partition).read
        monkeypatch.setattr(type(partition), "read", lambda *args, **kwargs: Cached(stored(*args, **kwargs).data))
        coordinator = plain(partition)
        load = asyncio.get_running_loop().create_task(coordinator.load())
        turns = 0
        while not load.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 10
        assert len(coordinator.machine.applied) == 10

    in_virtual_time(scenario)


@pytest.mark.parametrize("how", ["request", "background"])
def test_coordinator_whose_log_cannot_be_read_is_closed_and_gives_the_cause(how: str) -> None:
    class Undecodable(PlainMachine):
        def decode(self, key: bytes | None, value: bytes | None) -> Any:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "bad record")

    async def scenario() -> None:
        partition = MemoryPartition()
        await future_of(plain(partition).run(write(b"a")))
        coordinator: Coordinator[PlainMachine] = plain(partition, Undecodable())
        if how == "request":
            with pytest.raises(KafkaError) as refused:
                coordinator.run(read)
            assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            await coordinator.load()
        assert coordinator.phase is Phase.CLOSED
        assert coordinator.failure is not None
        assert "bad record" in coordinator.failure
        with pytest.raises(KafkaError) as again:
            coordinator.active()
        assert (again.value.code, again.value.message) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, coordinator.failure)

    in_virtual_time(scenario)


def test_effects_of_loaded_records_are_performed_when_the_loaded_log_is_committed() -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        before = plain(partition)
        before.post(lambda machine, turn: turn.records.append((b"a", b"a")))
        await asyncio.sleep(0)
        before.close()
        performed: list[Any] = []
        machine = PlainMachine()
        machine.effects_of_load = ["first", "second"]
        coordinator = plain(partition, machine, performed=performed)
        coordinator.active()
        await asyncio.sleep(1)
        assert performed == []
        partition.catch_up()
        await asyncio.sleep(1)
        assert performed == ["first", "second"]
        assert coordinator.run(read) == [b"a"]
        coordinator.close()

    in_virtual_time(scenario)


def test_close_answers_all_parked_and_all_uncommitted_requests_once() -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        coordinator = plain(partition)
        parked, replied = [token(), token()], [token(), token()]
        cancelled = future_of(coordinator.run(write(b"a")))
        cancelled.cancel()
        appended = future_of(coordinator.run(write(b"b")))
        await asyncio.sleep(1)

        def decide(_: PlainMachine, turn: PlainTurn) -> None:
            turn.records.append((b"k", b"v"))
            turn.replies += [(one, "fine") for one in replied]

        coordinator.post(decide)
        decided = future_of(coordinator.run(write(b"c")))
        coordinator.machine.abandoned = [(parked[0], "gone"), (parked[1], "gone too")]
        coordinator.close(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        coordinator.close()
        waiting = [appended, *replied, decided]
        assert [code_of(one) for one in waiting] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 4
        assert str(appended.exception()).endswith(STOPPED)
        assert [one.result() for one in parked] == ["gone", "gone too"]
        partition.catch_up()
        await asyncio.sleep(10)
        assert len(partition.batches) == 1

    in_virtual_time(scenario)
