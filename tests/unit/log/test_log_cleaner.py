"""Tests compaction: it keeps the last value of each key, removes tombstones after a delay, and disturbs no reader."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from random import Random

import pytest
from log_harness import ROOT, TOPIC_ID, check_indexes, finish, manager, produce, read_all, run

from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.disk.real import RealDisk
from penstock.log.cleaner import Cleaner
from penstock.log.compaction import AbandonedError, compact
from penstock.log.log import AppendOrigin, Log
from penstock.log.manager import LogManager
from penstock.log.swap import finish_swaps
from penstock.metadata.configs.topic import LogConfig
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn
from penstock.records.record import read_records

NOW = 1_700_000_000_000
COMPACT = LogConfig(
    cleanup_policy=frozenset({"compact"}), segment_bytes=400, min_cleanable_dirty_ratio=0.01, index_interval_bytes=100
)


def put(log: Log, key: str, value: str | None, timestamp: int = NOW) -> int:
    data = build_batch([(timestamp, key.encode(), None if value is None else value.encode(), ())])
    offset = log.append_as_leader(data, leader_epoch=0, now_ms=log.environment.clock.wall_ms()).base_offset
    log.update_high_watermark(log.log_end_offset)
    return offset


def contents(log: Log) -> list[tuple[int, str, str | None]]:
    return [
        (record.offset, (record.key or b"").decode(), None if record.value is None else record.value.decode())
        for header, data in read_all(log)
        if not header.is_control
        for record in read_records(data)
    ]


def compacted(logs: LogManager, log: Log) -> Cleaner:
    log.roll()
    cleaner = Cleaner(logs)
    finish(cleaner.run())
    return cleaner


def new(config: LogConfig = COMPACT) -> tuple[LogManager, Log, ManualClock]:
    clock = ManualClock(NOW)
    logs = manager(MemoryDisk(), clock)
    return logs, logs.create("t", TOPIC_ID, 0, config), clock


def test_compaction_keeps_the_last_value_of_each_key_at_its_offset() -> None:
    logs, log, _ = new()
    for round_number in range(10):
        for key in "abc":
            put(log, key, f"{key}{round_number}")
    before, segments = log.size, len(log.segments)
    cleaner = compacted(logs, log)
    assert contents(log) == [(27, "a", "a9"), (28, "b", "b9"), (29, "c", "c9")]
    assert log.size < before / 5
    assert cleaner.clean_until(log) == 30
    assert cleaner.due() == []
    for segment in log.segments:
        check_indexes(segment)
    assert log.size == sum(segment.size for segment in log.segments)
    put(log, "a", "again")
    compacted(logs, log)
    assert len(log.segments) < segments, "what has become small is merged by the next round"


def test_read_at_a_compacted_offset_returns_the_next_records() -> None:
    logs, log, _ = new()
    for number in range(30):
        put(log, "same" if number % 2 else f"k{number}", "v")
    compacted(logs, log)
    left = [offset for offset, _, _ in contents(log)]
    for offset in range(30):
        data = log.read(offset, 1 << 20, upper_bound=log.high_watermark).read_now()
        assert read_records(bytes(data)[: 12 + int.from_bytes(bytes(data)[8:12], "big")])[0].offset == min(
            each for each in left if each >= offset
        )


def test_a_tombstone_is_kept_for_delete_retention_ms_and_then_removed() -> None:
    logs, log, clock = new()
    put(log, "gone", "value")
    put(log, "gone", None)
    put(log, "kept", "value")
    compacted(logs, log)
    assert contents(log) == [(1, "gone", None), (2, "kept", "value")]
    clock.advance(COMPACT.delete_retention_ms + 1)
    put(log, "other", "value")
    compacted(logs, log)
    assert contents(log) == [(2, "kept", "value"), (3, "other", "value")]


def test_a_tombstone_is_kept_as_long_as_a_replica_may_lack_it() -> None:
    logs, log, clock = new()
    put(log, "gone", "value")
    put(log, "gone", None)
    complete = False
    cleaner = Cleaner(logs, may_drop_tombstones=lambda log: complete)
    for _ in range(3):
        put(log, "other", "value")
        log.roll()
        finish(cleaner.run())
        clock.advance(COMPACT.delete_retention_ms + 1)
    assert contents(log)[0] == (1, "gone", None)
    complete = True
    put(log, "other", "value")
    log.roll()
    finish(cleaner.run())
    assert "gone" not in [key for _, key, _ in contents(log)]


def test_records_younger_than_min_compaction_lag_ms_are_not_compacted() -> None:
    logs, log, clock = new(
        LogConfig(
            cleanup_policy=frozenset({"compact"}),
            segment_bytes=400,
            min_cleanable_dirty_ratio=0.01,
            min_compaction_lag_ms=1000,
        )
    )
    put(log, "k", "old")
    put(log, "k", "newer")
    log.roll()
    cleaner = Cleaner(logs)
    finish(cleaner.run())
    assert len(contents(log)) == 2
    clock.advance(1001)
    finish(cleaner.run())
    assert contents(log) == [(1, "k", "newer")]


def test_old_records_are_compacted_while_later_segments_are_younger_than_min_compaction_lag_ms() -> None:
    logs, log, clock = new(
        LogConfig(
            cleanup_policy=frozenset({"compact"}),
            segment_bytes=1000,
            min_cleanable_dirty_ratio=0.01,
            min_compaction_lag_ms=1000,
        )
    )
    for age_ms in (1001, 0):
        for value in ("first", "second"):
            put(log, "k", value, clock.wall_ms())
        log.roll()
        clock.advance(age_ms)
    finish(Cleaner(logs).run())
    assert [offset for offset, _, _ in contents(log)] == [1, 2, 3]


def test_a_log_is_compacted_once_enough_of_it_is_dirty_or_a_record_has_waited_too_long() -> None:
    config = LogConfig(
        cleanup_policy=frozenset({"compact"}),
        segment_bytes=400,
        min_cleanable_dirty_ratio=0.9,
        max_compaction_lag_ms=10_000,
    )
    logs, log, clock = new(config)
    for number in range(40):
        put(log, f"k{number}", "v")
    compacted(logs, log)
    put(log, "k1", "again")
    log.roll()
    cleaner = Cleaner(logs)
    assert cleaner.due() == []
    clock.advance(10_001)
    assert [each.overdue for each in cleaner.due()] == [True]


def test_compaction_skips_the_active_segment_and_segments_with_an_open_transaction() -> None:
    logs, log, _ = new()
    put(log, "k", "1")
    put(log, "k", "2")
    log.roll()
    put(log, "k", "3")
    data = build_batch([(NOW, b"k", b"4", ())], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    log.append_as_leader(data, leader_epoch=0, now_ms=NOW)
    log.update_high_watermark(log.log_end_offset)
    log.roll()
    put(log, "k", "5")
    compacted(logs, log)
    assert [value for _, _, value in contents(log)] == ["2", "3", "4", "5"]


def test_compaction_removes_aborted_records_and_compacts_committed_records() -> None:
    logs, log, clock = new()
    for number, committed in ((0, False), (1, True)):
        data = build_batch(
            [(NOW, b"k", b"%d" % number, ())], producer_id=5, producer_epoch=0, base_sequence=number, transactional=True
        )
        log.append_as_leader(data, leader_epoch=0, now_ms=NOW)
        marker = build_end_txn(EndTxn(committed, 0), producer_id=5, producer_epoch=0, timestamp=NOW)
        log.append_as_leader(marker, leader_epoch=0, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
    put(log, "other", "v")
    compacted(logs, log)
    assert contents(log) == [(2, "k", "1"), (4, "other", "v")]
    assert len(log.aborted_transactions(0, 5)) == 1
    for key in ("more", "and more"):
        # The marker outlives its records by a round that notes it, and by delete.retention.ms from then.
        put(log, key, "v")
        compacted(logs, log)
        clock.advance(COMPACT.delete_retention_ms + 1)
    assert [header.base_offset for header, _ in read_all(log) if header.is_control and header.records_count] == [3]


def test_a_producer_keeps_its_sequence_through_compaction_and_a_restart() -> None:
    logs, log, clock = new()
    for number in range(6):
        produce(log, producer_id=9, producer_epoch=0, base_sequence=number)
    compacted(logs, log)
    run(logs.close())
    logs = manager(logs.disk, clock)
    found = logs.get("t", 0)
    assert found is not None
    assert [entry.last_sequence for entry in found.producers] == [5]
    assert produce(found, producer_id=9, producer_epoch=0, base_sequence=6) == 6


def test_compaction_keeps_the_last_committed_batch_of_a_producer_with_uncommitted_batches() -> None:
    logs, log, _ = new()
    for number in range(2):
        produce(log, producer_id=9, producer_epoch=0, base_sequence=number)
    put(log, "key", "of another producer")
    log.roll()
    committed = log.log_end_offset
    for number in range(2, 9):  # more than the producer state remembers
        produce(log, producer_id=9, producer_epoch=0, base_sequence=number, commit=False)
    compacted(logs, log)
    assert contents(log)[0] == (2, "key", "of another producer")
    assert [header.base_offset for header, _ in read_all(log)][:2] == [1, 2]  # offset 1 as an empty batch
    log.snapshots.remove_all()
    assert log.truncate_to(committed)
    assert [entry.last_sequence for entry in log.producers] == [1]
    compacted(logs, log)
    assert [entry.last_sequence for entry in log.producers] == [1]


def test_compaction_removes_older_batches_of_a_producer_whose_last_batch_is_committed() -> None:
    logs, log, _ = new()
    produce(log, producer_id=9, producer_epoch=0, base_sequence=0)
    log.roll()
    produce(log, producer_id=9, producer_epoch=0, base_sequence=1)
    put(log, "key", "of another producer")
    compacted(logs, log)
    assert [header.base_offset for header, _ in read_all(log)] == [1, 2]


def test_log_with_cleanup_policy_compact_delete_is_compacted_and_its_old_segments_are_deleted() -> None:
    config = LogConfig(
        cleanup_policy=frozenset({"compact", "delete"}),
        segment_bytes=400,
        min_cleanable_dirty_ratio=0.01,
        retention_ms=100_000,
    )
    logs, log, clock = new(config)
    put(log, "early", "v")
    for number in range(8):
        put(log, "k", str(number))
    clock.advance(200_000)
    put(log, "late", "v", clock.now_ms)
    compacted(logs, log)
    assert [key for _, key, _ in contents(log)] == ["early", "k", "late"]
    assert logs.apply_retention() > 0
    assert [key for _, key, _ in contents(log)] == ["k", "late"], "whole segments go, and late is in k's"


def test_compaction_reports_a_damaged_segment_and_leaves_it_unchanged() -> None:
    logs, log, _ = new()
    for number in range(20):
        put(log, "k", str(number))
    log.roll()
    victim = log.segments[1].file
    victim.pwrite(b"\xff", 68)
    sizes = [segment.size for segment in log.segments]
    cleaner = Cleaner(logs)
    finish(cleaner.run())
    assert "checksum" in cleaner.uncleanable[log]
    assert [segment.size for segment in log.segments] == sizes


@pytest.mark.parametrize("steps", range(30))
def test_crash_at_any_write_of_a_compaction_keeps_the_last_value_of_each_key(steps: int) -> None:
    clock = ManualClock(NOW)
    disk = MemoryDisk(crashable=True)
    disk.mkdir(ROOT)
    logs = manager(disk, clock)
    log = logs.create("t", TOPIC_ID, 0, COMPACT)
    for number in range(24):
        put(log, f"k{number % 5}", str(number))
    log.roll()
    finish(log.flush())
    logs.write_checkpoints()
    latest = {key: (offset, value) for offset, key, value in contents(log)}
    left = [steps]

    class PowerLossError(Exception):
        pass

    def count_down(operation: str, path: str) -> None:
        if not left[0]:
            raise PowerLossError
        left[0] -= 1

    disk.on_write = count_down
    with contextlib.suppress(PowerLossError):
        finish(Cleaner(logs).run())
    disk.on_write = None
    for seed in range(5):
        again = manager(disk.crash(Random(seed)), clock)
        found = again.get("t", 0)
        assert found is not None
        assert found.log_end_offset == 24
        survived = contents(found)
        assert [offset for offset, _, _ in survived] == sorted({offset for offset, _, _ in survived})
        assert {key: (offset, value) for offset, key, value in survived} == latest
        names = again.disk.listdir(f"{ROOT}/t-0")
        assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]


def test_restart_that_completes_a_segment_swap_removes_all_indexes_of_the_replaced_segments() -> None:
    disk = MemoryDisk()
    disk.mkdir("/t-0")
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        disk.write_new(f"/t-0/{0:020d}{suffix}", b"old")
    for suffix in (".log", ".index", ".timeindex"):
        disk.write_new(f"/t-0/{0:020d}{suffix}.swap", b"")
    left = finish_swaps(disk, "/t-0", set(disk.listdir("/t-0")))
    assert left == {f"{0:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")}
    assert {disk.read_bytes(f"/t-0/{name}") for name in left} == {b""}


def test_log_deleted_while_it_is_compacted_leaves_no_files() -> None:
    logs, log, _ = new()
    for number in range(20):
        put(log, "k", str(number))
    log.roll()
    cleaner = Cleaner(logs)
    original = cleaner._compact

    async def slow(job: object) -> object:
        result = await original(job)  # type: ignore[arg-type]
        logs.delete("t", 0)
        return result

    cleaner._compact = slow  # type: ignore[method-assign, assignment]
    finish(cleaner.run())
    assert logs.get("t", 0) is None
    assert not cleaner.uncleanable


def test_helper_process_compacts_a_log_on_a_real_disk(tmp_path: Path) -> None:
    async def work() -> list[tuple[int, str, str | None]]:
        logs = LogManager(RealDisk(), [str(tmp_path)], ManualClock(NOW))
        await logs.open(node_id=1, cluster_id="cluster")
        log = logs.create("t", TOPIC_ID, 0, COMPACT)
        for number in range(50):
            put(log, f"k{number % 3}", str(number))
        log.roll()
        await Cleaner(logs).run()
        found = contents(log)
        await logs.close()
        return found

    assert asyncio.run(work()) == [(47, "k2", "47"), (48, "k0", "48"), (49, "k1", "49")]


def test_compaction_worker_stops_when_its_broker_process_ends() -> None:
    logs, log, _ = new()
    for number in range(20):
        put(log, "k", str(number))
    log.roll()
    cleaner = Cleaner(logs)
    (due,) = cleaner.due()
    with pytest.raises(AbandonedError):
        compact(logs.disk, cleaner._job(due, log.segments[:-1]), wanted=lambda: False)


def test_failed_compaction_worker_leaves_the_log_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.cleaner.WORKER", "penstock.no_such_module")

    async def work() -> tuple[int, str]:
        logs = LogManager(RealDisk(), [str(tmp_path)], ManualClock(NOW))
        await logs.open(node_id=1, cluster_id="cluster")
        log = logs.create("t", TOPIC_ID, 0, COMPACT)
        for number in range(50):
            put(log, "k", str(number))
        log.roll()
        cleaner = Cleaner(logs)
        await cleaner.run()
        found = len(contents(log))
        await logs.close()
        return found, cleaner.uncleanable[log]

    count, reason = asyncio.run(work())
    assert count == 50
    assert "no_such_module" in reason


def test_compaction_is_dropped_if_the_log_was_truncated_before_it_begins() -> None:
    """After the truncation, the same offsets may belong to an open transaction."""
    logs, log, _ = new()
    for number in range(12):
        put(log, f"k{number % 2}", str(number))
    log.roll()
    cleaner = Cleaner(logs)
    (due,) = cleaner.due()
    flush = Log.flush

    async def cut_meanwhile(self: Log) -> None:
        await flush(self)
        log.truncate_to(2)
        for sequence in range(2):
            data = build_batch(
                [(NOW, b"k0", b"open", ())],
                producer_id=5,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
            log.append_as_leader(data, leader_epoch=1, now_ms=NOW)
        log.roll()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "flush", cut_meanwhile)
        assert finish(cleaner.clean(due)) is None
    log.update_high_watermark(log.log_end_offset)
    assert contents(log) == [(0, "k0", "0"), (1, "k1", "1"), (2, "k0", "open"), (3, "k0", "open")]
    assert not cleaner.uncleanable
    finish(cleaner.run())
    assert len(contents(log)) == 4


def test_a_log_truncated_and_appended_to_during_its_compaction_keeps_its_new_records() -> None:
    """The new segments have the same base offsets and sizes as the segments that are being compacted."""
    logs, log, _ = new()
    for number in range(12):
        put(log, f"k{number % 2}", f"old{number:02}")
    log.roll()
    sizes = [segment.size for segment in log.segments]
    cleaner = Cleaner(logs)
    original = cleaner._compact

    async def cut_meanwhile(job: object) -> object:
        result = await original(job)  # type: ignore[arg-type]
        log.truncate_to(2)
        for number in range(2, 12):
            put(log, f"n{number % 10}", f"new{number:02}")
        log.roll()
        return result

    cleaner._compact = cut_meanwhile  # type: ignore[method-assign, assignment]
    (due,) = cleaner.due()
    assert finish(cleaner.clean(due)) is None
    assert [segment.size for segment in log.segments] == sizes
    assert [value for _, _, value in contents(log)] == ["old00", "old01", *(f"new{each:02}" for each in range(2, 12))]
    assert not cleaner.uncleanable


def test_log_stays_cleanable_if_retention_deletes_a_segment_during_its_compaction() -> None:
    logs, log, _ = new()
    for number in range(20):
        put(log, f"k{number % 2}", str(number))
    log.roll()
    cleaner = Cleaner(logs)
    original = cleaner._compact

    async def slow(job: object) -> object:
        log.drop_segments([log.segments[0]])
        finish(logs.removal.run(all_of_them=True))
        return await original(job)  # type: ignore[arg-type]

    cleaner._compact = slow  # type: ignore[method-assign, assignment]
    finish(cleaner.run())
    assert not cleaner.uncleanable
