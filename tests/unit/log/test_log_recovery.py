"""Tests how a log is opened: without verification after a clean stop, from the recovery point on after a crash."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest
from log_harness import TOPIC_ID, batch, check_indexes, finish, manager, offsets, produce, run

from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk, MemoryFile
from penstock.log.checkpoints import parse_offsets, render_offsets
from penstock.log.log import AppendOrigin, Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.records.control import EndTxn, build_end_txn

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200)


def started(disk: MemoryDisk, config: LogConfig = CONFIG) -> tuple[LogManager, Log]:
    logs = manager(disk, ManualClock(NOW))
    log = logs.get("t", 0) or logs.create("t", TOPIC_ID, 0, config)
    log.update_config(config)
    return logs, log


class Reads:
    """Records which bytes of which files are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, int, int]] = []
        original = MemoryFile.pread

        def pread(file: MemoryFile, size: int, offset: int) -> bytes:
            self.seen.append((file.path.rpartition("/")[2], offset, size))
            return original(file, size, offset)

        monkeypatch.setattr(MemoryFile, "pread", pread)

    def lowest(self, name: str) -> int | None:
        return min((offset for path, offset, _ in self.seen if path == name), default=None)


def test_only_the_end_of_a_log_is_read_at_a_start_after_a_clean_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    config = LogConfig(segment_bytes=40_000, index_interval_bytes=200)
    logs, log = started(disk, config)
    for _ in range(900):
        produce(log)
    run(logs.close(broker_epoch=9))
    reads = Reads(monkeypatch)
    logs, log = started(disk, config)
    assert logs.dirs[0].clean
    assert logs.dirs[0].last_incarnation.broker_epoch == 9
    assert log.recovery_point == log.log_end_offset == 900
    assert {name for name, _, _ in reads.seen if name.endswith(".log")} == {f"{log.segments.bases[-1]:020d}.log"}
    lowest = reads.lowest(f"{log.segments.bases[-1]:020d}.log")
    assert lowest is not None
    assert lowest > log.segments.active.size - 500
    assert offsets(log) == list(range(900))
    assert not disk.exists("/logs/.kafka_cleanshutdown")


def test_no_byte_below_the_recovery_point_is_read_at_a_start_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    config = LogConfig(segment_bytes=100_000, index_interval_bytes=200)
    logs, log = started(disk, config)
    logs.environment.unflushed_bytes = 1
    for number in range(500):
        produce(log, timestamp=NOW + number)
    finish(log.flush())
    logs.write_checkpoints()
    flushed = log.segments.active.size
    for _ in range(10):
        produce(log)
    logs.abandon()
    reads = Reads(monkeypatch)
    logs, log = started(disk, config)
    assert not logs.dirs[0].clean
    assert log.log_end_offset == 510
    lowest = reads.lowest("00000000000000000000.log")
    assert lowest is not None
    assert lowest > flushed - 500
    assert sum(size for name, _, size in reads.seen if name.endswith(".log")) < 20_000
    check_indexes(log.segments.active)
    assert log in logs.flush_queue, "so that the next crash has less to check"


@pytest.mark.parametrize("lost", [1, 30, 61, 75, 76, 77, 100])
def test_recovery_truncates_a_torn_last_batch(lost: int, caplog: pytest.LogCaptureFixture) -> None:
    size = len(batch())
    disk = MemoryDisk()
    logs, log = started(disk)
    for _ in range(5):
        produce(log)
    logs.abandon()
    data = disk.inode("/logs/t-0/00000000000000000000.log").data
    del data[len(data) - lost :]
    with caplog.at_level(logging.WARNING):
        logs, log = started(disk)
    left = (5 * size - lost) // size
    assert offsets(log) == list(range(left))
    assert log.segments.active.file.size == log.segments.active.size == left * size
    assert produce(log) == left


