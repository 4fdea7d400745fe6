"""Tests that a crash at any point of a move leaves one current log. The next start resumes or completes the move, or
removes the copy."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random

import pytest
from log_harness import TOPIC_ID, check_indexes, manager, produce, read_all, run
from move_harness import (
    CHUNK,
    TAIL,
    A,
    B,
    C,
    copied,
    directories,
    ended,
    fill,
    log_in_a,
    move,
    names,
    state,
    swapped,
    transact,
)

from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.disk.volume import Severity, Volume
from penstock.log import moved_mark
from penstock.log.log import Log
from penstock.log.manager import DirectoryError, LogManager
from penstock.records.header import BatchHeader
from tools.examples import examples

pytestmark = pytest.mark.exhaustive


def crashable() -> MemoryDisk:
    return MemoryDisk(volume=Volume(lambda: 0, crashable=True, durable_directories=False))


@dataclass
class Promise:
    """Holds the records that the log must have after a crash at this point."""

    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    flushed: int = 0

    def note(self, log: Log, below: int | None = None) -> None:
        self.batches = [each for each in read_all(log) if below is None or each[0].next_offset <= below]
        self.flushed = log.flushed_offset


async def busy_move(logs: LogManager, log: Log, promise: Promise) -> None:
    """Moves the log while records and transactions are appended, the log is truncated, and records are deleted."""
    future = logs.futures.create(log, logs.dirs[1])
    await future.copy(CHUNK)
    promise.note(log, log.log_end_offset - 3)
    log.truncate_to(log.log_end_offset - 3)
    fill(log, first=3)
    log.advance_log_start_offset(5)
    promise.note(log)
    await copied(future)
    await logs.futures.prepare(future)
    transact(log, 6, committed=False)
    produce(log, 2, epoch=6)
    promise.note(log)
    log.flush_now()
    promise.note(log)
    await logs.futures.prepare(future)
    await copied(future)
    await logs.futures.prepare(future)
    produce(log, 2, epoch=6)
    promise.note(log)
    retired = logs.futures.swap(future, TAIL)
    assert retired is not None
    produce(log, 2, epoch=7)
    promise.note(log)
    await log.flush()
    promise.note(log)
    await logs.futures.retire(retired)
    produce(log, 1, epoch=7)
    promise.note(log)


@dataclass
class Crash:
    """Holds the disk and the required records directly before one change of the disk."""

    change: str
    volume: Volume
    promise: Promise


@cache
def crashes_of_a_move() -> list[Crash]:
    """Returns the state before every change to the disk during a busy move, except appends to the current log."""
    disk = MemoryDisk(volume=Volume(lambda: 0, crashable=True, durable_directories=False))
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    log.flush_now()
    logs.write_checkpoints()
    promise = Promise()
    promise.note(log)
    found: list[Crash] = []

    def note(kind: str, path: str) -> None:
        if kind != "append" or not path.startswith(A):  # `test_log_crash_property` has crashes of plain appends
            found.append(Crash(f"{len(found)}: {kind} {path}", disk.volume.copied(), replace(promise)))

    disk.on_write = note
    run(busy_move(logs, log, promise))
    return found


@pytest.mark.parametrize("power", [None, Severity.EVERYTHING, Severity.SOME])
def test_crash_at_each_disk_write_of_a_move_leaves_exactly_one_current_log(power: Severity | None) -> None:
    crashes = crashes_of_a_move()
    assert len(crashes) > 200, "the crashes cover the whole move"
    for number, crash in list(enumerate(crashes))[:: len(crashes) // examples(len(crashes))]:
        volume = crash.volume.copied()
        if power is not None:
            volume.lose_power(Random(number), power)
        logs = directories(MemoryDisk(volume=volume))
        found = logs.get("t", 0)
        assert found is not None, crash.change
        after = read_all(found)
        by_offset = {header.base_offset: data for header, data in after}
        for header, data in crash.promise.batches:
            if header.next_offset <= crash.promise.flushed or power is None:
                assert by_offset.get(header.base_offset) == data, crash.change
        for segment in found.segments:
            check_indexes(segment)
        if found.log_dir == A:
            run(ended(logs, logs.futures.get("t", 0) or logs.futures.create(found, logs.dirs[1])))
        assert found.log_dir == B, crash.change
        assert read_all(found) == after, crash.change
        _settle(logs)
        assert (names(logs, A), names(logs, B)) == ([], ["t-0"]), crash.change


def _settle(logs: LogManager) -> None:
    for directory in logs.dirs:
        directory.remove_leftovers()
    run(logs.removal.run(all_of_them=True))


def test_leftover_file_that_marks_a_log_as_moved_does_not_prevent_moving_the_log_back() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    move(logs, log)
    moved_mark.write(disk, log.path, [logs.dirs[0].directory_id])
    run(swapped(logs, logs.futures.create(log, logs.dirs[0])))
    produce(log, 2, epoch=4)
    expected = read_all(log)
    logs.abandon()
    found = directories(disk).get("t", 0)
    assert found is not None
    assert found.log_dir == A
    assert read_all(found) == expected


def test_start_fails_if_a_partition_is_in_two_directories_and_neither_log_is_marked_as_moved() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    produce(log_in_a(logs), 1)
    run(logs.close())
    disk.mkdir(f"{B}/t-0")
    with pytest.raises(DirectoryError, match="move one of them away"):
        directories(disk)


def test_start_resumes_an_interrupted_move_at_the_end_of_the_copy(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(future.copy(CHUNK))
    end = future.log.log_end_offset
    run(logs.close())
    with caplog.at_level("INFO"):
        again = directories(disk)
    found = again.get("t", 0)
    assert found is not None
    resumed = again.futures.get("t", 0)
    assert resumed is not None
    assert resumed.log.log_end_offset == end > 0
    assert f"resuming the move of {A}/t-0" in caplog.text
    found.update_high_watermark(found.log_end_offset)
    before = state(found)
    run(ended(again, resumed))
    assert state(found) == before


def test_start_truncates_a_copy_where_the_current_log_has_other_records() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    log.on_truncation = None  # the copy is in an offline directory while the current log is truncated
    log.truncate_to(30)
    fill(log, first=5)
    run(logs.close())
    again = directories(disk)
    found = again.get("t", 0)
    assert found is not None
    resumed = again.futures.get("t", 0)
    assert resumed is not None
    assert resumed.log.log_end_offset == 28, "the epochs differ from there on"
    found.update_high_watermark(found.log_end_offset)
    before = state(found)
    run(ended(again, resumed))
    assert state(found) == before


def test_a_start_does_not_resume_a_copy_of_another_topic_with_the_same_name() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    logs.futures.create(log, logs.dirs[1])
    run(logs.close())
    disk.write_atomic(f"{A}/t-0/partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAEA")
    again = directories(disk)
    found = again.get("t", 0)
    assert found is not None
    assert not found.is_moving
    [orphan] = again.futures.leftovers.of("t", 0)
    assert orphan.topic_id == TOPIC_ID, "the metadata decides: its own log may be offline"


def test_start_keeps_a_future_log_that_has_no_current_log() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    run(logs.close())
    disk.remove_tree(f"{A}/t-0")
    again = directories(disk)
    assert again.get("t", 0) is None
    [orphan] = again.futures.leftovers.orphans
    assert (orphan.topic, orphan.partition, orphan.topic_id) == ("t", 0, TOPIC_ID)
    again.futures.leftovers.remove(orphan, "the test says so")
    run(again.removal.run(all_of_them=True))
    assert names(again, B) == []


def test_future_log_that_replaced_an_offline_log_stays_in_use_when_the_old_directory_comes_back() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    run(logs.futures.mark(future))
    run(logs.close())
    disk.rename(f"{A}/t-0", f"{A}/unreadable")
    without = directories(disk)
    adopted = without.adopt(without.futures.leftovers.orphans[0], log.config)
    assert adopted is not None
    produce(adopted, 2, epoch=6)
    expected = read_all(adopted)
    run(without.close())
    disk.rename(f"{A}/unreadable", f"{A}/t-0")
    again = directories(disk)
    found = again.get("t", 0)
    assert found is not None
    assert (found.log_dir, read_all(found)) == (B, expected)
    _settle(again)
    assert (names(again, A), names(again, B)) == ([], ["t-0"])


def test_old_log_of_a_move_is_removed_when_its_offline_directory_comes_back() -> None:
    disk = MemoryDisk()
    logs = directories(disk, count=3)
    log = log_in_a(logs)
    fill(log)
    retired = run(swapped(logs, logs.futures.create(log, logs.dirs[1])))
    logs.dirs[0].failure = OSError(errno.EIO, "input/output error")

    def broken(kind: str, path: str) -> None:
        if path.startswith(A):
            raise DiskError(errno.EIO, "input/output error", path)

    disk.on_write = broken
    run(logs.futures.retire(retired))
    disk.on_write = None
    assert disk.exists(f"{A}/t-0")
    move(logs, log, 2)
    fill(log)
    expected = read_all(log)
    logs.abandon()
    again = manager(disk, dirs=(A, B, C))
    found = again.get("t", 0)
    assert found is not None
    assert found.log_dir == C
    assert read_all(found) == expected
