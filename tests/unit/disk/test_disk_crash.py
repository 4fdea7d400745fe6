"""Tests the crash model of the disk in memory: synced bytes stay, and unsynced bytes may be lost as on real disks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk


def crashed(disk: MemoryDisk) -> list[MemoryDisk]:
    return [disk.crash(Random(seed)) for seed in range(200)]


def crashable() -> MemoryDisk:
    disk = MemoryDisk(crashable=True)
    disk.mkdir("/d")
    return disk


def test_crash_keeps_synced_bytes_and_may_cut_unsynced_bytes_at_any_point() -> None:
    disk = crashable()
    file = disk.create("/d/a")
    file.append(b"kept")
    file.sync_now()
    disk.sync_dir("/d")
    file.append(b"maybe")
    contents = {each.read_bytes("/d/a") for each in crashed(disk)}
    assert all(content.startswith(b"kept") for content in contents)
    assert {b"kept", b"keptm", b"keptmaybe"} <= contents
    assert any(content.endswith(b"\0") for content in contents), "a size that grew before its data"


def test_new_file_may_be_missing_after_a_crash_if_its_directory_was_not_synced() -> None:
    disk = crashable()
    disk.create("/d/a").sync_now()
    assert {each.exists("/d/a") for each in crashed(disk)} == {True, False}


def test_crash_after_an_unsynced_rename_leaves_only_the_old_or_only_the_new_name() -> None:
    disk = crashable()
    disk.write_atomic("/d/a", b"old")
    disk.write_atomic("/d/b", b"new")
    disk.rename("/d/b", "/d/a")
    seen = {(each.read_bytes("/d/a"), each.exists("/d/b")) for each in crashed(disk)}
    assert seen == {(b"old", True), (b"new", False)}


def test_crash_keeps_a_synced_atomic_write_and_may_empty_an_unsynced_one() -> None:
    disk = crashable()
    disk.write_atomic("/d/a", b"synced")
    assert {each.read_bytes("/d/a") for each in crashed(disk)} == {b"synced"}
    disk.write_atomic("/d/a", b"unsynced", sync=False)
    contents = {each.read_bytes("/d/a") for each in crashed(disk)}
    assert {b"synced", b"unsynced", b""} <= contents


def test_crash_may_undo_an_unsynced_truncation() -> None:
    disk = crashable()
    file = disk.create("/d/a")
    file.append(b"123456")
    file.sync_now()
    disk.sync_dir("/d")
    file.truncate(2)
    assert {each.read_bytes("/d/a") for each in crashed(disk)} == {b"123456", b"12"}


def test_every_change_of_the_simulated_disk_fails_if_the_write_hook_raises_an_error() -> None:
    disk = crashable()
    file = disk.create("/d/a")

    def full(operation: str, path: str) -> None:
        raise DiskError(28, "no space", path)

    disk.on_write = full
    changes: tuple[Callable[[], None], ...] = (
        lambda: file.append(b"1"),
        lambda: file.truncate(0),
        lambda: disk.write_atomic("/d/b", b""),
        lambda: disk.rename("/d/a", "/d/b"),
        lambda: disk.remove("/d/a"),
        lambda: disk.sync_dir("/d"),
        file.sync_now,
    )
    for change in changes:
        with pytest.raises(DiskError):
            change()
    assert file.size == 0
