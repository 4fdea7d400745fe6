"""Tests a share partition on its leader: which changes are written to a share coordinator that the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.coordinators.share_persister import SharePersister
from penstock.broker.replicas.partition import Partition
from penstock.broker.share import burial, led_partition
from penstock.broker.share.led_partition import LedSharePartition
from penstock.broker.share.share_figures import ShareFigures
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import Acknowledge
from penstock.share.acquiring import Wish
from penstock.share.group_settings import Reset, ShareSettings
from penstock.share.portions import PORTION
from penstock.share.state_journal import ShareKey
from penstock.share.state_requests import Read, Summary, Write
from penstock.share.states import AcknowledgedRange, FetchedBatch, RecordState, ShareLimits, StateBatch
from penstock.share.window import Run

KEY = ShareKey("group", bytes(16), 0)
SETTINGS = ShareSettings(ShareLimits(lock_duration_ms=1), Reset("latest"), committed_only=False)
LAST_OFFSET = 2**63 - 1  # of an int64
EXPIRED = (StateBatch(7, 9, RecordState.AVAILABLE, 1),)


class Coordinator:
    """Replaces the share coordinator: refuses the first `failing` writes after the start offset is stored."""

    def __init__(self, start_offset: int = 7, failing: int = 0) -> None:
        self.stored = Read(3, start_offset, ())
        self.seen = Summary(3, 0, start_offset, 0)
        self.failing = failing
        self.writes: asyncio.Queue[Write] = asyncio.Queue()

    async def read(self, key: ShareKey, leader_epoch: int) -> Read:
        return self.stored

    async def summary(self, key: ShareKey, leader_epoch: int) -> Summary:
        return self.seen

    async def write(self, key: ShareKey, wanted: Write, still: Callable[[], bool] = lambda: True) -> None:
        if self.failing:
            self.failing -= 1
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The share coordinator is moving: retry.")
        await self.writes.put(wanted)


class SlowCoordinator(Coordinator):
    """Replaces the share coordinator: stores one write for each release of `permits`."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = asyncio.Semaphore(0)
        self.arrived: asyncio.Queue[Write] = asyncio.Queue()

    async def write(self, key: ShareKey, wanted: Write, still: Callable[[], bool] = lambda: True) -> None:
        await self.arrived.put(wanted)
        await self.permits.acquire()
        await super().write(key, wanted, still)


class DeadLetters:
    """Notes how many changes the coordinator had stored when dead letters were written. Refuses the first writes."""

    def __init__(self, coordinator: Coordinator, failing: int = 0) -> None:
        self._coordinator = coordinator
        self._failing = failing
        self.written: list[tuple[int, int, int]] = []

    async def write(self, group: str, settings: Any, source: Any, log: Any, runs: Sequence[Run]) -> None:
        if self._failing:
            self._failing -= 1
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "Too few replicas are in sync: retry.")
        stored = self._coordinator.writes.qsize()
        self.written += [(run.first, run.stop - 1, stored) for run in runs]


class Waiting(asyncio.Event):
    def wake(self) -> None:
        self.set()


async def next_pass() -> None:
    """Waits for the next pass of the event loop."""
    await asyncio.sleep(0)


async def until(led: LedSharePartition, condition: Callable[[], bool]) -> None:
    """Waits until the condition is true. The share partition wakes its waiters after every change of its state."""
    waiting = Waiting()
    led.waiters[waiting] = None
    while not condition():
        await waiting.wait()
        waiting.clear()
    del led.waiters[waiting]


async def loaded(
    coordinator: Coordinator,
    tasks: set[asyncio.Task[None]],
    settings: ShareSettings = SETTINGS,
    dead_letters: DeadLetters | None = None,
    turn: Callable[[], Awaitable[None]] = next_pass,
) -> LedSharePartition:
    def spawn(work: Coroutine[Any, Any, None]) -> None:
        tasks.add(asyncio.get_running_loop().create_task(work))

    log = SimpleNamespace(log_start_offset=0, high_watermark=7)
    partition = SimpleNamespace(topic="jobs", leader_epoch=0, leader_log=lambda epoch: log)
    led = LedSharePartition(
        KEY,
        cast(Partition, partition),
        cast(SharePersister, coordinator),
        lambda: settings,
        dead_letters or DeadLetters(coordinator),
        figures=ShareFigures(),
        wall_ms=lambda: 0,
        spawn=spawn,
        turn=turn,
        closed=lambda led: None,
    )
    waiting = Waiting()
    led.waiters[waiting] = None
    led.load()
    await waiting.wait()
    return led


def run(scenario: Callable[[set[asyncio.Task[None]]], Awaitable[None]]) -> None:
    async def bounded() -> None:
        tasks: set[asyncio.Task[None]] = set()
        async with asyncio.timeout(20):
            await scenario(tasks)
        for task in tasks:
            task.cancel()

    asyncio.run(bounded())


