"""Tests that no record and no file counts as synced before it is on disk, whatever happens to the log meanwhile."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from random import Random

import pytest
from log_harness import ROOT, finish, manager, new_log, produce, run
from move_harness import TAIL, A, copied, directories, log_in_a
from test_log_sync_state import HeldSyncs, kinds, started, turns

from penstock.clock import ManualClock
from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.log.cleaner import Cleaner
from penstock.log.flush import TruncatedError
from penstock.log.log import Log
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import ZERO_UUID

COMPACT = LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)


def unsynced(disk: MemoryDisk, log: Log) -> list[str]:
    """Returns the names of the log's files that have contents which are not on disk."""
    return [name for name in disk.listdir(log.path) if disk.inode(f"{log.path}/{name}").pending]


def flush(log: Log) -> None:
    finish(log.flush())


def test_flush_that_began_before_a_swap_moves_no_offset_of_the_log_in_its_new_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        logs = directories()
        log = log_in_a(logs)
        syncs = HeldSyncs(monkeypatch, A)
        produce(log, 3)
        future = logs.futures.create(log, logs.dirs[1])
        await copied(future)
        await logs.futures.prepare(future)
        produce(log, 2)
        flushing = await started(log.flush())
        assert logs.futures.swap(future, TAIL) is not None
        assert (log.recovery_point, log.flushed_offset) == (3, 3)
        goal = log.durability.begin()
        assert [size for _, size in goal.sizes] == [log.segments.active.size], "the last records are not synced in B"
        await syncs.end()
        await turns()
        assert log.recovery_point == 3, "the flush has synced the files of A"
        await flushing
        await log.flush()
        assert (log.recovery_point, log.flushed_offset) == (5, 5)

    run(story())


def test_records_after_a_truncation_that_came_during_a_sync_are_synced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        disk = MemoryDisk()
        log = new_log(logs=manager(disk))
        for _ in range(4):
            produce(log)
        syncs = HeldSyncs(monkeypatch, ROOT)
        waiting = [await started(log.flushed(offset)) for offset in (1, 4)]
        log.truncate_to(1)
        while syncs.waiting:
            await syncs.end()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in outcomes] == [type(None), TruncatedError]
        monkeypatch.undo()
        produce(log)
        seen: list[tuple[str, str]] = []
        disk.on_write = lambda kind, path: seen.append((kind, path))
        await log.flushed(2)
        assert ("sync", log.segments.active.path(".log")) in seen

    run(story())


@pytest.mark.parametrize("end", range(1, 5))
def test_synced_segment_that_replaces_a_truncated_one_survives_a_power_loss(end: int) -> None:
    disk = MemoryDisk(crashable=True)
    log = new_log(LogConfig(segment_bytes=100), manager(disk))  # one batch per segment
    for _ in range(4):
        produce(log)
    run(log.flushed(4))
    assert log.segments.bases == [0, 1, 2, 3]
    log.truncate_to(end)
    produce(log, value=b"other")
    run(log.flushed(end + 1))
    bases = {f"{base:020}.log" for base in log.segments.bases}
    for seed in range(8):
        assert bases <= set(disk.crash(Random(seed)).listdir(log.path))


@pytest.mark.parametrize("above", [1, 2, 100])
def test_wait_for_records_that_the_log_does_not_have_fails_at_once(monkeypatch: pytest.MonkeyPatch, above: int) -> None:
    async def story() -> None:
        log = new_log()
        produce(log, 3)
        HeldSyncs(monkeypatch, ROOT)
        waiting = await started(log.flushed(3 + above))
        assert waiting.done(), "no sync brings these records back"
        with pytest.raises(TruncatedError):
            await waiting

    run(story())


@pytest.mark.parametrize("closed", [False, True])
def test_wait_for_a_sync_of_an_offline_or_closed_log_fails_at_once(
    monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    async def story() -> None:
        log = new_log()
        produce(log, 3)
        HeldSyncs(monkeypatch, ROOT)
        if closed:
            log.close()
        else:
            log.health.take_offline(OSError(errno.EIO, "input/output error"))
        waiting = await started(log.flushed(3))
        assert waiting.done(), "no sync begins"
        with pytest.raises(KafkaError) as refusal:
            await waiting
        expected = ErrorCode.NOT_LEADER_OR_FOLLOWER if closed else ErrorCode.KAFKA_STORAGE_ERROR
        assert refusal.value.code is expected
        assert log.flushed_offset == 0

    run(story())


@pytest.mark.parametrize("work", [flush, Log.flush_now])
def test_flush_syncs_the_producer_snapshot_that_it_takes(work: Callable[[Log], None]) -> None:
    disk = MemoryDisk(crashable=True)
    logs = manager(disk)
    logs.environment.unflushed_bytes = 1  # every flush takes a snapshot
    log = new_log(logs=logs)
    for number in range(3):
        produce(log, producer_id=5, producer_epoch=0, base_sequence=number)
        work(log)
        assert number + 1 in log.snapshots.offsets
        assert unsynced(disk, log) == []


def test_clean_stop_of_a_flushed_log_syncs_its_last_producer_snapshot() -> None:
    disk = MemoryDisk(crashable=True)
    logs = manager(disk)
    log = new_log(logs=logs)
    produce(log, producer_id=5, producer_epoch=0, base_sequence=0)
    log.flush_now()
    assert log.snapshots.offsets == []
    run(logs.close())
    assert log.snapshots.offsets == [1]
    assert unsynced(disk, log) == []


def test_topic_id_that_a_synced_log_gets_later_is_synced_by_the_next_flush() -> None:
    disk = MemoryDisk(crashable=True)
    log = manager(disk).create("t", ZERO_UUID, 0, LogConfig())
    produce(log)
    log.flush_now()
    log.assign_topic_id(bytes(range(16)))
    assert ("sync", f"{log.path}/partition.metadata") in kinds(disk, log.flush_now)
    assert unsynced(disk, log) == []


def test_log_is_not_compacted_while_its_recovery_point_cannot_be_written() -> None:
    disk = MemoryDisk()
    logs = manager(disk, ManualClock(1_700_000_000_000))
    log = new_log(COMPACT, logs)
    for _ in range(2):
        produce(log, 3)
        log.roll()

    def fail(kind: str, path: str) -> None:
        if "recovery-point" in path:
            raise DiskError(errno.EMFILE, "too many open files", path)

    cleaner = Cleaner(logs)
    before = log.size
    disk.on_write = fail
    finish(cleaner.run())
    assert (log.cleaned_offset, log.size) == (0, before), "recovery would take the gaps for lost records"
    disk.on_write = None
    finish(cleaner.run())
    assert log.cleaned_offset == 6
    assert log.size < before
