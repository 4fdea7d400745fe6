"""Tests the durability of a log: waiters that share an fsync, the recovery point, and failing fsyncs."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
from log_harness import TOPIC_ID, finish, manager, new_log, offsets, produce, run

from penstock.clock import ManualClock
from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.disk.real import RealDisk, RealFile
from penstock.disk.volume import Severity
from penstock.log.checkpoints import LEADER_EPOCH_FILE
from penstock.log.flush import Durability, TruncatedError, sync_to_end
from penstock.log.log import Log
from penstock.log.maintenance import Intervals, Maintenance
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError


class SlowSyncs:
    """Counts fsyncs of record files and delays each until the test releases it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[str] = []
        self.gate = asyncio.Event()
        self.fail: OSError | None = None
        original = RealFile.sync

        async def sync(file: RealFile) -> None:
            self.started.append(file.path)
            await self.gate.wait()
            if self.fail is not None:
                raise self.fail
            await original(file)

        monkeypatch.setattr(RealFile, "sync", sync)


async def on_real_files(tmp_path: Path, work: Callable[[LogManager, Log], Awaitable[None]]) -> None:
    logs = LogManager(RealDisk(), [str(tmp_path)], ManualClock())
    await logs.open(node_id=1, cluster_id="cluster")
    await work(logs, logs.create("t", TOPIC_ID, 0, LogConfig(flush_messages=1)))
    logs.abandon()


