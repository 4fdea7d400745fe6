"""Tests the real disk: bounded descriptors, errors that leave files unchanged, and locks between processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock.disk import real
from penstock.disk.api import DirectoryLockedError, DiskError
from penstock.disk.real import RealDisk


def test_disk_writes_many_files_with_a_limited_number_of_open_descriptors(tmp_path: Path) -> None:
    disk = RealDisk(max_open_files=16)
    files = [disk.create(f"{tmp_path}/{number}") for number in range(100)]
    for turn in range(3):
        for number, file in enumerate(files):
            file.append(b"%d:%d;" % (turn, number))
            assert disk.open_files <= 16
    assert files[42].pread(100, 0) == b"0:42;1:42;2:42;"
    disk.close()


def test_descriptor_is_not_closed_while_a_thread_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(max_open_files=2)
    file = disk.create(f"{tmp_path}/slow")
    file.append(b"slow data")
    others = [disk.create(f"{tmp_path}/{number}") for number in range(8)]
    reading, go_on = threading.Event(), threading.Event()
    pread = os.pread

    def slow_pread(fd: int, size: int, offset: int) -> bytes:
        if size == 9:
            reading.set()
            assert go_on.wait(10)
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", slow_pread)

    async def work() -> bytes:
        task = asyncio.ensure_future(file.read(9, 0))
        await asyncio.to_thread(reading.wait, 10)
        for other in others:
            other.append(b"x" * 9)
        file.close()
        go_on.set()
        return await task

    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert asyncio.run(work()) == b"slow data"
    disk.close()
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before


def test_append_that_fails_half_way_leaves_the_file_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    file = disk.create(f"{tmp_path}/a")
    file.append(b"whole")
    pwritev = os.pwritev

    def short_write(fd: int, buffers: tuple[bytes, ...], offset: int) -> int:
        return pwritev(fd, (buffers[0][:2],), offset)

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", short_write)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskError) as refused:
        file.append(b"broken")
    assert refused.value.errno == errno.ENOSPC
    assert file.size == 5
    assert Path(f"{tmp_path}/a").read_bytes() == b"whole"
    monkeypatch.undo()
    file.append(b"!")
    assert Path(f"{tmp_path}/a").read_bytes() == b"whole!"
    disk.close()


def test_append_writes_the_remaining_bytes_after_a_short_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    file = disk.create(f"{tmp_path}/a")
    pwritev = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: pwritev(fd, (buffers[0][:3],), offset))
    file.append(b"abcdef", b"ghi")
    assert Path(f"{tmp_path}/a").read_bytes() == b"abcdefghi"
    disk.close()


def test_a_cached_read_of_uncached_bytes_returns_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    file = disk.create(f"{tmp_path}/a")
    file.append(b"x" * 100)

    def nothing_cached(fd: int, buffers: object, offset: int, flags: int) -> int:
        raise BlockingIOError(errno.EAGAIN, "would block")

    monkeypatch.setattr(os, "preadv", nothing_cached)
    if real.HAVE_NOWAIT_READ:
        assert file.pread_cached(10, 0) is None
    assert file.pread(10, 0) == b"x" * 10
    disk.close()


def test_directory_that_another_process_has_locked_cannot_be_locked(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from penstock.disk.real import RealDisk; RealDisk().lock(sys.argv[1]);"
            "print('held', flush=True); sys.stdin.read()",
            str(tmp_path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryLockedError, match="stop that process or broker, or use another directory"):
            RealDisk().lock(str(tmp_path))
    finally:
        holder.communicate()
    RealDisk().lock(str(tmp_path)).release()


def test_reading_a_file_that_was_deleted_after_open_fails_and_creates_no_file(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.create(f"{tmp_path}/a").append(b"1")
    handle = disk.open(f"{tmp_path}/a", size=1)
    os.remove(f"{tmp_path}/a")
    with pytest.raises(DiskError):
        handle.pread(1, 0)
    assert not os.path.exists(f"{tmp_path}/a")
    disk.close()


def test_cached_read_without_nowait_support_returns_only_bytes_that_the_same_handle_wrote(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.nowait_reads = False
    file = disk.create(f"{tmp_path}/a")
    file.append(b"fresh")
    assert file.pread_cached(5, 0) == b"fresh"
    older = disk.open(f"{tmp_path}/a")
    assert older.pread_cached(5, 0) is None, "another handle did not write it"
    disk.close()


def test_disk_tries_no_second_nowait_read_on_a_file_system_that_does_not_support_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    disk.nowait_reads = True
    asked = []

    def refuse(fd: int, buffers: object, offset: int, flags: int) -> int:
        asked.append(fd)
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "preadv", refuse, raising=False)
    monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)
    file = disk.create(f"{tmp_path}/a")
    file.append(b"fresh")
    assert file.pread_cached(5, 0) == b"fresh"
    assert file.pread_cached(5, 0) == b"fresh"
    assert len(asked) == 1
    disk.close()


def test_running_out_of_descriptors_closes_idle_files_instead_of_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(max_open_files=100)
    files = [disk.create(f"{tmp_path}/{number}") for number in range(60)]
    for file in files[:50]:
        file.append(b"x")
    opened = os.open

    def scarce(path: str, flags: int, mode: int = 0o777) -> int:
        if disk.open_files >= 50:
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", scarce)
    files[55].append(b"y")
    assert disk.open_files < 50
    disk.close()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of open files to lower")
def test_files_are_written_with_reserved_descriptors_when_connections_hold_all_other_descriptors(
    tmp_path: Path,
) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    disk = RealDisk(max_open_files=16)
    lock = disk.lock(str(tmp_path))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, soft), hard))
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for turn in range(3):
            disk.write_atomic(f"{tmp_path}/checkpoint", b"%d" % turn)
            assert disk.read_bytes(f"{tmp_path}/checkpoint") == b"%d" % turn
            assert "checkpoint" in disk.listdir(str(tmp_path))
        file = disk.create(f"{tmp_path}/log")
        file.append(b"record")
        assert file.pread(6, 0) == b"record"
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    lock.release()
    disk.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")
def test_new_files_and_directories_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    disk = RealDisk()
    before = os.umask(0)
    try:
        disk.mkdir(f"{tmp_path}/one/two")
        disk.mkdir(f"{tmp_path}/one/two/three")
        disk.create(f"{tmp_path}/one/two/created")
        disk.open(f"{tmp_path}/one/two/appended").append(b"x")
        disk.write_new(f"{tmp_path}/one/two/new", b"x")
        disk.write_atomic(f"{tmp_path}/one/two/atomic", b"x")
        disk.lock(f"{tmp_path}/one/two").release()
    finally:
        os.umask(before)
        disk.close()
    here = tmp_path / "one" / "two"
    assert {path.name: path.stat().st_mode & 0o777 for path in (here, *here.iterdir())} == {
        "two": 0o700,
        "three": 0o700,
        "created": 0o600,
        "appended": 0o600,
        "new": 0o600,
        "atomic": 0o600,
        ".lock": 0o600,
    }


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")
def test_an_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "imported").mkdir()
    (tmp_path / "imported").chmod(0o750)
    RealDisk().mkdir(f"{tmp_path}/imported")
    assert (tmp_path / "imported").stat().st_mode & 0o777 == 0o750
