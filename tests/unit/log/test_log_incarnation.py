"""Tests whether a start can tell that the last incarnation lost unsynced writes.

Writes are lost if the machine stopped, but not if only the process stopped.
"""

import errno
from random import Random

import pytest
from log_harness import manager, new_log

from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.log.checkpoints import Incarnation
from penstock.log.directory import LogDir


def opened(disk: MemoryDisk) -> LogDir:
    directory = LogDir(disk, "/data")
    disk.mkdir("/data")
    directory.take_clean_mark()
    return directory


def test_start_reads_the_broker_epoch_of_an_incarnation_that_was_killed() -> None:
    disk = MemoryDisk(crashable=True)
    opened(disk).note_incarnation(Incarnation(7))
    again = opened(disk)
    assert (again.clean, again.last_incarnation.broker_epoch) == (False, 7)


def test_start_after_a_power_loss_ignores_the_recorded_incarnation() -> None:
    disk = MemoryDisk(crashable=True)
    opened(disk).note_incarnation(Incarnation(7))
    disk.sync_volume("/data")
    for seed in range(5):
        assert opened(disk.crash(Random(seed))).last_incarnation.broker_epoch == -1


def test_start_reads_the_incarnation_id_of_a_process_that_was_killed_while_it_registered() -> None:
    disk = MemoryDisk(crashable=True)
    asking = Incarnation(7, bytes(range(16)))
    opened(disk).note_incarnation(asking)
    assert opened(disk).last_incarnation == asking
    disk.sync_volume("/data")
    assert opened(disk.crash(Random(1))).last_incarnation == Incarnation()


def test_start_after_a_disk_failure_finds_no_recorded_incarnation() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    directory.note_incarnation(Incarnation(7))
    directory.forget_incarnation()
    assert opened(disk).last_incarnation.broker_epoch == -1


def test_clean_shutdown_marker_overrides_the_recorded_incarnation() -> None:
    disk = MemoryDisk()
    directory = opened(disk)
    directory.note_incarnation(Incarnation(7))
    directory.leave_clean_mark(9)
    again = opened(disk)
    assert (again.clean, again.last_incarnation.broker_epoch) == (True, 9)


def test_a_damaged_incarnation_file_is_ignored() -> None:
    disk = MemoryDisk()
    opened(disk).note_incarnation(Incarnation(7))
    disk.write_atomic("/data/.penstock_life", b"{]")
    assert opened(disk).last_incarnation.broker_epoch == -1


@pytest.mark.parametrize("dirs", [("/logs",), ("/logs", "/more")])
def test_no_directory_records_an_incarnation_after_a_disk_error(dirs: tuple[str, ...]) -> None:
    disk = MemoryDisk()
    logs = manager(disk, dirs=dirs)
    log = new_log(logs=logs)
    logs.note_incarnation(7)
    log.health.failed(OSError(errno.EIO, "a page could not be written"))
    logs.note_incarnation(7)
    logs.abandon()
    again = manager(disk, dirs=dirs)
    assert {directory.last_incarnation.broker_epoch for directory in again.dirs} == {-1}


@pytest.mark.parametrize("broken", ["/logs", "/more"])
def test_directory_goes_offline_if_the_incarnation_cannot_be_written_to_it(broken: str) -> None:
    disk = MemoryDisk()
    logs = manager(disk, dirs=("/logs", "/more"))
    logs.note_incarnation(7)

    def fail(_: str, path: str) -> None:
        if path.startswith(broken):
            raise DiskError(errno.EIO, "input/output error", path)

    disk.on_write = fail
    logs.note_incarnation(8)
    assert {directory.path for directory in logs.dirs if directory.offline} == {broken}
    assert new_log(logs=logs).log_dir != broken
    logs.abandon()
    disk.on_write = None
    again = manager(disk, dirs=("/logs", "/more"))
    epochs = {directory.path: directory.last_incarnation.broker_epoch for directory in again.dirs}
    assert len({*epochs.values()}) == 2
    assert 8 not in epochs.values()


def test_directory_stays_online_if_the_incarnation_is_not_written_for_lack_of_descriptors() -> None:
    disk = MemoryDisk()
    logs = manager(disk)

    def fail(_: str, path: str) -> None:
        raise DiskError(errno.EMFILE, "too many open files", path)

    disk.on_write = fail
    logs.note_incarnation(7)
    assert not logs.dirs[0].offline
