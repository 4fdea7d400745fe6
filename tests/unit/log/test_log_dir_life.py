"""A start tells whether the last life lost what it had not synced: its process died, or its machine did."""

import errno
from random import Random

import pytest
from log_harness import manager, new_log

from penstock.disk.memory import MemoryDisk
from penstock.log.checkpoints import Incarnation
from penstock.log.directory import LogDir


def opened(disk: MemoryDisk) -> LogDir:
    directory = LogDir(disk, "/data")
    disk.mkdir("/data")
    directory.take_clean_mark()
    return directory


def test_a_process_that_was_killed_has_left_everything_it_wrote() -> None:
    disk = MemoryDisk(crashable=True)
    opened(disk).note_incarnation(Incarnation(7))
    again = opened(disk)
    assert (again.clean, again.last_incarnation.broker_epoch) == (False, 7)


def test_a_machine_that_was_off_may_have_lost_something() -> None:
    disk = MemoryDisk(crashable=True)
    opened(disk).note_incarnation(Incarnation(7))
    disk.sync_volume("/data")
    for seed in range(5):
        assert opened(disk.crash(Random(seed))).last_incarnation.broker_epoch == -1


def test_who_asked_and_was_killed_before_the_answer_is_known_to_the_next_one() -> None:
    disk = MemoryDisk(crashable=True)
    asking = Incarnation(7, bytes(range(16)))
    opened(disk).note_incarnation(asking)
    assert opened(disk).last_incarnation == asking
    disk.sync_volume("/data")
    assert opened(disk.crash(Random(1))).last_incarnation == Incarnation()


def test_a_disk_that_failed_is_not_trusted() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    directory.note_incarnation(Incarnation(7))
    directory.forget_incarnation()
    assert opened(disk).last_incarnation.broker_epoch == -1


def test_a_clean_stop_says_more_than_the_life_before_it() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    directory.note_incarnation(Incarnation(7))
    directory.leave_clean_mark(9)
    again = opened(disk)
    assert (again.clean, again.last_incarnation.broker_epoch) == (True, 9)


def test_what_is_not_understood_is_not_believed() -> None:
    disk = MemoryDisk()
    opened(disk).note_incarnation(Incarnation(7))
    disk.write_atomic("/data/.penstock_life", b"{]")
    assert opened(disk).last_incarnation.broker_epoch == -1


@pytest.mark.parametrize("dirs", [("/logs",), ("/logs", "/more")])
def test_after_a_disk_error_the_same_boot_vouches_for_nothing(dirs: tuple[str, ...]) -> None:
    disk = MemoryDisk()
    logs = manager(disk, dirs=dirs)
    log = new_log(logs=logs)
    logs.dirs.note_incarnation(7)
    log.failed(OSError(errno.EIO, "a page could not be written"))
    logs.dirs.note_incarnation(7)
    logs.abandon()
    again = manager(disk, dirs=dirs)
    assert {directory.last_incarnation.broker_epoch for directory in again.dirs} == {-1}