@pytest.mark.parametrize("zeros", range(1, 12))
def test_a_torn_entry_of_the_time_index_that_names_a_batch_below_the_recovery_point_is_removed(zeros: int) -> None:
    disk = MemoryDisk()
    logs, log = started(disk, LogConfig(segment_bytes=1 << 20, index_interval_bytes=200))
    for _ in range(600):
        produce(log)
    finish(log.flush())
    logs.write_checkpoints()
    produce(log, 11, timestamp=NOW + 70_000)
    log.store()  # writes an entry with offset 610, which is 512 if its last byte is zero
    logs.abandon()
    data = disk.inode("/logs/t-0/00000000000000000000.timeindex").data
    data[-zeros:] = bytes(zeros)
    _, log = started(disk)
    assert log.log_end_offset == 611
    assert log.segments.active.max_timestamp_offset == 610
    check_indexes(log.segments.active)


def test_recovery_truncates_zeros_and_garbage_after_the_last_batch() -> None:
    for rest in (bytes(500), b"\x7f" * 500, batch()):
        disk = MemoryDisk()
        logs, log = started(disk)
        produce(log, 3)
        logs.abandon()
        disk.inode("/logs/t-0/00000000000000000000.log").data.extend(rest)
        logs, log = started(disk)
        assert offsets(log) == [0, 1, 2]