def test_requests_that_wait_for_a_flush_share_an_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(logs: LogManager, log: Log) -> None:
        syncs = SlowSyncs(monkeypatch)
        produce(log)
        first = asyncio.ensure_future(log.flushed(1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(syncs.started) == 1
        later = []
        for number in range(2, 50):
            produce(log)
            later.append(asyncio.ensure_future(log.flushed(number)))
        await asyncio.sleep(0)
        assert log.flushed_offset == 0
        syncs.gate.set()
        await asyncio.gather(first, *later)
        assert len(syncs.started) == 2, "one for the first, one for the 48 that came while it ran"
        assert log.flushed_offset == 49
        await log.flushed(49)
        assert len(syncs.started) == 2

    run(on_real_files(tmp_path, work))


def test_a_failed_fsync_fails_all_waiters_and_prevents_all_later_acknowledgements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(logs: LogManager, log: Log) -> None:
        told = []
        logs.on_offline = lambda directory, error: told.append(directory.path)
        syncs = SlowSyncs(monkeypatch)
        syncs.gate.set()
        syncs.fail = DiskError(errno.EIO, "Input/output error")
        produce(log, 2)
        outcomes = await asyncio.gather(log.flushed(1), log.flushed(2), return_exceptions=True)
        assert [getattr(each, "code", None) for each in outcomes] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        assert told == [str(tmp_path)]
        for action in (lambda: produce(log), lambda: log.read(0, 100, upper_bound=2)):
            with pytest.raises(KafkaError) as error:
                action()
            assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(KafkaError):
            await log.flushed(2)
        with pytest.raises(KafkaError):
            await log.flush()

    run(on_real_files(tmp_path, work))


def test_wait_for_an_fsync_of_truncated_records_fails_even_if_new_records_get_the_same_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(logs: LogManager, log: Log) -> None:
        for _ in range(3):
            produce(log)
        syncs = SlowSyncs(monkeypatch)
        waiting = asyncio.ensure_future(log.flushed(3))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        log.truncate_to(1)
        produce(log, value=b"another")
        produce(log, value=b"another")
        syncs.gate.set()
        with pytest.raises(TruncatedError):
            await waiting
        await log.flushed(3)
        assert len(syncs.started) >= 2, "what was synced first is not what has these offsets now"
        assert log.flushed_offset == 3

    run(on_real_files(tmp_path, work))


def test_truncation_of_records_that_a_request_waits_for_does_not_block_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(logs: LogManager, log: Log) -> None:
        for _ in range(3):
            produce(log)
        syncs = SlowSyncs(monkeypatch)
        cut, whole = (asyncio.ensure_future(log.flushed(offset)) for offset in (3, 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        log.truncate_to(1)
        syncs.gate.set()
        with pytest.raises(TruncatedError):
            await cut
        await whole
        await log.durability.settle()
        assert len(syncs.started) <= 2
        with pytest.raises(TruncatedError):
            await log.flushed(3)

    spins = 0
    original = Durability._sync_round

    async def counted(self: Durability) -> int:
        nonlocal spins
        spins += 1
        if spins > 100:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The flush loop calls _sync_round without a pause.")
        return await original(self)

    monkeypatch.setattr(Durability, "_sync_round", counted)
    run(on_real_files(tmp_path, work))


def test_sync_to_the_end_returns_if_the_log_is_truncated_during_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(logs: LogManager, log: Log) -> None:
        for _ in range(3):
            produce(log)
        syncs = SlowSyncs(monkeypatch)
        waiting = asyncio.ensure_future(sync_to_end(log))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        log.truncate_fully_and_start_at(10)
        syncs.gate.set()
        await waiting
        assert log.flushed_offset == log.log_end_offset == 10

    run(on_real_files(tmp_path, work))


def test_flush_moves_the_recovery_point_to_the_log_end() -> None:
    log = new_log(LogConfig(segment_bytes=200))
    for _ in range(10):
        produce(log)
    assert (log.recovery_point, log.is_dirty) == (0, True)
    finish(log.flush())
    assert (log.recovery_point, log.flushed_offset, log.is_dirty) == (10, 10, False)
    produce(log)
    log.flush_now()
    assert log.recovery_point == 11


def test_all_files_below_the_recovery_point_are_synced() -> None:
    disk = MemoryDisk(crashable=True)
    disk.mkdir("/logs")
    log = new_log(LogConfig(segment_bytes=300, index_interval_bytes=0), manager(disk))
    for number in range(10):
        produce(log, producer_id=3, producer_epoch=0, base_sequence=number, epoch=number // 4)
    finish(log.flush())
    after_power_loss = disk.volume.copied()
    after_power_loss.lose_power(Random(1), Severity.EVERYTHING)
    for name in disk.listdir(log.path):
        inode = disk.inode(f"{log.path}/{name}")
        assert not inode.pending, name
        assert inode.data == after_power_loss.inode(f"{log.path}/{name}").data


def test_records_in_a_new_segment_survive_a_power_loss_once_their_fsync_is_confirmed() -> None:
    disk = MemoryDisk(crashable=True)
    disk.mkdir("/logs")
    logs = manager(disk)
    log = new_log(LogConfig(segment_bytes=200, flush_messages=1), logs)
    run(logs.save_checkpoints())
    while len(log.segments) < 3:
        produce(log)
        run(log.flushed(log.log_end_offset))
        survivor = disk.volume.copied()
        survivor.lose_power(Random(1), Severity.EVERYTHING)
        found = manager(MemoryDisk(volume=survivor)).get("t", 0)
        assert found is not None
        assert offsets(found) == list(range(log.log_end_offset))


def test_log_is_queued_for_a_flush_after_flush_messages_records_or_many_unflushed_bytes() -> None:
    logs = manager()
    log = logs.create("t", TOPIC_ID, 0, LogConfig(flush_messages=5))
    for _ in range(4):
        produce(log)
    assert log not in logs.flush_queue
    produce(log)
    assert log in logs.flush_queue
    logs.environment.unflushed_bytes = 1000
    other = logs.create("t", TOPIC_ID, 1, LogConfig())
    produce(other, value=bytes(500))
    assert other not in logs.flush_queue
    produce(other, value=bytes(500))
    assert other in logs.flush_queue


def test_maintenance_flushes_queued_logs_and_checkpoints_their_recovery_points() -> None:
    disk, clock = MemoryDisk(), ManualClock()
    logs = manager(disk, clock)
    asked = logs.create("t", TOPIC_ID, 0, LogConfig(flush_messages=2))
    timed = logs.create("t", TOPIC_ID, 1, LogConfig(flush_ms=10))
    quiet = logs.create("t", TOPIC_ID, 2, LogConfig())
    for log in (asked, timed, quiet):
        produce(log, 3)
    clock.advance(10)
    maintenance = Maintenance(logs)
    for job in (maintenance.timed_flush, maintenance.flush_queued, maintenance.checkpoints):
        finish(job())
    assert disk.read_bytes("/logs/recovery-point-offset-checkpoint") == b"0\n3\nt 0 3\nt 1 3\nt 2 0\n"


def test_log_maintenance_deletes_expired_segments_in_the_background_until_it_is_stopped() -> None:
    async def work() -> None:
        logs = LogManager(MemoryDisk(), ["/logs"], ManualClock())
        await logs.open(node_id=1, cluster_id="cluster")
        log = logs.create("t", TOPIC_ID, 0, LogConfig(flush_messages=2, retention_ms=0))
        produce(log, 3)
        done = asyncio.Event()
        maintenance = Maintenance(logs, Intervals(0, 0, 0, 0, 0, 0, 0))
        logs.environment.discard = lambda log, segments: done.set()
        logs.clock.advance(10)  # type: ignore[attr-defined]
        maintenance.start()
        await asyncio.wait_for(done.wait(), 120)
        await maintenance.stop()
        assert log.log_start_offset == 3

    asyncio.run(work())


def test_time_index_that_a_roll_completes_after_a_truncation_survives_a_power_loss() -> None:
    disk = MemoryDisk(crashable=True)
    log = new_log(logs=manager(disk))
    for timestamp in (10, 20):
        produce(log, timestamp=timestamp, commit=False)
    log.flush_now()
    log.truncate_to(1)
    assert log.recovery_point == 1
    log.roll()
    produce(log, timestamp=30, commit=False)
    log.flush_now()
    assert not disk.inode(log.segments[0].path(".timeindex")).pending


def test_time_index_that_a_killed_process_completed_is_synced_by_the_first_flush_of_the_next_process() -> None:
    disk = MemoryDisk(crashable=True)
    logs = manager(disk)
    log = new_log(logs=logs)
    for timestamp in (10, 20):
        produce(log, timestamp=timestamp, commit=False)
    log.flush_now()
    log.truncate_to(1)
    log.roll()
    log.store()
    finish(logs.save_checkpoints())
    logs.abandon()
    again = manager(disk).get("t", 0)
    assert again is not None
    assert again.recovery_point == 1
    assert disk.inode(again.segments[0].path(".timeindex")).pending
    again.flush_now()
    assert not disk.inode(again.segments[0].path(".timeindex")).pending


def test_leader_epochs_that_a_killed_process_wrote_are_synced_by_the_first_flush_of_the_next_process() -> None:
    """Else a power loss could bring back the epoch of truncated records, and give it to other records."""
    disk = MemoryDisk(crashable=True)
    logs = manager(disk)
    log = new_log(logs=logs)
    for epoch in (1, 2):
        produce(log, epoch=epoch, commit=False)
    log.flush_now()
    log.truncate_to(1)
    log.store()
    finish(logs.save_checkpoints())
    logs.abandon()
    again = manager(disk).get("t", 0)
    assert again is not None
    produce(again, epoch=1, commit=False)
    produce(again, epoch=1, commit=False)
    again.flush_now()
    assert again.epochs.entries == [(1, 0)]
    assert not disk.inode(f"{again.path}/{LEADER_EPOCH_FILE}").pending
