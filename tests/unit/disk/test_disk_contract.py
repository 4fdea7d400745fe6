"""Tests the contract of a disk on the real disk (with and without Linux-only calls) and on the disk in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.disk import real
from penstock.disk.api import DirectoryLockedError, Disk, DiskError, make_lasting
from penstock.disk.memory import MemoryDisk
from penstock.disk.real import RealDisk

FLAGS = ("HAVE_NOWAIT_READ", "HAVE_WRITEV", "HAVE_PREAD", "HAVE_FDATASYNC", "HAVE_FSYNC_DIR")


@pytest.fixture(params=["linux", "portable", "memory"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    if request.param == "memory":
        yield MemoryDisk()
        return
    if request.param == "portable":
        for flag in FLAGS:
            monkeypatch.setattr(real, flag, False)
    disk = RealDisk()
    yield disk
    disk.close()


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    path = f"{tmp_path}/data"
    disk.mkdir(path)
    return path


def test_appended_buffers_are_read_back_at_their_offsets(disk: Disk, root: str) -> None:
    file = disk.create(f"{root}/a")
    file.append(b"hello ", bytearray(b"wor"), memoryview(b"ld"))
    file.append(b"!")
    assert file.size == 12
    assert file.pread(5, 6) == b"world"
    assert file.pread(100, 6) == b"world!"
    assert file.pread(5, 12) == b""


def test_more_buffers_than_fit_one_gathered_write_are_appended_in_order(disk: Disk, root: str) -> None:
    file = disk.create(f"{root}/a")
    file.append(*[bytes([number % 256]) for number in range(3000)])
    assert file.pread(3000, 0) == bytes(number % 256 for number in range(3000))


def test_cached_read_returns_none_or_the_same_bytes_as_a_normal_read(disk: Disk, root: str) -> None:
    file = disk.create(f"{root}/a")
    file.append(b"x" * 10_000)
    cached = file.pread_cached(4000, 1000)
    assert cached is None or bytes(cached) == b"x" * 4000
    at_end = file.pread_cached(4000, 9000)
    assert at_end is None or bytes(at_end) == b"x" * 1000


def test_file_can_be_read_and_synced_asynchronously(disk: Disk, root: str) -> None:
    file = disk.create(f"{root}/a")
    file.append(b"abcdef")

    async def work() -> bytes:
        await file.sync()
        return await file.read(3, 2)

    assert asyncio.run(work()) == b"cde"


def test_append_after_a_truncation_writes_at_the_new_end_of_the_file(disk: Disk, root: str) -> None:
    file = disk.create(f"{root}/a")
    file.append(b"0123456789")
    file.truncate(4)
    file.append(b"AB")
    file.pwrite(b"zz", 1)
    assert file.size == 6
    assert file.pread(10, 0) == b"0zz3AB"


def test_opened_file_reports_the_size_of_its_existing_content(disk: Disk, root: str) -> None:
    disk.create(f"{root}/a").append(b"12345")
    again = disk.open(f"{root}/a")
    assert again.size == 5
    again.append(b"6")
    assert disk.read_bytes(f"{root}/a") == b"123456"
    assert disk.size(f"{root}/a") == 6


def test_reading_a_missing_file_raises_a_disk_error_and_creates_no_file(disk: Disk, root: str) -> None:
    with pytest.raises(DiskError):
        disk.read_bytes(f"{root}/missing")
    with pytest.raises(DiskError):
        disk.size(f"{root}/missing")
    assert disk.open(f"{root}/missing").size == 0
    assert not disk.exists(f"{root}/missing")


def test_reading_a_file_larger_than_the_given_limit_raises_a_disk_error(disk: Disk, root: str) -> None:
    disk.create(f"{root}/a").append(bytes(100))
    with pytest.raises(DiskError):
        disk.read_bytes(f"{root}/a", limit=99)


def test_atomic_write_replaces_the_file_and_leaves_no_temporary_file(disk: Disk, root: str) -> None:
    disk.write_atomic(f"{root}/a", b"old")
    disk.write_atomic(f"{root}/a", b"new", sync=False)
    assert disk.read_bytes(f"{root}/a") == b"new"
    assert disk.listdir(root) == ["a"]


def test_files_and_directories_can_be_renamed_and_removed(disk: Disk, root: str) -> None:
    disk.mkdir(f"{root}/d/e")
    disk.create(f"{root}/d/e/f").append(b"1")
    disk.rename(f"{root}/d", f"{root}/g")
    assert disk.is_dir(f"{root}/g/e")
    assert not disk.exists(f"{root}/d")
    assert disk.read_bytes(f"{root}/g/e/f") == b"1"
    disk.rename(f"{root}/g/e/f", f"{root}/g/h")
    assert sorted(disk.listdir(f"{root}/g")) == ["e", "h"]
    disk.remove(f"{root}/g/h")
    disk.remove(f"{root}/g/h")
    disk.remove_tree(f"{root}/g")
    disk.remove_tree(f"{root}/g")
    assert disk.listdir(root) == []


def test_file_and_directory_can_be_synced_by_their_paths(disk: Disk, root: str) -> None:
    disk.create(f"{root}/a").append(b"1")
    disk.sync_file(f"{root}/a")
    disk.sync_dir(root)
    assert disk.mtime_ms(f"{root}/a") >= 0
    total, usable = disk.free_bytes(root)
    assert total >= usable


def test_directory_can_be_locked_by_one_holder_at_a_time(disk: Disk, root: str) -> None:
    lock = disk.lock(root)
    with pytest.raises(DirectoryLockedError, match="already uses"):
        disk.lock(root)
    lock.release()
    lock.release()
    disk.lock(root).release()


def test_making_a_directory_also_makes_and_syncs_its_parents(
    disk: Disk, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(disk, "sync_dir", synced.append)
    make_lasting(disk, f"{root}/a/b")
    assert disk.is_dir(f"{root}/a/b")
    assert synced == [root, f"{root}/a"]
    make_lasting(disk, f"{root}/a/b")
    assert len(synced) == 2