@pytest.mark.parametrize("byte", [59, 70, -1])
def test_a_damaged_transaction_marker_takes_only_its_own_log_offline(
    byte: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    logs, log = started(disk)
    other = logs.create("other", TOPIC_ID, 0, CONFIG)
    produce(other)
    produce(log, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    marker = build_end_txn(EndTxn(False, 0), producer_id=7, producer_epoch=0, timestamp=NOW)
    start = log.segments.active.size
    log.append_as_leader(marker, leader_epoch=0, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
    finish(log.flush())
    logs.write_checkpoints()
    logs.abandon()
    for name in list(disk.listdir("/logs/t-0")):
        if name.endswith(".snapshot"):
            disk.remove(f"/logs/t-0/{name}")
    data = disk.inode("/logs/t-0/00000000000000000000.log").data
    data[start + byte if byte > 0 else len(data) - 1] ^= 1
    with caplog.at_level(logging.CRITICAL):
        logs = manager(disk, ManualClock(NOW))
    assert logs.get("t", 0) is None
    assert "marker" in logs.corruptions["t", 0]
    assert logs.get("other", 0) is not None


def test_recovery_drops_the_segments_after_a_damaged_segment() -> None:
    disk = MemoryDisk()
    logs, log = started(disk, LogConfig(segment_bytes=200))
    for _ in range(8):
        produce(log)
    bases = list(log.segments.bases)
    logs.abandon()
    disk.inode(f"/logs/t-0/{bases[1]:020d}.log").data[70] ^= 1
    logs, log = started(disk, LogConfig(segment_bytes=200))
    assert log.log_end_offset == bases[1]
    assert log.segments.bases == bases[:2]
    assert produce(log) == bases[1]


def test_recovery_treats_a_batch_with_an_offset_too_large_for_its_segment_as_damaged() -> None:
    disk = MemoryDisk()
    logs, log = started(disk)
    for _ in range(5):
        produce(log)
    logs.abandon()
    size = len(batch())
    disk.inode("/logs/t-0/00000000000000000000.log").data[3 * size + 3] ^= 8  # of the offset: no checksum covers it
    logs, log = started(disk)
    assert log.log_end_offset == 3
    assert offsets(log) == [0, 1, 2]


def test_log_that_was_truncated_at_a_damaged_batch_accepts_appends() -> None:
    _, log = started(disk := MemoryDisk(), LogConfig())
    for _ in range(5):
        produce(log)
    log.truncate_to(4)
    disk.inode("/logs/t-0/00000000000000000000.log").data[len(batch()) + 9] ^= 0x80  # of the second one's length
    log.segments.active.reset_indexes(4)
    assert produce(log) == 4


def test_recovery_ends_the_log_at_a_gap_between_segments() -> None:
    disk = MemoryDisk()
    logs, log = started(disk, LogConfig(segment_bytes=200))
    for _ in range(8):
        produce(log)
    bases = list(log.segments.bases)
    logs.abandon()
    for name in list(disk.listdir("/logs/t-0")):
        if name.startswith(f"{bases[1]:020d}"):
            disk.remove(f"/logs/t-0/{name}")
    _, log = started(disk, LogConfig(segment_bytes=200))
    assert offsets(log) == list(range(bases[1]))


def test_missing_and_damaged_indexes_are_rebuilt() -> None:
    disk = MemoryDisk()
    logs, log = started(disk)
    for number in range(60):
        produce(log, timestamp=NOW + number)
    bases = list(log.segments.bases)
    run(logs.close())
    disk.remove(f"/logs/t-0/{bases[0]:020d}.index")
    disk.remove(f"/logs/t-0/{bases[1]:020d}.timeindex")
    disk.write_atomic(f"/logs/t-0/{bases[2]:020d}.index", b"\xff" * 16)
    _, log = started(disk)
    assert offsets(log) == list(range(60))
    for segment in log.segments:
        check_indexes(segment)
    found = asyncio.run(log.offset_for_timestamp(NOW + 33))
    assert found is not None
    assert found.offset == 33


def test_preallocated_space_in_kafkas_index_files_is_not_read_as_entries() -> None:
    disk = MemoryDisk()
    logs, log = started(disk)
    for _ in range(20):
        produce(log)
    finish(log.flush())
    logs.write_checkpoints()
    logs.abandon()
    for suffix in ("index", "timeindex"):
        disk.inode(f"/logs/t-0/{log.segments.bases[-1]:020d}.{suffix}").data.extend(bytes(1200))
    _, log = started(disk)
    produce(log)
    for segment in log.segments:
        check_indexes(segment)


def test_recovery_removes_temporary_files_of_a_crash() -> None:
    disk = MemoryDisk()
    logs, log = started(disk)
    produce(log)
    logs.abandon()
    for name in (
        "00000000000000000009.index",
        "00000000000000000009.log.deleted",
        "00000000000000000000.log.cleaned",
        "leader-epoch-checkpoint.tmp",
        "00000000000000000099.snapshot",
    ):
        disk.write_new(f"/logs/t-0/{name}", b"x")
    disk.mkdir("/logs/gone-0.0123-delete")
    _, log = started(disk)
    assert sorted(disk.listdir("/logs/t-0")) == ["00000000000000000000.log", "partition.metadata"]
    assert not disk.exists("/logs/gone-0.0123-delete")
    assert offsets(log) == [0]


def test_producer_state_is_rebuilt_from_a_snapshot_and_later_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    logs, log = started(disk, LogConfig(segment_bytes=1 << 20))
    for number in range(400):
        newest = NOW + number
        produce(log, producer_id=number % 3, producer_epoch=0, base_sequence=number // 3, timestamp=newest)
    logs.environment.unflushed_bytes = 1
    finish(log.flush())
    logs.write_checkpoints()
    for number in range(400, 410):
        produce(log, producer_id=number % 3, producer_epoch=0, base_sequence=number // 3)
    expected = sorted((entry.producer_id, entry.last_sequence) for entry in log.producers)
    logs.abandon()
    reads = Reads(monkeypatch)
    _, log = started(disk)
    assert sorted((entry.producer_id, entry.last_sequence) for entry in log.producers) == expected
    lowest = reads.lowest("00000000000000000000.log")
    assert lowest is not None
    assert lowest > 20_000, "the snapshot spares the batches before it"
    duplicate = log.append_as_leader(
        batch(producer_id=1, producer_epoch=0, base_sequence=136), leader_epoch=0, now_ms=NOW
    )
    assert duplicate.duplicate


def test_previous_producer_snapshot_is_loaded_if_the_last_snapshot_is_damaged() -> None:
    disk = MemoryDisk()
    logs, log = started(disk)
    for number in range(3):
        produce(log, producer_id=8, producer_epoch=0, base_sequence=number)
        log.roll()
    run(logs.close())
    disk.write_atomic("/logs/t-0/00000000000000000003.snapshot", b"garbage")
    _, log = started(disk)
    assert [entry.last_sequence for entry in log.producers] == [2]


def test_next_clean_stop_syncs_the_snapshot_of_a_process_that_was_killed_while_it_stopped() -> None:
    disk = MemoryDisk(crashable=True)
    disk.mkdir("/logs")
    logs, log = started(disk)
    produce(log, producer_id=8, producer_epoch=1, base_sequence=0, transactional=True)
    finish(log.flush())
    logs.write_checkpoints()
    log.prepare_stop()  # writes the snapshot
    logs.abandon()  # and is killed before it is synced
    logs, log = started(disk)
    assert log.recovery_point == log.log_end_offset, "there is nothing else to flush"
    run(logs.close())
    for seed in range(20):
        _, log = started(disk.crash(Random(seed)))
        assert [(entry.producer_id, entry.txn_first_offset) for entry in log.producers] == [(8, 0)]


def test_idle_producers_expire_unless_they_have_an_open_transaction() -> None:
    clock = ManualClock(NOW)
    logs = manager(MemoryDisk(), clock)
    log = logs.create("t", TOPIC_ID, 0, CONFIG)
    produce(log, producer_id=1, producer_epoch=0, base_sequence=0)
    produce(log, producer_id=2, producer_epoch=0, base_sequence=0, transactional=True)
    clock.advance(24 * 3600 * 1000)
    assert logs.expire_producers() == 1
    assert [entry.producer_id for entry in log.producers] == [2]


def test_lost_leader_epochs_are_rebuilt_from_the_batches() -> None:
    disk = MemoryDisk()
    logs, log = started(disk)
    for number in range(6):
        produce(log, epoch=number // 2)
    run(logs.close())
    disk.remove("/logs/t-0/leader-epoch-checkpoint")
    _, log = started(disk)
    assert log.epochs.entries == [(0, 0), (1, 2), (2, 4)]


def test_leader_epochs_of_lost_records_are_removed() -> None:
    disk = MemoryDisk()
    logs, log = started(disk)
    for epoch in range(3):
        produce(log, epoch=epoch)
    finish(log.flush())
    logs.write_checkpoints()
    logs.abandon()
    del disk.inode("/logs/t-0/00000000000000000000.log").data[-10:]
    _, log = started(disk)
    assert (log.log_end_offset, log.epochs.entries) == (2, [(0, 0), (1, 1)])


@pytest.mark.parametrize("start", [11, 18])
def test_log_that_lost_all_its_records_continues_at_its_start_offset(start: int) -> None:
    disk = MemoryDisk()
    logs, log = started(disk)
    for _ in range(4):
        produce(log, 5)
    log.advance_log_start_offset(start)
    logs.write_checkpoints()
    logs.abandon()
    data = disk.inode("/logs/t-0/00000000000000000000.log").data
    del data[len(data) // 2 :]
    _, log = started(disk)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (start, start, 0)
    assert produce(log) == start
    assert log.segments.bases == [start]


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "cleaner-offset-checkpoint"])
def test_start_lowers_a_checkpoint_that_is_beyond_the_end_of_the_log(name: str) -> None:
    disk = MemoryDisk()
    logs, log = started(disk)
    produce(log, 5)
    logs.write_checkpoints()
    logs.abandon()
    disk.write_atomic(f"/logs/{name}", render_offsets({("t", 0): 9}))
    started(disk)
    assert parse_offsets(disk.read_bytes(f"/logs/{name}")).get(("t", 0), 0) <= 5