def test_start_offset_of_a_share_partition_is_stored_before_the_first_delivery() -> None:
    async def scenario(tasks: set[asyncio.Task[None]]) -> None:
        coordinator = Coordinator(start_offset=-1)
        led = await loaded(coordinator, tasks)
        assert coordinator.writes.get_nowait() == Write(3, 0, 7, 0, ())
        state = led.ready()
        assert state is not None
        assert state.start_offset == 7

    run(scenario)


@pytest.mark.parametrize(
    ("reset", "start"),
    [(Reset("earliest"), 2), (Reset("latest"), 9), (Reset("by_duration", 400), 6), (Reset("by_duration", 1), 9)],
    ids=["earliest", "latest", "by-duration", "nothing-so-new"],
)
def test_share_group_without_a_stored_start_offset_begins_according_to_share_auto_offset_reset(
    reset: Reset, start: int
) -> None:
    """The clock is at 1,000 ms. The log has one record for every 100 ms: record 6 has timestamp 600."""

    async def offset_for_timestamp(timestamp: int) -> Any:
        offset = -(-timestamp // 100)
        return SimpleNamespace(offset=offset) if offset < 9 else None

    log = SimpleNamespace(log_start_offset=2, high_watermark=9, offset_for_timestamp=offset_for_timestamp)
    assert asyncio.run(led_partition._start_offset(cast(Any, log), reset, 1000)) == start


@pytest.mark.parametrize("failing", [0, 1, 3])
def test_expired_record_locks_are_persisted_even_after_earlier_writes_failed(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(led_partition, "REWRITE_SECONDS", 0.001)

    async def scenario(tasks: set[asyncio.Task[None]]) -> None:
        coordinator = Coordinator(failing=failing)
        led = await loaded(coordinator, tasks)
        led.acquire(Wish("m", 500), 7, [FetchedBatch(7, 9)])
        written = await coordinator.writes.get()
        assert (written.start_offset, written.batches) == (7, EXPIRED)

    run(scenario)


def test_all_expired_locks_are_persisted_although_records_with_higher_offsets_expire_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ms = 0
    monkeypatch.setattr(LedSharePartition, "now_ms", property(lambda led: now_ms))
    monkeypatch.setattr(led_partition, "REWRITE_SECONDS", 0.001)
    limits = ShareLimits(lock_duration_ms=1000, max_record_locks=10 * PORTION)
    middle, end = 7 + 2 * PORTION, 7 + 6 * PORTION

    async def scenario(tasks: set[asyncio.Task[None]]) -> None:
        nonlocal now_ms
        coordinator = Coordinator()
        led = await loaded(coordinator, tasks, SETTINGS._replace(limits=limits))
        state = led.ready()
        assert state is not None
        for member, first, stop in (("late", 7, middle), ("early", middle, end)):
            led.acquire(Wish(member, 500), first, [FetchedBatch(first, stop - 1)])
            every_second = [AcknowledgedRange(each, each, (Acknowledge.ACCEPT,)) for each in range(first + 1, stop, 2)]
            for written in await led.acknowledge(member, every_second, next_pass):
                await written
        now_ms = 500
        await led.acknowledge(
            "late", [AcknowledgedRange(each, each, (Acknowledge.RENEW,)) for each in range(7, middle, 2)], next_pass
        )
        coordinator.writes, coordinator.failing = asyncio.Queue(), 1_000_000
        now_ms = 1100
        led.abandon("a member without records")  # the share partition looks for expired locks
        await until(led, lambda: state.window.totals[RecordState.AVAILABLE] == 2 * PORTION)
        now_ms = 1600
        led.abandon("a member without records")
        await until(led, lambda: state.window.totals[RecordState.AVAILABLE] == 3 * PORTION)
        coordinator.failing = 0
        stored: set[int] = set()
        while len(stored) < 3 * PORTION:
            write = await coordinator.writes.get()
            assert len(write.batches) <= PORTION
            stored |= {each.first for each in write.batches if each[2:] == (RecordState.AVAILABLE, 1)}
        assert stored == set(range(7, end, 2))

    run(scenario)


@pytest.mark.parametrize("failing", [0, 2])
def test_dead_letter_is_written_after_state_archiving_is_stored_and_before_state_archived(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(burial, "RETRY_SECONDS", 0.001)
    settings = SETTINGS._replace(
        limits=ShareLimits(lock_duration_ms=1, max_deliveries=1, dead_letters=True), dead_letter_topic="dlq.jobs"
    )

    async def scenario(tasks: set[asyncio.Task[None]]) -> None:
        coordinator = Coordinator(failing=1)
        letters = DeadLetters(coordinator, failing)
        led = await loaded(coordinator, tasks, settings, letters)
        led.acquire(Wish("m", 500), 7, [FetchedBatch(7, 9)])
        await until(led, lambda: coordinator.writes.qsize() == 2)
        first, last = coordinator.writes.get_nowait(), coordinator.writes.get_nowait()
        assert first.batches == (StateBatch(7, 9, RecordState.ARCHIVING, 1),)
        assert letters.written == [(7, 9, 1)]
        assert (last.start_offset, last.batches) == (10, ())

    monkeypatch.setattr(led_partition, "REWRITE_SECONDS", 0.001)
    run(scenario)


def test_dead_letter_waits_until_state_archiving_is_stored_even_during_another_write() -> None:
    limits = ShareLimits(lock_duration_ms=1, max_deliveries=1, dead_letters=True)
    settings = SETTINGS._replace(limits=limits, dead_letter_topic="dlq.jobs")

    async def scenario(tasks: set[asyncio.Task[None]]) -> None:
        coordinator = SlowCoordinator()
        letters = DeadLetters(coordinator)
        led = await loaded(coordinator, tasks, settings, letters)
        led.acquire(Wish("m", 500), 7, [FetchedBatch(7, 9)])
        led.apply("m", [AcknowledgedRange(7, 7, (Acknowledge.ACCEPT,))])
        await coordinator.arrived.get()
        state = led.ready()
        assert state is not None
        await until(led, lambda: state.window.totals[RecordState.ARCHIVING] == 2)
        coordinator.permits.release()
        assert (await coordinator.arrived.get()).batches == (StateBatch(8, 9, RecordState.ARCHIVING, 1),)
        for _ in range(5):
            await next_pass()
        assert letters.written == [], "the acknowledgement is stored, and the state ARCHIVING is not"
        coordinator.permits.release()
        await coordinator.arrived.get()
        assert letters.written == [(8, 9, 2)]

    run(scenario)


def test_acknowledgements_of_many_records_are_applied_and_written_a_limited_number_at_a_time() -> None:
    async def scenario(tasks: set[asyncio.Task[None]]) -> None:
        coordinator = Coordinator()
        led = await loaded(coordinator, tasks, SETTINGS._replace(limits=ShareLimits()))
        last = 7 + 10 * PORTION - 1
        led.acquire(Wish("m", 500), 7, [FetchedBatch(7, last)])
        types = (Acknowledge.ACCEPT, Acknowledge.RELEASE) * (5 * PORTION)
        turns = 0

        async def turn() -> None:
            nonlocal turns
            turns += 1
            await asyncio.sleep(0)

        with pytest.raises(KafkaError, match="has not been acquired"):
            await led.acknowledge("m", [AcknowledgedRange(7, last + 1, (*types, Acknowledge.ACCEPT))], turn)
        state = led.ready()
        assert state is not None
        assert state.window.totals[RecordState.ACQUIRED] == 10 * PORTION, "a refused request changes nothing"
        for written in await led.acknowledge("m", [AcknowledgedRange(7, last, types)], turn):
            await written
        assert turns >= 20
        sizes = [len(coordinator.writes.get_nowait().batches) for _ in range(coordinator.writes.qsize())]
        assert sum(sizes) == 10 * PORTION - 1, "the first record is before the start offset"
        assert max(sizes) <= 2 * PORTION
        assert state.window.totals[RecordState.AVAILABLE] == 5 * PORTION
        assert state.start_offset == 8

    run(scenario)


@pytest.mark.parametrize("kind", [Acknowledge.RELEASE, Acknowledge.REJECT])
def test_operator_may_change_records_up_to_the_last_possible_offset(kind: Acknowledge) -> None:
    async def scenario(tasks: set[asyncio.Task[None]]) -> None:
        led = await loaded(Coordinator(), tasks, SETTINGS._replace(limits=ShareLimits()))
        led.acquire(Wish("m", 500), 7, [FetchedBatch(7, 9)])
        await led.operate(0, LAST_OFFSET + 1, kind, next_pass)
        state = led.ready()
        assert state is not None
        assert state.window.totals[RecordState.ACQUIRED] == 0
        with pytest.raises(KafkaError, match="None of these records is in flight"):
            await led.operate(LAST_OFFSET, LAST_OFFSET + 1, kind, next_pass)

    run(scenario)


def test_member_that_acknowledges_the_last_possible_offset_is_refused() -> None:
    async def scenario(tasks: set[asyncio.Task[None]]) -> None:
        led = await loaded(Coordinator(), tasks, SETTINGS._replace(limits=ShareLimits()))
        led.acquire(Wish("m", 500), 7, [FetchedBatch(7, 9)])
        with pytest.raises(KafkaError, match="has not been acquired"):
            await led.acknowledge("m", [AcknowledgedRange(LAST_OFFSET, LAST_OFFSET, (Acknowledge.ACCEPT,))], next_pass)

    run(scenario)


def test_records_of_a_closed_share_session_are_released_a_limited_number_at_a_time() -> None:
    async def scenario(tasks: set[asyncio.Task[None]]) -> None:
        coordinator = Coordinator()
        led = await loaded(coordinator, tasks, SETTINGS._replace(limits=ShareLimits()))
        count = 5 * PORTION
        led.acquire(Wish("m", 500), 7, [FetchedBatch(7, 7 + 2 * count - 1)])
        kinds = (Acknowledge.RENEW, Acknowledge.ACCEPT) * count
        for written in await led.acknowledge("m", [AcknowledgedRange(7, 7 + 2 * count - 1, kinds)], next_pass):
            await written
        led.abandon("m")
        state = led.ready()
        assert state is not None
        with pytest.raises(KafkaError, match="does not hold"):
            led.apply("m", [AcknowledgedRange(7, 7, (Acknowledge.ACCEPT,))])
        await until(led, lambda: state.window.totals[RecordState.AVAILABLE] == count)
        sizes = [len(coordinator.writes.get_nowait().batches) for _ in range(coordinator.writes.qsize())]
        assert max(sizes) <= 2 * PORTION

    run(scenario)


def test_records_of_a_members_closed_session_are_released_but_not_the_records_of_its_new_session() -> None:
    async def scenario(tasks: set[asyncio.Task[None]]) -> None:
        led = await loaded(Coordinator(), tasks, SETTINGS._replace(limits=ShareLimits()))
        led.acquire(Wish("m", 500), 7, [FetchedBatch(7, 9)])
        led.abandon("m")
        led.acquire(Wish("m", 500), 10, [FetchedBatch(10, 12)])
        state = led.ready()
        assert state is not None
        await until(led, lambda: state.window.totals[RecordState.AVAILABLE] == 3)
        for written in led.apply("m", [AcknowledgedRange(10, 12, (Acknowledge.ACCEPT,))]):
            await written
        assert state.window.totals[RecordState.ACKNOWLEDGED] == 3

    run(scenario)


def test_locks_that_expire_together_in_many_share_partitions_are_ended_one_partition_at_a_time() -> None:
    async def scenario(tasks: set[asyncio.Task[None]]) -> None:
        turns: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
        loads = 0

        async def turn() -> None:
            nonlocal loads
            if loads < 6:
                loads += 1
                return
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            turns.put_nowait(granted)
            await granted

        leds = [await loaded(Coordinator(), tasks, turn=turn) for _ in range(3)]
        assert loads == 6, "each share partition takes a turn before it reads its state, and one afterwards"
        for led in leds:
            led.acquire(Wish("m", 500), 7, [FetchedBatch(7, 9)])

        def available() -> int:
            return sum(led.state.window.totals[RecordState.AVAILABLE] for led in leds if led.state is not None)

        waiting = [await turns.get() for _ in leds]
        assert available() == 0, "each share partition waits for its turn"
        waiting[0].set_result(None)
        await turns.get()
        assert available() == 3

    run(scenario)


@pytest.mark.parametrize(
    ("seen", "replaced"),
    [(Summary(3, 0, 9, 0), False), (Summary(4, 0, 0, 0), True), (Summary(3, -1, -1, -1), True), (Summary(), True)],
    ids=["same", "altered", "created-again", "deleted"],
)
def test_share_partition_leader_drops_a_state_that_was_replaced_at_the_share_coordinator(
    seen: Summary, replaced: bool
) -> None:
    async def scenario(tasks: set[asyncio.Task[None]]) -> None:
        coordinator = Coordinator()
        led = await loaded(coordinator, tasks)
        coordinator.seen = seen
        await led.verify()
        assert (led.failure is not None) is replaced

    run(scenario)


@pytest.mark.parametrize("code", [ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH])
def test_share_partition_leader_drops_its_state_if_the_share_coordinator_fences_a_write(code: ErrorCode) -> None:
    class Fencing(Coordinator):
        async def write(self, key: ShareKey, wanted: Write, still: Callable[[], bool] = lambda: True) -> None:
            raise KafkaError(code, "The state was replaced: load it again.")

    async def scenario(tasks: set[asyncio.Task[None]]) -> None:
        led = await loaded(Fencing(), tasks, SETTINGS._replace(limits=ShareLimits()))
        led.acquire(Wish("m", 500), 7, [FetchedBatch(7, 9)])
        [written] = led.apply("m", [AcknowledgedRange(7, 7, (Acknowledge.ACCEPT,))])
        with pytest.raises(KafkaError) as refused:
            await written
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert led.state is None
        with pytest.raises(KafkaError, match="load it again"):
            led.ready()

    run(scenario)
