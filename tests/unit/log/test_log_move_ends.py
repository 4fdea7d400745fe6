"""Tests the end of a move, when the old log is removed: recreated topics, and a lack of descriptors."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from log_harness import TOPIC_ID, offsets, produce, run
from move_harness import SMALL, A, B, C, copied, directories, fill, log_in_a, move, names, swapped

from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.log.directory import DELETE_SUFFIX, STRAY_SUFFIX
from penstock.log.log import Log
from penstock.log.maintenance import Maintenance
from penstock.log.manager import LogManager
from penstock.log.synced_mark import Mark
from penstock.protocol.errors import KafkaError

OTHER_ID = bytes(range(1, 17))


def made_again_in_a(logs: LogManager) -> Log:
    return logs.create("t", OTHER_ID, 0, SMALL, directory_id=logs.dirs[0].directory_id)


def short_of_descriptors(disk: MemoryDisk, short: str) -> Callable[[], None]:
    """Makes each sync of the directory fail for lack of descriptors, until the returned function is called."""
    sync = disk.sync_dir

    def fail(path: str) -> None:
        if path == short:
            raise DiskError(errno.EMFILE, "too many open files", path)
        sync(path)

    disk.sync_dir = fail  # type: ignore[method-assign]

    def enough() -> None:
        disk.sync_dir = sync  # type: ignore[method-assign]

    return enough


def reopened(logs: LogManager, count: int = 2) -> LogManager:
    """Opens the logs again after a crash of the process."""
    logs.abandon()
    return directories(logs.disk, count=count)  # type: ignore[arg-type]


def moved_without_removal(disk: MemoryDisk, count: int = 2) -> tuple[LogManager, Log, Callable[[], None]]:
    """Moves a log from A to B. The removal of the old log waits for free descriptors."""
    logs = directories(disk, count=count)
    log = log_in_a(logs)
    fill(log)
    retired = run(swapped(logs, logs.futures.create(log, logs.dirs[1])))
    enough = short_of_descriptors(disk, B)
    run(logs.futures.retire(retired))
    assert not logs.dirs[1].offline
    assert names(logs, A) == ["t-0"]
    return logs, log, enough


@pytest.mark.parametrize("put_aside", [LogManager.delete, LogManager.set_stray])
def test_log_that_is_recreated_before_the_old_log_of_a_move_is_removed_keeps_its_records(
    put_aside: Callable[[LogManager, str, int], None],
) -> None:
    logs = directories()
    log = log_in_a(logs)
    fill(log)
    retired = run(swapped(logs, logs.futures.create(log, logs.dirs[1])))
    put_aside(logs, "t", 0)
    new = made_again_in_a(logs)
    produce(new, 3)
    run(logs.futures.retire(retired))
    assert "t-0" in names(logs, A)
    found = reopened(logs).get("t", 0)
    assert found is not None
    assert (found.topic_id, offsets(found)) == (OTHER_ID, [0, 1, 2])


def test_new_log_does_not_use_files_of_an_old_directory_with_its_name() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    fill(log_in_a(logs))
    rename = disk.rename

    def fail(old: str, new: str) -> None:
        raise DiskError(errno.ENOMEM, "out of memory", old)

    disk.rename = fail  # type: ignore[method-assign]
    logs.delete("t", 0)
    disk.rename = rename  # type: ignore[method-assign]
    assert names(logs, A) == ["t-0"]
    produce(made_again_in_a(logs), 3)
    [_, aside] = names(logs, A)
    assert aside.endswith(STRAY_SUFFIX), "no code decided that its records may go"
    found = reopened(logs).get("t", 0)
    assert found is not None
    assert offsets(found) == [0, 1, 2]


def test_directory_without_records_is_removed_when_a_log_of_its_name_is_created() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    disk.mkdir(f"{A}/t-0")
    disk.write_new(f"{A}/t-0/00000000000000000000.log", b"")
    made_again_in_a(logs)
    run(logs.removal.run())
    assert names(logs, A) == ["t-0"]


def test_old_log_of_a_move_is_removed_after_a_lack_of_descriptors_ends() -> None:
    logs, log, enough = moved_without_removal(MemoryDisk())
    with pytest.raises(KafkaError, match="not removed yet"):
        logs.futures.create(log, logs.dirs[0])
    run(logs.futures.retire_postponed())
    assert names(logs, A) == ["t-0"], "still short of descriptors"
    enough()
    run(Maintenance(logs).removal())
    [old] = names(logs, A)
    assert old.endswith(DELETE_SUFFIX)
    move(logs, log, slot=0)
    assert log.log_dir == A


def test_recreated_log_has_no_records_of_the_deleted_log_after_a_lack_of_descriptors() -> None:
    logs, _, enough = moved_without_removal(MemoryDisk())
    logs.delete("t", 0)
    produce(made_again_in_a(logs), 2)
    enough()
    run(logs.futures.retire_postponed())
    found = reopened(logs).get("t", 0)
    assert found is not None
    assert (found.log_dir, offsets(found)) == (A, [0, 1])


def test_log_whose_old_copies_could_not_be_removed_is_found_in_its_last_directory_after_a_crash() -> None:
    logs, log, enough = moved_without_removal(MemoryDisk(), count=3)
    enough()
    end = log.log_end_offset
    future = logs.futures.create(log, logs.dirs[2])
    run(copied(future))
    run(swapped(logs, future))
    assert [names(logs, each) for each in (A, B, C)] == [["t-0"]] * 3
    found = reopened(logs, count=3).get("t", 0)
    assert found is not None
    assert (found.log_dir, found.topic_id, found.log_end_offset) == (C, TOPIC_ID, end)


def test_directory_goes_offline_if_the_old_log_of_a_finished_move_cannot_be_renamed() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    retired = run(swapped(logs, logs.futures.create(log, logs.dirs[1])))

    def fail(operation: str, path: str) -> None:
        if operation == "rename" and path.startswith(f"{A}/"):
            raise DiskError(errno.EIO, "input/output error", path)

    disk.on_write = fail
    run(logs.futures.retire(retired))
    assert [directory.offline for directory in logs.dirs] == [True, False]
    assert log.log_dir == B
    produce(log, 1, epoch=4)


@pytest.mark.parametrize(
    ("ours", "theirs", "prepared"),
    [
        (Mark.ABSENT, Mark.ABSENT, True),
        (Mark.PRESENT, Mark.PRESENT, True),
        (Mark.PRESENT, Mark.ABSENT, False),
        (Mark.ABSENT, Mark.PRESENT, False),
        (Mark.CHANGING, Mark.CHANGING, False),
    ],
)
def test_copy_replaces_its_log_only_if_both_or_neither_have_the_synced_mark_file(
    ours: Mark, theirs: Mark, prepared: bool
) -> None:
    logs = directories()
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    run(logs.futures.prepare(future))
    future.log.durability.mark, log.durability.mark = ours, theirs
    assert future.is_prepared is prepared
