"""Tests that a log that moves to another directory keeps its records and state: copying, swapping, and failures."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest
from log_harness import TOPIC_ID, check_indexes, offsets, produce, run
from move_harness import CHUNK, SMALL, TAIL, A, B, copied, directories, ended, fill, log_in_a, move, names, state

from penstock.clock import ManualClock
from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.disk.real import RealDisk
from penstock.log.cleaner import Cleaner
from penstock.log.leftover_copies import parse_future_name
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.log.segment import Segment
from penstock.log.synced_mark import Mark
from penstock.protocol.errors import ErrorCode, KafkaError

# The copy.


def test_moved_log_has_the_same_records_and_state_in_the_new_directory() -> None:
    logs = directories()
    log = log_in_a(logs)
    fill(log)
    before, bases = state(log), log.segments.bases
    move(logs, log)
    assert (log.log_dir, log.path) == (B, f"{B}/t-0")
    assert state(log) == before
    assert log.segments.bases == bases, "segments are as retention knows them"
    assert logs.get("t", 0) is log
    assert names(logs, B) == ["t-0"]
    for segment in log.segments:
        check_indexes(segment)
    produce(log, 1, epoch=2)
    assert offsets(log)[-1] == log.log_end_offset - 1


def test_a_moved_log_is_opened_again_with_the_same_state() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    before = state(log)
    move(logs, log)
    run(logs.close())
    again = directories(disk)
    found = again.get("t", 0)
    assert found is not None
    assert found.log_dir == B
    found.update_high_watermark(found.log_end_offset)
    assert state(found) == before
    assert found.topic_id == TOPIC_ID


def test_directory_of_a_future_log_is_named_as_in_kafka() -> None:
    logs = directories()
    logs.futures.create(log_in_a(logs), logs.dirs[1])
    [name] = names(logs, B)
    assert parse_future_name(name) == ("t", 0)
    assert name.startswith("t-0.")
    assert name.endswith("-future")
    assert len(name) == len("t-0.") + 32 + len("-future")


def test_copy_continues_while_records_are_appended() -> None:
    logs = directories()
    log = log_in_a(logs)
    fill(log)

    async def busy_move() -> None:
        future = logs.futures.create(log, logs.dirs[1])
        while future.records_left > 4:
            await future.copy(CHUNK)
            if future.log.log_end_offset % 2:
                produce(log, 1, epoch=2)
        await ended(logs, future)

    run(busy_move())
    assert offsets(log) == list(range(log.log_end_offset))


def test_a_copy_follows_a_truncation_of_the_current_log() -> None:
    logs = directories()
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    log.truncate_to(30)
    fill(log, first=5)
    before = state(log)
    run(ended(logs, future))
    assert state(log) == before


def test_copy_is_truncated_to_the_lowest_of_several_truncations_of_the_current_log() -> None:
    logs = directories()
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    log.truncate_to(30)
    fill(log, first=5)
    log.truncate_to(log.log_end_offset - 2)
    fill(log, first=8)
    before = state(log)
    run(ended(logs, future))
    assert state(log) == before


def test_copy_starts_again_when_the_log_start_of_the_current_log_passes_the_end_of_the_copy() -> None:
    logs = directories()
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(future.copy(CHUNK))
    log.advance_log_start_offset(log.log_end_offset - 3)
    log.delete_old_segments(0)
    before = state(log)
    run(ended(logs, future))
    assert state(log) == before


def test_moved_log_keeps_a_log_start_offset_inside_a_batch() -> None:
    logs = directories()
    log = log_in_a(logs)
    produce(log, 10)
    produce(log, 10)
    log.advance_log_start_offset(4)
    before = state(log)
    move(logs, log)
    assert state(log) == before
    assert log.log_start_offset == 4


def test_deleting_records_during_a_move_removes_their_segments_from_the_copy() -> None:
    logs = directories()
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    segments = len(future.log.segments)
    log.advance_log_start_offset(log.log_end_offset - 3)
    before = state(log)
    run(ended(logs, future))
    assert len(log.segments) < segments
    assert state(log) == before


def test_moved_log_keeps_its_end_offset_if_compaction_removed_its_last_records() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    produce(log, 3)
    log.roll()
    log.log_end_offset = log.producers.map_end_offset = 9
    log.segments.active.base_offset = 9
    move(logs, log)
    assert log.log_end_offset == 9
    run(logs.close())
    [moved] = directories(disk)
    assert moved.log_end_offset == 9
    assert produce(moved, 1) == 9


def test_moved_log_keeps_the_state_of_producers_whose_records_were_deleted() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    produce(log, 2, producer_id=7, producer_epoch=0, base_sequence=0)
    for _ in range(20):
        produce(log, 3, value=bytes(60))
    log.advance_log_start_offset(10)
    log.delete_old_segments(0)
    move(logs, log)
    run(logs.close())
    found = directories(disk).get("t", 0)
    assert found is not None
    for each in (log, found):
        entry = each.producers.get(7)
        assert entry is not None
        assert entry.last_sequence == 1


def test_a_log_that_is_being_moved_is_not_compacted() -> None:
    logs = directories()
    config = replace(SMALL, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01)
    log = log_in_a(logs, config)
    for _ in range(30):
        produce(log, 3, value=bytes(60))
    cleaner = Cleaner(logs)
    [due] = cleaner.due()
    future = logs.futures.create(log, logs.dirs[1])
    assert not cleaner.due()
    assert run(cleaner.clean(due)) is None, "a compaction that was due before the move is dropped"
    run(ended(logs, future))
    assert len(offsets(log)) == 90
    [due] = cleaner.due()
    assert run(cleaner.clean(due)) is not None


def test_a_move_removes_compacted_segments_that_are_not_in_use_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = directories()
    log = log_in_a(logs)
    fill(log)
    removed: list[Segment] = []
    waiting = log.segments[0]
    monkeypatch.setattr(Segment, "remove_files", lambda self: removed.append(self))
    log.pending_swaps.append(waiting)
    logs.futures.create(log, logs.dirs[1])
    assert removed == [waiting]
    assert not log.pending_swaps


def test_a_copy_that_is_flushed_often_keeps_one_producer_snapshot_per_segment() -> None:
    logs = directories()
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    future.log.environment = replace(future.log.environment, unflushed_bytes=1)
    while future.records_left:
        run(future.copy(CHUNK))
        assert future.flush_is_due
        run(future.flush())
    assert len(future.log.snapshots.offsets) <= len(log.segments)
    assert len(future.log.snapshots.offsets) > 1


# The swap.


def test_copy_does_not_replace_the_log_while_more_than_the_allowed_bytes_are_missing() -> None:
    logs = directories()
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(logs.futures.prepare(future))
    assert logs.futures.swap(future, 10) is None
    assert log.log_dir == A


def test_swap_copies_the_last_records_before_the_copy_replaces_the_log() -> None:
    logs = directories()
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    run(logs.futures.prepare(future))
    for _ in range(5):
        produce(log, 2, epoch=6)
    before = state(log)
    assert logs.futures.swap(future, TAIL) is not None
    assert state(log) == before


def test_copy_does_not_replace_the_log_while_the_copy_has_fewer_synced_records() -> None:
    logs = directories()
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    run(logs.futures.prepare(future))
    produce(log, 1, epoch=2)
    log.flush_now()
    assert logs.futures.swap(future, TAIL) is None
    run(ended(logs, future))
    assert log.log_dir == B


def test_copy_of_a_log_with_fsync_before_acknowledgements_is_synced_during_the_swap() -> None:
    logs = directories()
    log = log_in_a(logs, replace(SMALL, flush_messages=1))
    assert log.config.fsync_before_ack
    produce(log, 3)
    run(log.flushed(3))
    assert log.durability.mark is Mark.PRESENT
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    run(logs.futures.prepare(future))
    produce(log, 2)
    assert logs.futures.swap(future, TAIL) is not None
    assert log.durability.mark is Mark.PRESENT
    assert log.countable_offset == 5


def test_read_that_began_before_a_move_can_still_read_the_old_segments() -> None:
    clock = ManualClock()
    logs = directories(clock=clock)
    log = log_in_a(logs)
    fill(log)
    part = log.read(0, 400, upper_bound=log.log_end_offset)
    expected = part.read_now()
    move(logs, log)
    assert part.segment is not None
    part.segment.close()  # a pooled descriptor may be closed at any time
    assert bytes(part.read_now()) == bytes(expected)
    [old] = names(logs, A)
    assert old.endswith("-delete")
    clock.advance(log.config.file_delete_delay_ms + 1)
    run(logs.removal.run())
    assert names(logs, A) == []


def test_current_log_stays_in_use_if_the_swap_fails() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    run(logs.futures.prepare(future))

    def fail(kind: str, path: str) -> None:
        if kind == "rename" and path.startswith(B):
            raise DiskError(errno.EIO, "input/output error", path)

    disk.on_write = fail
    with pytest.raises(KafkaError) as caught:
        logs.futures.swap(future, TAIL)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    disk.on_write = None
    logs.futures.drop(future)
    assert log.log_dir == A
    assert not log.offline
    assert logs.dirs[1].offline
    produce(log, 1, epoch=2)
    assert not log.is_moving


def test_a_full_target_directory_ends_the_move_and_stays_online() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])

    def fill_up(kind: str, path: str) -> None:
        if kind == "append" and path.startswith(B):
            raise DiskError(errno.ENOSPC, "no space left on device", path)

    disk.on_write = fill_up
    with pytest.raises(KafkaError, match="no space left"):
        run(future.copy(CHUNK))
    disk.on_write = None
    logs.futures.drop(future)
    assert not logs.dirs[1].offline
    run(logs.removal.run(all_of_them=True))
    assert names(logs, B) == []


def test_cancelled_move_removes_its_copy_and_can_be_started_again() -> None:
    logs = directories()
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    logs.futures.drop(future)
    run(logs.removal.run(all_of_them=True))
    assert names(logs, B) == []
    move(logs, log)
    assert log.log_dir == B


def test_deleting_a_log_during_its_move_removes_the_copy() -> None:
    logs = directories()
    log = log_in_a(logs)
    fill(log)
    logs.futures.create(log, logs.dirs[1])
    logs.delete("t", 0)
    run(logs.removal.run(all_of_them=True))
    assert names(logs, A) == names(logs, B) == []
    assert not list(logs.futures)


def test_a_log_can_be_moved_back_and_moved_again() -> None:
    logs = directories(count=3)
    log = log_in_a(logs)
    fill(log)
    before = state(log)
    for slot in (1, 0, 2, 0, 1):
        move(logs, log, slot)
        assert log.log_dir == logs.dirs[slot].path
        assert state(log) == before
        run(logs.removal.run(all_of_them=True))
    assert [names(logs, each.path) for each in logs.dirs] == [[], ["t-0"], []]


def test_requests_that_wait_for_an_fsync_during_a_swap_are_served_in_the_new_directory(tmp_path: Path) -> None:
    disk = RealDisk()
    logs = LogManager(disk, (f"{tmp_path}/a", f"{tmp_path}/b"), ManualClock())

    async def story() -> Log:
        await logs.open(node_id=1, cluster_id="c")
        log = log_in_a(logs, replace(SMALL, flush_messages=1))
        future = logs.futures.create(log, logs.dirs[1])
        produce(log, 3)
        await log.flushed(3)
        await copied(future)
        await logs.futures.prepare(future)
        produce(log, 2)
        waiting = log.flushed(5)
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        retired = logs.futures.swap(future, TAIL)
        assert retired is not None
        await asyncio.gather(task, logs.futures.retire(retired))
        produce(log, 1)
        await log.flushed(6)
        await logs.close()
        return log

    log = run(story())
    assert log.path == f"{tmp_path}/b/t-0"
    assert not log.offline
