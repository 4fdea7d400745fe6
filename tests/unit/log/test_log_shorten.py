"""Tests retention, DeleteRecords and truncation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from log_harness import TOPIC_ID, batch, finish, manager, new_log, offsets, produce, read_all

from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.log import AppendOrigin, Log
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.control import EndTxn, build_end_txn

NOW = 1_700_000_000_000
SIZE = len(batch())
ONE_EACH = LogConfig(segment_bytes=SIZE, retention_ms=-1)


def with_segments(count: int, **config: object) -> Log:
    log = new_log(replace(ONE_EACH, **config))  # type: ignore[arg-type]
    for number in range(count):
        produce(log, timestamp=NOW + number)
    return log


def test_retention_by_size_keeps_at_least_retention_bytes() -> None:
    log = with_segments(10, retention_bytes=SIZE * 4)
    assert log.delete_old_segments(NOW) == 6
    assert offsets(log) == [6, 7, 8, 9]
    assert log.log_start_offset == 6
    log = with_segments(10, retention_bytes=SIZE * 4 + 1)
    assert log.delete_old_segments(NOW) == 5


def test_retention_by_time_uses_the_newest_record_of_a_segment() -> None:
    log = with_segments(5, retention_ms=1000)
    assert log.delete_old_segments(NOW + 1002) == 2
    assert log.log_start_offset == 2


def test_segment_without_timestamps_expires_by_the_modification_time_of_its_file() -> None:
    clock = ManualClock(NOW)
    logs = manager(MemoryDisk(now_ms=clock.wall_ms), clock)
    log = logs.create("t", TOPIC_ID, 0, replace(ONE_EACH, retention_ms=1000))
    for _ in range(3):
        produce(log, timestamp=-1)
    assert log.delete_old_segments(NOW + 1000) == 0
    assert log.delete_old_segments(NOW + 1001) == 3


def test_offsets_continue_after_all_records_have_expired() -> None:
    log = with_segments(3, retention_ms=1000)
    assert log.delete_old_segments(NOW + 10_000) == 3
    assert (log.log_start_offset, log.log_end_offset, log.size) == (3, 3, 0)
    assert produce(log) == 3
    assert log.delete_old_segments(NOW) == 0


def test_retention_keeps_expired_segments_that_follow_an_unexpired_segment() -> None:
    log = new_log(replace(ONE_EACH, retention_ms=1000))
    for stamp in (NOW + 5000, NOW, NOW):
        produce(log, timestamp=stamp)
    assert log.delete_old_segments(NOW + 2000) == 0


def test_retention_deletes_no_record_above_the_high_watermark() -> None:
    log = new_log(replace(ONE_EACH, retention_ms=0))
    for _ in range(4):
        produce(log, commit=False)
    log.update_high_watermark(2)
    assert log.delete_old_segments(NOW + 10) == 2
    assert log.log_start_offset == 2


def test_retention_deletes_nothing_of_a_compacted_log() -> None:
    log = with_segments(4, retention_ms=0, retention_bytes=0, cleanup_policy=frozenset({"compact"}))
    assert log.delete_old_segments(NOW + 10_000) == 0


def test_deleted_records_are_hidden_immediately_and_their_segments_are_removed_by_the_next_retention_run() -> None:
    log = with_segments(5)
    assert log.advance_log_start_offset(3)
    assert not log.advance_log_start_offset(2)
    assert offsets(log) == [3, 4]
    assert log.delete_old_segments(NOW) == 3
    assert log.segments.bases == [3, 4]
    with pytest.raises(KafkaError) as error:
        log.advance_log_start_offset(6)
    assert error.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_log_start_survives_a_crash_once_it_is_checkpointed() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    log = logs.create("t", TOPIC_ID, 0, LogConfig())
    produce(log, 10)
    produce(log, 10)
    log.advance_log_start_offset(7)
    logs.write_checkpoints()
    logs.abandon()
    again = manager(disk).get("t", 0)
    assert again is not None
    assert (again.log_start_offset, again.log_end_offset) == (7, 20)


def test_files_of_deleted_segments_are_removed_after_the_delay() -> None:
    clock = ManualClock(NOW)
    disk = MemoryDisk()
    logs = manager(disk, clock)
    log = logs.create("t", TOPIC_ID, 0, replace(ONE_EACH, retention_bytes=0, file_delete_delay_ms=1000))
    for _ in range(3):
        produce(log)
    assert logs.apply_retention() == 3
    deleted = [name for name in disk.listdir(log.path) if name.endswith(".deleted")]
    assert deleted
    finish(logs.removal.run())
    assert [name for name in disk.listdir(log.path) if name.endswith(".deleted")] == deleted
    clock.advance(1000)
    finish(logs.removal.run())
    assert not [name for name in disk.listdir(log.path) if name.endswith(".deleted")]


@pytest.mark.parametrize(
    ("cut", "end"), [(100, 12), (12, 12), (11, 9), (10, 9), (9, 9), (6, 6), (5, 3), (3, 3), (1, 0), (0, 0)]
)
def test_truncation_removes_whole_batches(cut: int, end: int) -> None:
    log = new_log(LogConfig(segment_bytes=200, index_interval_bytes=0))
    for number in range(4):
        produce(log, 3, epoch=number)
    assert log.truncate_to(cut) is (cut < 12)
    assert log.log_end_offset == end
    assert offsets(log) == list(range(end))
    assert log.high_watermark == end
    assert log.epochs.entries == [(number, number * 3) for number in range(end // 3)]
    assert log.size == sum(header.size for header, _ in read_all(log))
    assert produce(log, 2, epoch=9) == end


def test_truncation_rebuilds_producers_from_the_remaining_batches() -> None:
    log = new_log()
    produce(log, 2, producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    produce(log, 2, producer_id=6, producer_epoch=0, base_sequence=0)
    marker = build_end_txn(EndTxn(False, 0), producer_id=5, producer_epoch=0, timestamp=NOW)
    log.append_as_leader(marker, leader_epoch=0, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
    assert len(log.aborted_transactions(0, 5)) == 1
    log.truncate_to(4)
    assert log.aborted_transactions(0, 5) == []
    assert log.producers.first_undecided_offset == 0
    log.truncate_to(2)
    assert [entry.producer_id for entry in log.producers] == [5]


def test_a_fully_truncated_log_can_start_at_any_offset() -> None:
    log = new_log()
    produce(log, 5, producer_id=5, producer_epoch=0, base_sequence=0)
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset, log.size) == (1000, 1000, 1000, 0)
    assert log.epochs.entries == []
    assert len(log.producers) == 0
    assert produce(log, 2, epoch=3) == 1000
    assert offsets(log) == [1000, 1001]


def test_a_truncation_below_the_log_start_lowers_the_log_start() -> None:
    log = with_segments(5)
    log.advance_log_start_offset(3)
    log.delete_old_segments(NOW)
    log.truncate_to(1)
    assert (log.log_start_offset, log.log_end_offset) == (1, 1)
    with pytest.raises(KafkaError):
        log.truncate_to(-1)


def test_truncation_lowers_the_checkpoint_before_it_truncates_a_file() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    log = logs.create("t", TOPIC_ID, 0, LogConfig())
    produce(log, 3)
    produce(log, 3)
    finish(log.flush())
    logs.write_checkpoints()
    order: list[str] = []
    disk.on_write = lambda operation, path: order.append(f"{operation} {path.rpartition('/')[2]}")
    log.truncate_to(3)
    assert order.index("rename recovery-point-offset-checkpoint.tmp") < order.index("truncate 00000000000000000000.log")
    assert b"t 0 3" in disk.read_bytes("/logs/recovery-point-offset-checkpoint")


def test_a_truncation_to_the_log_end_removes_an_epoch_that_starts_there() -> None:
    log = new_log()
    produce(log, 2, epoch=8)
    log.advance_log_start_offset(2)
    assert log.epochs.entries == [(8, 2)]
    assert not log.truncate_to(2)
    assert log.epochs.entries == []
