"""Tests the copy of a log that moves: the bytes that are left, the steps that follow the current log, and the
conditions of the swap."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest
from log_harness import batch, offsets, produce, read_all, run
from move_harness import CHUNK, SMALL, TAIL, A, B, copied, directories, fill, log_in_a

from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.log.future_log import FutureLog
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.log.segment import MAX_RELATIVE_OFFSET
from penstock.log.synced_mark import Mark
from penstock.protocol.errors import ErrorCode, KafkaError


def begun(disk: MemoryDisk | None = None) -> tuple[LogManager, Log, FutureLog]:
    """Begins the move of a log with several segments from A to B, without copied records."""
    logs = directories(disk)
    current = log_in_a(logs)
    fill(current)
    return logs, current, logs.futures.create(current, logs.dirs[1])


def bytes_above(current: Log, offset: int) -> int:
    return sum(header.size for header, _ in read_all(current) if header.base_offset >= offset)


# What is left.


@pytest.mark.parametrize("chunk", [1, CHUNK, 1500, TAIL])
def test_records_and_bytes_left_are_those_that_the_copy_does_not_have_yet(chunk: int) -> None:
    _, current, future = begun()
    steps = 0
    while True:
        end = future.log.log_end_offset
        assert future.records_left == current.log_end_offset - end
        assert future.bytes_left == bytes_above(current, end)
        if not future.records_left:
            break
        assert run(future.copy(chunk)) == bytes_above(current, end) - bytes_above(current, future.log.log_end_offset)
        steps += 1
        if steps == 2:
            produce(current, 2, epoch=9, value=bytes(400))
    assert future.log.segments.bases == current.segments.bases


def test_bytes_left_after_the_last_records_are_copied_at_once_count_only_later_records() -> None:
    _, current, future = begun()
    run(future.copy(CHUNK))
    assert future.copy_tail(TAIL)
    assert (future.records_left, future.bytes_left) == (0, 0)
    produce(current, 3, epoch=9)
    assert future.bytes_left == bytes_above(current, future.log.log_end_offset) > 0


def test_copy_that_is_longer_than_the_truncated_log_has_nothing_left_to_copy() -> None:
    _, current, future = begun()
    run(copied(future))
    current.truncate_to(5)
    assert (future.records_left, future.bytes_left) == (0, 0)


def test_bytes_left_are_never_negative_when_the_current_log_loses_its_first_segments() -> None:
    _, current, future = begun()
    run(copied(future))
    produce(current, 1, epoch=9)
    current.roll()
    produce(current, 1, epoch=9)
    current.advance_log_start_offset(current.log_end_offset - 1)
    current.delete_old_segments(0)
    assert len(current.segments) == 1
    assert future.bytes_left == 0, "an estimate: the copy is larger than the current log"


def test_bytes_left_do_not_count_segments_that_only_the_current_log_still_has() -> None:
    _, current, future = begun()
    run(copied(future))
    current.advance_log_start_offset(20)
    run(copied(future))
    assert future.log.size < current.size
    resumed = FutureLog(current, future.log)
    assert (future.bytes_left, resumed.bytes_left) == (0, 0)
    for _ in range(3):
        produce(current, 2, epoch=9)
    while future.records_left:
        assert future.bytes_left == bytes_above(current, future.log.log_end_offset)
        run(future.copy(1))


def test_copy_without_new_records_copies_nothing_and_keeps_its_segments() -> None:
    _, current, future = begun()
    run(copied(future))
    bases = list(future.log.segments.bases)
    assert run(future.copy(CHUNK)) == 0
    assert future.copy_tail(0)
    assert future.log.segments.bases == bases == current.segments.bases


@pytest.mark.parametrize("gap", [1, 2, 6])
@pytest.mark.parametrize("at_once", [False, True])
def test_copy_ends_like_its_log_if_compaction_removed_the_last_records(gap: int, at_once: bool) -> None:
    logs = directories()
    current = log_in_a(logs)
    produce(current, 3)
    current.roll()
    current.log_end_offset = current.producers.map_end_offset = 3 + gap
    current.segments.active.base_offset = 3 + gap
    future = logs.futures.create(current, logs.dirs[1])
    if at_once:
        assert future.copy_tail(TAIL)
    else:
        run(copied(future))
    assert future.log.log_end_offset == 3 + gap
    assert future.log.producers.map_end_offset == 3 + gap
    assert future.log.segments.active.base_offset == 3 + gap


# Following the current log.


def test_copy_has_to_be_truncated_until_it_ends_below_the_lowest_truncation() -> None:
    _, _, future = begun()
    run(copied(future))
    steps: list[tuple[int | None, bool]] = []
    for noted, cut_to in ((20, 40), (30, 40), (30, 20)):
        future.note_truncation(noted)
        future.truncate_to(cut_to)
        steps.append((future.cut_at, future.copy_tail(0)))
    assert steps == [(20, False), (20, False), (None, False)], "records between 20 and 40 may differ"
    assert future.log.log_end_offset <= 20
    assert future.copy_tail(TAIL)


def test_copy_keeps_exactly_the_segments_with_records_above_its_new_start() -> None:
    _, current, _ = begun()
    bases = current.segments.bases
    assert len(bases) > 4
    for start in range(current.log_end_offset + 1):
        logs, current, future = begun()
        run(copied(future))
        current.advance_log_start_offset(start)
        opened = list(future.log.segments)
        run(future.advance_start(start))
        last = max(base for base in bases if base <= start)
        kept = [base for base in bases if base >= last]
        assert (future.log.log_start_offset, future.log.segments.bases) == (start, kept)
        names = {name.partition(".")[0] for name in logs.disk.listdir(future.log.path) if name[0] == "0"}
        snapshots = {f"{offset:020d}" for offset in future.log.snapshots.offsets}
        assert names == {f"{base:020d}" for base in kept} | snapshots, "files of removed segments are removed at once"
        assert {offset for offset in future.log.snapshots.offsets if offset < last} == set()
        assert all(segment.file._inode is None for segment in opened[: -len(kept)])  # type: ignore[attr-defined]
        assert [header for header, _ in read_all(future.log)] == [header for header, _ in read_all(current)]


@pytest.mark.parametrize("suffix", [".snapshot", ".log", ".timeindex"])
def test_error_while_files_of_removed_segments_are_deleted_takes_the_directory_of_the_copy_offline(suffix: str) -> None:
    disk = MemoryDisk()
    logs, current, future = begun(disk)
    run(copied(future))

    def fail(kind: str, path: str) -> None:
        if kind == "remove" and path.endswith(suffix):
            raise DiskError(errno.EIO, "input/output error", path)

    disk.on_write = fail
    with pytest.raises(KafkaError) as refusal:
        run(future.advance_start(current.log_end_offset))
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert [each.offline for each in logs.dirs] == [False, True]


@pytest.mark.parametrize("beyond", [-1, 0, 1, 5])
@pytest.mark.parametrize("at_once", [False, True])
def test_first_batch_far_above_the_log_start_gets_the_same_segment_in_the_copy(beyond: int, at_once: bool) -> None:
    logs = directories()
    current = log_in_a(logs)
    current.append_as_follower(batch(base_offset=MAX_RELATIVE_OFFSET + beyond), 0)
    current.update_high_watermark(current.log_end_offset)
    assert current.segments.bases == [max(0, beyond)]
    future = logs.futures.create(current, logs.dirs[1])
    if at_once:
        assert future.copy_tail(TAIL)
    else:
        run(copied(future))
    assert future.log.segments.bases == current.segments.bases
    assert read_all(future.log) == read_all(current)


@pytest.mark.parametrize("at_once", [False, True])
def test_copy_in_an_offline_directory_is_not_continued(at_once: bool) -> None:
    logs, _, future = begun()
    run(future.copy(CHUNK))
    end, size = future.log.log_end_offset, future.log.size
    logs.take_offline(logs.dirs[1], OSError(errno.EIO, "input/output error"))
    with pytest.raises(KafkaError) as refusal:
        future.copy_tail(TAIL) if at_once else run(future.copy(CHUNK))
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (future.log.log_end_offset, future.log.size) == (end, size)


# The swap.


def advanced_start(current: Log, future: FutureLog) -> None:
    current.advance_log_start_offset(3)


def cut(current: Log, future: FutureLog) -> None:
    future.note_truncation(5)


def marked(current: Log, future: FutureLog) -> None:
    current.durability.mark = Mark.PRESENT


def changing(current: Log, future: FutureLog) -> None:
    current.durability.mark = future.log.durability.mark = Mark.CHANGING


def one_more_synced(current: Log, future: FutureLog) -> None:
    current.durability.flushed_offset = future.log.durability.flushed_offset + 1


def one_less_synced(current: Log, future: FutureLog) -> None:
    current.durability.flushed_offset = future.log.durability.flushed_offset - 1


def equally_synced(current: Log, future: FutureLog) -> None:
    current.durability.flushed_offset = future.log.durability.flushed_offset


def promised_and_more_synced(current: Log, future: FutureLog) -> None:
    one_more_synced(current, future)
    current.update_config(replace(SMALL, flush_messages=1))


@pytest.mark.parametrize(
    ("change", "prepared"),
    [
        (None, True),
        (advanced_start, False),
        (cut, False),
        (marked, False),
        (changing, False),
        (one_more_synced, False),
        (one_less_synced, True),
        (equally_synced, True),
        (promised_and_more_synced, True),
    ],
)
def test_each_condition_of_the_swap_is_required(
    change: Callable[[Log, FutureLog], None] | None, prepared: bool
) -> None:
    logs, current, future = begun()
    run(copied(future))
    assert logs.futures.swap(future, TAIL) is None, "the copy is not on disk yet"
    run(logs.futures.prepare(future))
    if change is not None:
        change(current, future)
    assert future.is_prepared is prepared
    retired = logs.futures.swap(future, TAIL)
    assert (retired is not None, current.log_dir) == ((True, B) if prepared else (False, A))


def test_copy_prepared_with_a_higher_log_start_than_its_log_does_not_replace_it() -> None:
    logs, current, future = begun()
    run(copied(future))
    run(logs.futures.prepare(future))
    future.note_prepared(current.log_start_offset + 1)
    assert not future.is_prepared


def test_swap_needs_every_condition_again_after_the_last_records_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    logs, current, future = begun()
    run(copied(future))
    run(logs.futures.prepare(future))
    original = FutureLog.copy_tail

    def truncated_meanwhile(self: FutureLog, max_bytes: int) -> bool:
        done = original(self, max_bytes)
        self.note_truncation(5)
        return done

    monkeypatch.setattr(FutureLog, "copy_tail", truncated_meanwhile)
    assert logs.futures.swap(future, TAIL) is None
    assert current.log_dir == A


def test_moved_log_has_epochs_without_records_and_writes_them_in_its_new_directory() -> None:
    disk = MemoryDisk(crashable=True)
    logs, current, future = begun(disk)
    run(copied(future))
    run(logs.futures.prepare(future))
    current.assign_epoch(7, current.log_end_offset)
    current.flush_now()
    before = current.epochs.entries
    assert before[-1][0] == 7
    assert logs.futures.swap(future, TAIL) is not None
    assert current.epochs.entries == before
    assert current.is_dirty
    current.flush_now()
    assert b"7 " in disk.read_bytes(f"{B}/t-0/leader-epoch-checkpoint")


def test_producer_snapshot_of_the_swap_is_synced_by_the_next_flush() -> None:
    disk = MemoryDisk(crashable=True)
    logs, current, future = begun(disk)
    run(copied(future))
    run(logs.futures.prepare(future))
    produce(current, 2, epoch=5, producer_id=50, producer_epoch=0, base_sequence=0)
    assert logs.futures.swap(future, TAIL) is not None
    current.flush_now()
    for name in disk.listdir(current.path):
        assert not disk.inode(f"{current.path}/{name}").pending, name
    assert offsets(current) == list(range(current.log_end_offset))
