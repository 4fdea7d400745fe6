"""Tests errors at each step of a move between directories: which directory goes offline, and which log stays in use."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from log_harness import TOPIC_ID, offsets, produce, read_all, run
from move_harness import CHUNK, SMALL, TAIL, A, B, C, copied, directories, fill, log_in_a, move, names, swapped

from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.log import moved_mark
from penstock.log.checkpoints import parse_offsets
from penstock.log.directory import DELETE_SUFFIX, STRAY_SUFFIX
from penstock.log.future_log import FutureLog
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.log.segment import Segment
from penstock.protocol.errors import ErrorCode, KafkaError

SOME_ID = bytes(range(2, 18))


def filled(disk: MemoryDisk, count: int = 2) -> tuple[LogManager, Log]:
    logs = directories(disk, count=count)
    log = log_in_a(logs)
    fill(log)
    return logs, log


def prepared(logs: LogManager, log: Log, slot: int = 1) -> FutureLog:
    future = logs.futures.create(log, logs.dirs[slot])
    run(copied(future))
    run(logs.futures.prepare(future))
    return future


@contextmanager
def failing(disk: MemoryDisk, kind: str, text: str, code: int = errno.EIO) -> Iterator[list[str]]:
    """Makes each operation of this kind fail on paths that contain the text. Yields the paths."""
    met: list[str] = []

    def fail(operation: str, path: str) -> None:
        if operation == kind and text in path:
            met.append(path)
            raise DiskError(code, "the disk failed", path)

    disk.on_write = fail
    yield met
    disk.on_write = None
    assert met, "the failure was never met"


@contextmanager
def written(disk: MemoryDisk) -> Iterator[list[tuple[str, str]]]:
    """Yields the operations that change the disk."""
    seen: list[tuple[str, str]] = []
    disk.on_write = lambda kind, path: seen.append((kind, path))
    yield seen
    disk.on_write = None


def offline(logs: LogManager) -> list[bool]:
    return [directory.offline for directory in logs.dirs]


def is_open(segment: Segment) -> bool:
    return segment.file._inode is not None  # type: ignore[attr-defined]


# Creating a copy.


def test_move_to_a_directory_that_has_a_log_of_this_name_is_refused() -> None:
    disk = MemoryDisk()
    logs, log = filled(disk)
    disk.mkdir(f"{B}/t-0")
    with pytest.raises(KafkaError, match="exists already"):
        logs.futures.create(log, logs.dirs[1])
    assert (names(logs, B), log.is_moving) == (["t-0"], False)


def test_copy_does_not_inherit_checkpoint_lines_of_a_log_that_was_there_before() -> None:
    disk = MemoryDisk()
    logs, log = filled(disk)
    log.flush_now()
    log.advance_log_start_offset(3)
    logs.write_checkpoints()
    move(logs, log)
    logs.write_checkpoints([logs.dirs[1]])
    assert logs.dirs[0].remembers(("t", 0)) is False, "the retired log has no lines"
    logs.dirs[0].write_checkpoints({"recovery-point-offset-checkpoint": {("t", 0): 77}})
    run(logs.removal.run(all_of_them=True))
    logs.futures.create(log, logs.dirs[0])
    assert parse_offsets(disk.read_bytes(f"{A}/recovery-point-offset-checkpoint")).get(("t", 0), 0) != 77


@pytest.mark.parametrize(("code", "lost"), [(errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EIO, True)])
@pytest.mark.parametrize("kind", ["mkdir", "create", "append"])
def test_full_target_directory_stays_online_and_a_broken_one_goes_offline_when_a_copy_is_created(
    kind: str, code: int, lost: bool
) -> None:
    disk = MemoryDisk()
    logs, log = filled(disk)
    with failing(disk, kind, B, code), pytest.raises(KafkaError) as refusal:
        logs.futures.create(log, logs.dirs[1])
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert offline(logs) == [False, lost]
    assert not log.is_moving
    produce(log, 1, epoch=4)


def test_damage_of_a_copy_is_not_reported_as_damage_of_its_partition() -> None:
    disk = MemoryDisk()
    reported: list[object] = []
    logs, log = filled(disk)
    logs._on_corruption = lambda key, reason: reported.append(key)
    future = logs.futures.create(log, logs.dirs[1])
    run(future.copy(CHUNK))
    file = future.log.segments[0].path(".log")
    disk.inode(file).data[20] ^= 1
    future.log.health.report_corruption("bad checksum")
    assert (logs.corruptions, reported) == ({}, [])
    log.health.report_corruption("bad checksum")
    assert (list(logs.corruptions), reported) == ([("t", 0)], [("t", 0)])


# Cancelling.


def test_cancelled_move_takes_the_current_log_offline_if_its_leaving_mark_cannot_be_removed() -> None:
    disk = MemoryDisk()
    logs, log = filled(disk)
    future = prepared(logs, log)
    with failing(disk, "remove", moved_mark.LEAVING_MARK_FILE):
        logs.futures.drop(future)
    assert offline(logs) == [True, False]
    assert log.offline


def test_target_directory_goes_offline_if_the_copy_of_a_cancelled_move_cannot_be_renamed() -> None:
    disk = MemoryDisk()
    logs, log = filled(disk)
    future = prepared(logs, log)
    with failing(disk, "rename", B):
        logs.futures.drop(future)
    assert offline(logs) == [False, True]
    run(logs.removal.run(all_of_them=True))
    assert len(names(logs, B)) == 1, "the next start finds the copy"


def test_cancelled_move_changes_no_file_of_an_offline_directory() -> None:
    for slot in (0, 1):
        disk = MemoryDisk()
        logs, log = filled(disk)
        future = prepared(logs, log)
        logs.take_offline(logs.dirs[slot], OSError(errno.EIO, "input/output error"))
        with written(disk) as seen:
            logs.futures.drop(future)
        assert not [path for _, path in seen if path.startswith((A, B)[slot])]
        assert [path for _, path in seen if path.startswith((A, B)[1 - slot])]


# Preparing.


def test_copy_is_not_prepared_if_the_checkpoints_of_its_directory_cannot_be_written() -> None:
    disk = MemoryDisk()
    logs, log = filled(disk)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    with failing(disk, "create", f"{B}/recovery-point", errno.EMFILE), pytest.raises(KafkaError, match="checkpoints"):
        run(logs.futures.prepare(future))
    assert not future.is_prepared
    assert logs.futures.swap(future, TAIL) is None
    run(logs.futures.prepare(future))
    assert logs.futures.swap(future, TAIL) is not None


def test_copy_and_log_name_only_directories_that_may_still_hold_an_old_log() -> None:
    disk = MemoryDisk()
    logs, log = filled(disk, count=3)
    unknown, first = SOME_ID, logs.dirs[0].directory_id
    moved_mark.write(disk, log.path, [unknown, logs.dirs[2].directory_id])
    future = prepared(logs, log)
    assert moved_mark.read(disk, log.path) == {unknown}, "an id of no online directory stays"
    assert moved_mark.read(disk, future.log.path) == {unknown, first}
    assert moved_mark.read_leaving(disk, log.path) == {logs.dirs[1].directory_id}


# The swap and the old log.


def test_swapped_log_uses_only_files_and_figures_of_its_new_directory() -> None:
    disk = MemoryDisk()
    logs, log = filled(disk)
    assert logs._table.counts == {A: 1, B: 0}
    future = prepared(logs, log)
    logs.flush_queue.clear()
    logs.flush_requested.clear()
    assert logs.futures.swap(future, TAIL) is not None
    assert logs._table.counts == {A: 0, B: 1}
    assert list(logs.flush_queue) == [log]
    assert logs.flush_requested.is_set()
    assert len(log.segments) > 2
    for segment in log.segments:
        segment.close()
        assert segment.path(".log").startswith(f"{B}/t-0/")
        assert segment.file.path.startswith(f"{B}/t-0/")
    assert offsets(log) == list(range(log.log_end_offset))
    assert log.snapshots.path(0).startswith(f"{B}/t-0/")
    assert f"{B} failed" in str(log.health.failed(OSError(errno.EMFILE, "too many open files")).message)
    with failing(disk, "append", "t-0"), pytest.raises(KafkaError):
        produce(log, 1, epoch=4)
    assert offline(logs) == [False, True]


@pytest.mark.parametrize(
    ("kind", "text"),
    [("sync_dir", B), ("create", f"{B}/recovery-point"), ("rename", f"{A}/t-0")],
    ids=["sync of the new name", "checkpoints of the target", "rename of the old log"],
)
def test_old_log_keeps_its_name_until_a_lack_of_descriptors_ends(kind: str, text: str) -> None:
    disk = MemoryDisk()
    logs, log = filled(disk)
    retired = run(swapped(logs, logs.futures.create(log, logs.dirs[1])))
    produce(log, 1, epoch=4)
    log.flush_now()
    with failing(disk, kind, text, errno.EMFILE):
        run(logs.futures.retire(retired))
        assert names(logs, A) == ["t-0"]
        run(logs.futures.retire_postponed())
        assert names(logs, A) == ["t-0"]
    assert offline(logs) == [False, False]
    run(logs.futures.retire_postponed())
    [old] = names(logs, A)
    assert old.endswith(DELETE_SUFFIX)
    assert not moved_mark.read(disk, log.path)
    with written(disk) as seen:
        run(logs.futures.retire_postponed())
    assert not seen


@pytest.mark.parametrize(
    ("kind", "text", "lost"),
    [
        ("sync_dir", B, [False, True]),
        ("create", f"{B}/recovery-point", [False, True]),
        ("rename", f"{A}/t-0", [True, False]),
        ("sync_dir", A, [True, False]),
        ("remove", f"{B}/t-0/{moved_mark.MOVED_MARK_FILE}", [False, True]),
    ],
    ids=["sync of the new name", "checkpoints", "rename of the old log", "sync of the rename", "moved mark"],
)
def test_directory_that_fails_after_the_swap_goes_offline_and_the_other_one_stays_online(
    kind: str, text: str, lost: list[bool]
) -> None:
    disk = MemoryDisk()
    logs, log = filled(disk)
    retired = run(swapped(logs, logs.futures.create(log, logs.dirs[1])))
    produce(log, 1, epoch=4)
    log.flush_now()
    expected = read_all(log)
    with failing(disk, kind, text):
        run(logs.futures.retire(retired))
    assert offline(logs) == lost
    assert (log.log_dir, log.offline) == (B, lost[1])
    run(logs.futures.retire_postponed())
    logs.abandon()
    found = directories(disk).get("t", 0)
    assert found is not None
    assert (found.log_dir, read_all(found)) == (B, expected)


def test_two_old_logs_that_could_not_be_renamed_are_both_renamed_later() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    moved = [logs.create(topic, TOPIC_ID, 0, SMALL, directory_id=logs.dirs[0].directory_id) for topic in ("t", "u")]
    for log in moved:
        produce(log, 3)
        retired = run(swapped(logs, logs.futures.create(log, logs.dirs[1])))
        with failing(disk, "rename", A, errno.EMFILE):
            run(logs.futures.retire(retired))
    assert names(logs, A) == ["t-0", "u-0"]
    run(logs.futures.retire_postponed())
    assert [name.rpartition("-")[2] for name in names(logs, A)] == ["delete", "delete"]


def test_rename_of_the_old_log_is_on_disk_before_the_moved_mark_is_removed() -> None:
    disk = MemoryDisk()
    logs, log = filled(disk)
    retired = run(swapped(logs, logs.futures.create(log, logs.dirs[1])))
    with written(disk) as seen:
        run(logs.futures.retire(retired))
    renamed = seen.index(("rename", f"{A}/t-0"))
    assert ("sync_dir", B) in seen[:renamed]
    assert seen[renamed + 1] == ("sync_dir", A)
    assert ("remove", f"{B}/t-0/{moved_mark.MOVED_MARK_FILE}") in seen[renamed:]


@pytest.mark.parametrize("suffix", [STRAY_SUFFIX, DELETE_SUFFIX])
def test_old_logs_are_renamed_with_the_log_that_replaced_them(suffix: str) -> None:
    disk = MemoryDisk()
    logs, log = filled(disk, count=3)
    old: list[Segment] = []
    for slot in (1, 2):
        old += log.segments
        run(swapped(logs, logs.futures.create(log, logs.dirs[slot])))
    assert [names(logs, each) for each in (A, B, C)] == [["t-0"]] * 3
    change: Callable[[str, int], None] = logs.delete if suffix == DELETE_SUFFIX else logs.set_stray
    change("t", 0)
    for directory in (A, B, C):
        [name] = names(logs, directory)
        assert name.endswith(suffix)
    if suffix == STRAY_SUFFIX:
        assert not [segment for segment in old if is_open(segment)]
    assert all(suffix in segment.path(".log") for segment in old)
    run(logs.removal.run(all_of_them=True))
    assert not [segment for segment in old if is_open(segment)]
    assert [len(names(logs, each)) for each in (A, B, C)] == [int(suffix == STRAY_SUFFIX)] * 3


def test_old_log_in_an_offline_directory_is_not_touched_when_its_log_is_deleted() -> None:
    disk = MemoryDisk()
    logs, log = filled(disk)
    run(swapped(logs, logs.futures.create(log, logs.dirs[1])))
    logs.take_offline(logs.dirs[0], OSError(errno.EIO, "input/output error"))
    with written(disk) as seen:
        logs.delete("t", 0)
    assert not [path for _, path in seen if path.startswith(A)]
    assert names(logs, A) == ["t-0"]
