"""Tests when a segment rolls: by size, by time, by a full index, and by offsets that no longer fit."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from log_harness import TOPIC_ID, batch, check_indexes, manager, new_log, offsets, produce

from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.log import Log
from penstock.log.snapshots import parse_snapshot
from penstock.metadata.configs.topic import LogConfig
from penstock.records.build import build_batch

NOW = 1_700_000_000_000


def append(log: Log, timestamp: int, now_ms: int = NOW) -> None:
    log.append_as_leader(batch(timestamp=timestamp), leader_epoch=0, now_ms=now_ms)


def test_segment_never_grows_beyond_segment_bytes() -> None:
    size = len(batch())
    log = new_log(LogConfig(segment_bytes=size * 3))
    for _ in range(10):
        produce(log)
    assert log.segments.bases == [0, 3, 6, 9]
    assert [segment.size for segment in log.segments] == [size * 3, size * 3, size * 3, size]
    assert offsets(log) == list(range(10))


def test_segment_rolls_when_record_timestamps_are_more_than_segment_ms_apart() -> None:
    log = new_log(LogConfig(segment_ms=1000, message_timestamp_after_max_ms=1 << 40))
    append(log, NOW)
    append(log, NOW + 1000)
    assert log.segments.bases == [0]
    append(log, NOW + 1001)
    assert log.segments.bases == [0, 2]


def test_segment_without_timestamps_rolls_by_the_time_of_its_creation() -> None:
    clock = ManualClock(NOW)
    log = new_log(LogConfig(segment_ms=1000), manager(clock=clock))
    append(log, -1, NOW)
    append(log, -1, NOW + 1000)
    assert log.segments.bases == [0]
    append(log, -1, NOW + 1001)
    assert log.segments.bases == [0, 2]


def test_an_empty_segment_is_not_rolled_by_time() -> None:
    log = new_log(LogConfig(segment_ms=1000))
    append(log, NOW, NOW + 100_000)
    assert log.segments.bases == [0]
    assert log.roll().base_offset == 1
    assert log.roll().base_offset == 1
    assert log.segments.bases == [0, 1]


def test_segment_jitter_shortens_the_time_until_a_roll() -> None:
    logs = manager(clock=ManualClock(NOW), random=Random(1))
    config = LogConfig(segment_ms=1000, segment_jitter_ms=900, message_timestamp_after_max_ms=1 << 40)
    rolled_after = set()
    for number in range(20):
        log = logs.create("t", TOPIC_ID, number, config)
        append(log, NOW)
        step = next(step for step in range(0, 1100, 50) if _rolls(log, NOW + step))
        rolled_after.add(step)
    assert len(rolled_after) > 5
    assert max(rolled_after) <= 1050


def _rolls(log: Log, timestamp: int) -> bool:
    append(log, timestamp)
    return len(log.segments) > 1


def test_compacted_log_rolls_within_max_compaction_lag_ms() -> None:
    config = LogConfig(
        cleanup_policy=frozenset({"compact"}), max_compaction_lag_ms=500, message_timestamp_after_max_ms=1 << 40
    )
    log = new_log(config)
    append(log, NOW)
    append(log, NOW + 501)
    assert log.segments.bases == [0, 1]


def test_segment_rolls_when_its_index_is_full() -> None:
    log = new_log(LogConfig(segment_index_bytes=80, index_interval_bytes=0))
    for number in range(30):
        produce(log, timestamp=NOW + number)
    assert len(log.segments) > 2
    for segment in log.segments:
        assert len(segment.index) <= 10
        check_indexes(segment)
    assert offsets(log) == list(range(30))


def test_an_offset_too_far_from_the_base_offset_starts_a_new_segment() -> None:
    log = new_log()
    for base in (0, 5, 2**31 + 10, 2**33):
        data = build_batch([(NOW, b"k", b"v", ())], base_offset=base, leader_epoch=0)
        log.append_as_follower(data, leader_epoch=0)
    assert log.segments.bases == [0, 11, 2**33 - (2**31 - 1)]
    for segment in log.segments:
        check_indexes(segment)


def test_sealed_segment_has_both_index_files_and_its_largest_timestamp_in_the_time_index() -> None:
    disk = MemoryDisk()
    log = new_log(logs=manager(disk))
    for stamp in (5, 9, 7):
        produce(log, timestamp=NOW + stamp)
    log.roll()
    names = disk.listdir(log.path)
    assert {"00000000000000000000.index", "00000000000000000000.timeindex"} <= set(names)
    assert log.segments[0].time_index.entries() == [(NOW + 9, 1)]
    assert "00000000000000000003.snapshot" in names


def test_a_roll_writes_a_snapshot_of_the_producers() -> None:
    disk = MemoryDisk()
    log = new_log(logs=manager(disk))
    produce(log, 2, producer_id=4, producer_epoch=1, base_sequence=10)
    log.roll()
    produce(log, 3, producer_id=4, producer_epoch=1, base_sequence=12)
    (entry,) = parse_snapshot(disk.read_bytes(f"{log.path}/00000000000000000002.snapshot"))
    assert (entry.producer_id, entry.producer_epoch, entry.last_sequence, entry.last_offset) == (4, 1, 11, 1)


def test_a_changed_config_applies_to_the_active_segment() -> None:
    log = new_log()
    produce(log)
    log.update_config(replace(log.config, segment_bytes=1))
    assert log.config.segment_bytes == 1
    with pytest.raises(Exception, match="segment"):
        produce(log)
    log.update_config(replace(log.config, segment_bytes=len(batch())))
    produce(log)
    assert log.segments.bases == [0, 1]
