"""Tests a start after a crash during a move, without some disks: a log that may be outdated is not served."""

from __future__ import annotations

import errno
from random import Random

import pytest
from log_harness import TOPIC_ID, offsets, produce, read_all, run
from move_harness import SMALL, TAIL, A, B, C, copied, directories, ended, fill, log_in_a, move, names, swapped
from test_log_move_crashes import crashes_of_a_move

from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.disk.volume import Severity
from penstock.log import moved_mark
from penstock.log.directory import DELETE_SUFFIX, LogDir
from penstock.log.manager import DirectoryError, LogManager
from penstock.protocol.errors import ErrorCode, KafkaError
from tools.examples import examples

OTHER_ID = bytes(range(1, 17))


class DiskWithoutDirectories(MemoryDisk):
    """Simulates a disk on which some directories can't be read at the start."""

    def __init__(self, volume: MemoryDisk, missing: str) -> None:
        super().__init__(volume=volume.volume)
        self.missing = missing

    def lock(self, path: str) -> object:  # type: ignore[override]
        if path == self.missing:
            raise DiskError(errno.EIO, "input/output error", path)
        return super().lock(path)


def without(disk: MemoryDisk, missing: str, count: int = 2) -> LogManager:
    return directories(DiskWithoutDirectories(disk, missing), count=count)


def swapped_and_written_to(disk: MemoryDisk) -> LogManager:
    """Crashes at the end of a move from A to B: B is in use and has new records, but A still has the old log."""
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    run(swapped(logs, logs.futures.create(log, logs.dirs[1])))
    produce(log, 5, epoch=4)
    logs.abandon()
    return logs


# The target is missing.


def test_old_log_of_a_move_is_not_served_while_the_target_directory_is_offline() -> None:
    disk = MemoryDisk()
    swapped_and_written_to(disk)
    logs = without(disk, B)
    assert logs.get("t", 0) is None
    assert "may have been moved to /b, which is offline" in logs.corruptions["t", 0]
    with pytest.raises(KafkaError, match="may have been moved to /b") as caught:
        logs.create("t", TOPIC_ID, 0, SMALL)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    logs.abandon()
    found = directories(disk).get("t", 0)
    assert found is not None
    assert found.log_dir == B
    assert offsets(found) == list(range(found.log_end_offset))


def test_old_log_of_a_move_is_served_once_the_target_disk_is_replaced_by_an_empty_disk() -> None:
    disk = MemoryDisk()
    swapped_and_written_to(disk)
    disk.remove_tree(B)
    logs = directories(disk)
    found = logs.get("t", 0)
    assert found is not None
    assert found.log_dir == A
    assert not moved_mark.read_leaving(disk, found.path)
    produce(found, 1, epoch=5)
    move(logs, found)
    assert found.log_dir == B


def test_power_loss_does_not_restore_the_file_that_marks_a_log_as_leaving_its_directory() -> None:
    disk = MemoryDisk(crashable=True)
    disk.mkdir(A)
    disk.mkdir(f"{A}/t-0")
    moved_mark.write_leaving(disk, f"{A}/t-0", OTHER_ID)
    disk.sync_volume(A)
    assert moved_mark.stays(disk, f"{A}/t-0", [LogDir(disk, A)])
    survivor = disk.volume.copied()
    survivor.lose_power(Random(1), Severity.EVERYTHING)
    assert not moved_mark.read_leaving(MemoryDisk(volume=survivor), f"{A}/t-0")


def test_start_fails_if_the_target_disk_of_a_move_comes_back_after_the_old_log_was_served_again() -> None:
    disk = MemoryDisk()
    swapped_and_written_to(disk)
    logs = directories(disk, count=1)
    found = logs.get("t", 0)
    assert found is not None
    produce(found, 1, epoch=5)
    logs.abandon()
    with pytest.raises(DirectoryError, match="move one of them away"):
        directories(disk)
    assert disk.exists(f"{A}/t-0")
    assert disk.exists(f"{B}/t-0")


@pytest.mark.parametrize("power", [None, Severity.EVERYTHING, Severity.SOME])
def test_log_without_its_newest_records_is_never_served_after_a_crash_during_a_move(power: Severity | None) -> None:
    crashes = crashes_of_a_move()
    served = 0
    for number, crash in list(enumerate(crashes))[:: len(crashes) // examples(len(crashes))]:
        volume = crash.volume.copied()
        if power is not None:
            volume.lose_power(Random(number), power)
        found = without(MemoryDisk(volume=volume), B).get("t", 0)
        if found is None:
            continue
        served += 1
        by_offset = {header.base_offset: data for header, data in read_all(found)}
        for header, data in crash.promise.batches:
            if header.next_offset <= crash.promise.flushed or power is None:
                assert by_offset.get(header.base_offset) == data, crash.change
    assert served, "a log whose copy is not complete is served"


# The move ends.


def test_completed_move_leaves_no_files_that_mark_the_log_as_moving() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    move(logs, log)
    assert not [name for name in disk.listdir(log.path) if name.startswith("penstock.")]


def test_log_is_served_without_the_target_directory_after_its_move_was_cancelled() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    run(logs.futures.prepare(future))
    assert moved_mark.read_leaving(disk, log.path) == {logs.dirs[1].directory_id}
    logs.futures.drop(future)
    logs.abandon()
    found = without(disk, B).get("t", 0)
    assert found is not None
    assert found.log_dir == A


def test_cleanup_after_a_replaced_move_keeps_the_file_that_marks_the_next_move() -> None:
    disk = MemoryDisk()
    logs = directories(disk, count=3)
    log = log_in_a(logs)
    fill(log)
    first = logs.futures.create(log, logs.dirs[1])
    run(copied(first))
    run(logs.futures.prepare(first))
    logs.futures.detach(first)
    second = logs.futures.create(log, logs.dirs[2])
    run(copied(second))
    run(logs.futures.prepare(second))
    logs.futures.discard(first)
    assert moved_mark.read_leaving(disk, log.path) == {logs.dirs[2].directory_id}
    assert logs.futures.swap(second, TAIL) is not None
    logs.abandon()
    assert without(disk, C, count=3).get("t", 0) is None


@pytest.mark.parametrize(("code", "offline"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_move_fails_if_the_file_that_marks_it_cannot_be_written_to_the_source_directory(
    code: int, offline: bool
) -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))

    def fail(kind: str, path: str) -> None:
        if moved_mark.LEAVING_MARK_FILE in path:
            raise DiskError(code, "it fails", path)

    disk.on_write = fail
    with pytest.raises(KafkaError) as caught:
        run(logs.futures.prepare(future))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    disk.on_write = None
    assert logs.futures.swap(future, TAIL) is None
    assert [each.offline for each in logs.dirs] == [offline, False]


# The source is missing, and the copy is adopted.


def adopted(disk: MemoryDisk) -> list[int]:
    """Makes the copy in B the current log while A, which has the old log, is offline. Adds records to B.

    Returns the offsets of all records in B.
    """
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    run(copied(logs.futures.create(log, logs.dirs[1])))
    logs.abandon()
    again = without(disk, A)
    [orphan] = again.futures.leftovers.of("t", 0)
    copy = again.adopt(orphan, SMALL)
    assert copy is not None
    produce(copy, 5, epoch=4)
    found = offsets(copy)
    again.abandon()
    return found


@pytest.mark.parametrize("starts", [0, 2])
def test_old_log_is_renamed_as_stray_when_its_disk_comes_back_after_its_copy_replaced_it(starts: int) -> None:
    disk = MemoryDisk()
    expected = adopted(disk)
    for _ in range(starts):
        without(disk, A).abandon()
    logs = directories(disk)
    found = logs.get("t", 0)
    assert found is not None
    assert (found.log_dir, offsets(found)) == (B, expected)
    [old] = names(logs, A)
    assert old.endswith("-stray")
    assert not disk.exists(f"{found.path}/{moved_mark.ADOPTED_MARK_FILE}")


def test_copy_that_replaced_an_offline_log_does_not_replace_a_log_of_another_topic_with_its_name() -> None:
    disk = MemoryDisk()
    adopted(disk)
    disk.remove_tree(f"{A}/t-0")
    other = directories(disk, count=1)
    other.create("t", OTHER_ID, 0, SMALL)
    run(other.close())
    logs = directories(disk)
    assert "t-0" in names(logs, A)
    assert logs.claim("t", 0, TOPIC_ID) is not None


# A log of a deleted topic with the same name is found first.


def made_again_in_b(disk: MemoryDisk) -> LogManager:
    """Leaves three logs of t-0: A has one of a deleted topic, B has one of the recreated topic, and C a copy of B's."""
    logs = directories(disk, count=3)
    fill(log_in_a(logs))
    logs.take_offline(logs.dirs[0], OSError(errno.EIO, "broken"))
    logs.delete("t", 0)
    log = logs.create("t", OTHER_ID, 0, SMALL, directory_id=logs.dirs[1].directory_id)
    produce(log, 7)
    run(copied(logs.futures.create(log, logs.dirs[2])))
    run(logs.close())
    return logs


def test_start_resumes_a_copy_even_if_it_first_finds_a_log_of_a_deleted_topic() -> None:
    disk = MemoryDisk()
    made_again_in_b(disk)
    logs = directories(disk, count=3)
    log = logs.claim("t", 0, OTHER_ID)
    assert log is not None
    assert log.log_dir == B
    future = logs.futures.get("t", 0)
    assert future is not None
    assert future.log.log_end_offset == 7
    run(ended(logs, future))
    assert (log.log_dir, log.log_end_offset) == (C, 7)
    [old] = names(logs, A)
    assert old.endswith("-stray")


def test_start_keeps_a_copy_whose_current_log_is_gone_even_if_it_finds_a_log_of_a_deleted_topic() -> None:
    disk = MemoryDisk()
    made_again_in_b(disk)
    disk.remove_tree(f"{B}/t-0")
    logs = directories(disk, count=3)
    assert logs.claim("t", 0, OTHER_ID) is None
    [orphan] = logs.futures.leftovers.of("t", 0)
    log = logs.adopt(orphan, SMALL)
    assert log is not None
    assert (log.log_dir, log.topic_id, offsets(log)) == (C, OTHER_ID, list(range(7)))


def test_renaming_a_stray_log_also_removes_its_own_copy_and_no_other_copy() -> None:
    disk = MemoryDisk()
    logs = directories(disk, count=3)
    log = log_in_a(logs)
    fill(log)
    run(copied(logs.futures.create(log, logs.dirs[1])))
    run(logs.close())
    again = directories(disk, count=3)
    assert again.claim("t", 0, OTHER_ID) is None, "the topic was created again"
    assert not list(again.futures)
    assert [name for name in names(again, B) if not name.endswith(DELETE_SUFFIX)] == []
