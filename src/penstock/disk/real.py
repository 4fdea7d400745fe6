"""Implements the real disk. Descriptors are pooled: a node with 10,000 logs keeps a bounded number open.

Linux-only calls have portable replacements, chosen by module flags. Tests switch the flags off and expect
the same results.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from penstock.disk.api import DIRECTORY_MODE, FILE_MODE, Buffer, DiskError, Lock
from penstock.disk.descriptors import OPEN_FLAGS, DescriptorPool
from penstock.disk.locks import lock_directory
from penstock.disk.reserve import Reserve, from_reserve

if TYPE_CHECKING:
    from typing_extensions import Buffer as AnyBuffer

P = ParamSpec("P")
T = TypeVar("T")

#: preadv with RWF_NOWAIT reads only from the page cache.
HAVE_NOWAIT_READ = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")
#: One system call writes header and payload.
HAVE_WRITEV = hasattr(os, "pwritev")
HAVE_PREAD = hasattr(os, "pread")
HAVE_FDATASYNC = hasattr(os, "fdatasync")
HAVE_FSYNC_DIR = sys.platform != "win32"
#: One call syncs a whole volume, and reports errors since Linux 5.8.
HAVE_SYNCFS = sys.platform == "linux"

#: The most buffers of one gathered write; the kernel allows 1,024.
MAX_BUFFERS = 512
BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"

_READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
#: Bytes of the first read of a small file.
READ_CHUNK = 1 << 16
_NO_NOWAIT = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
#: The last bytes of a file, taken to be in the page cache on systems that can't tell.
RECENT_BYTES = 8 * 1024 * 1024


def _disk_error(error: OSError, path: str) -> DiskError:
    return error if isinstance(error, DiskError) else DiskError(error.errno, error.strerror or str(error), path)


@contextlib.contextmanager
def _reported(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _disk_error(error, path) from error


class RealFile:
    __slots__ = ("_closing", "_disk", "_fd", "_pins", "_size", "_written_from", "path", "recently_used")

    def __init__(self, disk: RealDisk, path: str, size: int | None) -> None:
        self._disk = disk
        self.path = path
        self._fd = -1
        self._pins = 0
        self._closing = False
        self._size = -1 if size is None else size
        #: Bytes from here on were written by this process.
        self._written_from = -1
        self.recently_used = False

    @property
    def size(self) -> int:
        if self._size < 0:
            try:
                self._size = os.stat(self.path).st_size
            except FileNotFoundError:
                self._size = 0
            except OSError as error:
                raise _disk_error(error, self.path) from error
        return self._size

    def descriptor(self, create: int = 0) -> int:
        """Returns the file's descriptor, which stays open until the next call on this disk. Code that runs in a thread
        must use `_pinned` instead."""
        fd = self._fd
        if fd < 0:
            fd = self._fd = self._disk.descriptors.open(self, create)
        self.recently_used = True
        return fd

    def append(self, *buffers: AnyBuffer) -> None:
        size = self.size
        fd = self._fd
        self.recently_used = True
        if fd < 0:
            with _reported(self.path):
                fd = self.descriptor(os.O_CREAT)
            if self._written_from < 0:
                self._written_from = size
        if HAVE_WRITEV and len(buffers) <= MAX_BUFFERS:
            total = 0
            for buffer in buffers:
                total += len(buffer)  # type: ignore[arg-type]
            try:
                written = os.pwritev(fd, buffers, size)
                if written < total:
                    # After a short write (disk nearly full, or a signal) this writes the rest or raises.
                    _write_all(fd, memoryview(b"".join(buffers))[written:], size + written)
            except OSError as error:
                self._roll_back(fd, size)
                raise _disk_error(error, self.path) from error
        else:
            data = memoryview(b"".join(buffers))
            total = len(data)
            try:
                _write_all(fd, data, size)
            except OSError as error:
                self._roll_back(fd, size)
                raise _disk_error(error, self.path) from error
        self._size = size + total

    async def append_later(self, *buffers: AnyBuffer) -> None:
        if not HAVE_WRITEV:
            self.append(*buffers)  # without pwrite, two threads would share one file position
        else:
            await self._pinned(self.append, *buffers)

    def _roll_back(self, fd: int, size: int) -> None:
        # If this fails too, the next append still starts at `size` and overwrites the rest, or recovery truncates it.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size)

    def pread(self, size: int, offset: int) -> bytes:
        try:
            fd = self.descriptor()
            if HAVE_PREAD:
                data = os.pread(fd, size, offset)
                if len(data) < size and offset + size <= self.size:
                    return data + self._read_rest(fd, size - len(data), offset + len(data))
                return data
            os.lseek(fd, offset, os.SEEK_SET)
            return self._read_rest(fd, size, offset)
        except OSError as error:
            raise _disk_error(error, self.path) from error

    def _read_rest(self, fd: int, size: int, offset: int) -> bytes:
        chunks: list[bytes] = []
        while size > 0:
            chunk = os.pread(fd, size, offset) if HAVE_PREAD else os.read(fd, size)
            if not chunk:
                break
            chunks.append(chunk)
            size -= len(chunk)
            offset += len(chunk)
        return b"".join(chunks)

    def pread_cached(self, size: int, offset: int) -> Buffer | None:
        size = min(size, self.size - offset)
        if size <= 0:
            return b""
        if not self._disk.nowait_reads:
            # This system can't tell what is cached. Recent writes are; for all else the caller awaits `read`.
            recent = 0 <= self._written_from <= offset and offset >= self._size - RECENT_BYTES
            return self.pread(size, offset) if recent else None
        buffer = bytearray(size)
        try:
            got = os.preadv(self.descriptor(), (buffer,), offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in _NO_NOWAIT:
                self._disk.nowait_reads = False
                return self.pread_cached(size, offset)
            if error.errno == errno.EAGAIN:
                return None
            raise _disk_error(error, self.path) from error
        return buffer if got == size else None

    async def read(self, size: int, offset: int) -> bytes:
        if not HAVE_PREAD:
            return self.pread(size, offset)  # without pread, two threads would share one file position
        return await self._pinned(self.pread, size, offset)

    async def _pinned(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `function` in a thread. Keeps the file's descriptor open until the function returns, even if the waiting
        task is cancelled.
        """
        with _reported(self.path):
            self.descriptor()
        self._pins += 1
        future = self._disk.submit(function, *args, **kwargs)
        future.add_done_callback(self._unpin)
        return await asyncio.shield(future)

    def _unpin(self, future: asyncio.Future[T]) -> None:
        self._pins -= 1
        if self._closing:
            self.close()
        if not future.cancelled():
            future.exception()  # Retrieved, so that asyncio does not log an error whose caller was cancelled.

    def pwrite(self, data: Buffer, offset: int) -> None:
        with _reported(self.path):
            _write_all(self.descriptor(os.O_CREAT), memoryview(data), offset)
        self._size = max(self.size, offset + len(data))

    def truncate(self, size: int) -> None:
        with _reported(self.path):
            os.ftruncate(self.descriptor(os.O_CREAT), size)
        self._size = size

    def sync_now(self) -> None:
        with _reported(self.path):
            fd = self.descriptor()
            if HAVE_FDATASYNC:
                os.fdatasync(fd)
            else:
                os.fsync(fd)

    async def sync(self) -> None:
        await self._pinned(self.sync_now)

    def close(self) -> None:
        """Closes the descriptor as soon as no thread uses it. A later call on this file opens it again."""
        self._disk.descriptors.forget(self)
        self._closing = not self.release_descriptor()

    def release_descriptor(self) -> bool:
        """Closes the file's descriptor. Returns False and leaves it open if a thread is using it."""
        if self._pins:
            return False
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        return True


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    if not HAVE_WRITEV:
        os.lseek(fd, offset, os.SEEK_SET)
    while data:
        written = os.pwrite(fd, data, offset) if HAVE_WRITEV else os.write(fd, data)
        if written <= 0:
            raise OSError(errno.ENOSPC, "the disk accepted no bytes")
        offset += written
        data = data[written:]


def _syncfs() -> Callable[[int], int] | None:
    import ctypes
    import platform

    version = platform.release().split(".")
    if [int(part) if part.isdecimal() else 0 for part in version[:2]] < [5, 8]:
        return None
    try:
        function: Callable[[int], int] = ctypes.CDLL(None).syncfs
    except (OSError, AttributeError):
        return None
    return function


class RealDisk:
    """Accesses the file system. `max_open_files` limits open descriptors; `max_threads` limits concurrent blocking
    calls."""

    shared = True

    def __init__(self, *, max_open_files: int = 512, max_threads: int = 8) -> None:
        self._max_threads = max_threads
        self._threads: ThreadPoolExecutor | None = None
        self.reserve = Reserve()
        self.descriptors = DescriptorPool(max_open_files, self.reserve)
        #: False once the file system has refused such a read.
        self.nowait_reads = HAVE_NOWAIT_READ

    def open(self, path: str, *, size: int | None = None) -> RealFile:
        return RealFile(self, path, size)

    def create(self, path: str) -> RealFile:
        self.write_new(path, b"")
        return RealFile(self, path, 0)

    @property
    def open_files(self) -> int:
        return len(self.descriptors)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    @from_reserve
    def listdir(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except OSError as error:
            raise _disk_error(error, path) from error

    def mkdir(self, path: str) -> None:
        with _reported(path):
            try:
                os.mkdir(path, DIRECTORY_MODE)
            except FileExistsError:
                if not os.path.isdir(path):
                    raise
            except FileNotFoundError:
                os.makedirs(path, DIRECTORY_MODE, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        with _reported(old):
            os.replace(old, new)

    def remove(self, path: str) -> None:
        with _reported(path), contextlib.suppress(FileNotFoundError):
            os.remove(path)

    @from_reserve
    def remove_tree(self, path: str) -> None:
        with _reported(path), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def size(self, path: str) -> int:
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise _disk_error(error, path) from error

    def mtime_ms(self, path: str) -> int:
        with _reported(path):
            return os.stat(path).st_mtime_ns // 1_000_000

    @from_reserve
    def read_bytes(self, path: str, limit: int = 1 << 30) -> bytes:
        try:
            fd = os.open(path, _READ_FLAGS)
            try:
                data = os.read(fd, min(limit + 1, READ_CHUNK))
                if len(data) == READ_CHUNK:
                    data = self._read_rest(fd, data, limit)
            finally:
                os.close(fd)
        except OSError as error:
            raise _disk_error(error, path) from error
        if len(data) > limit:
            raise DiskError(errno.EFBIG, f"the file is larger than its limit of {limit} bytes", path)
        return data

    def _read_rest(self, fd: int, start: bytes, limit: int) -> bytes:
        chunks, total = [start], len(start)
        while total <= limit and (chunk := os.read(fd, 1 << 20)):
            chunks.append(chunk)
            total += len(chunk)
        return b"".join(chunks)

    @from_reserve
    def write_new(self, path: str, data: bytes) -> None:
        try:
            fd = os.open(path, OPEN_FLAGS | os.O_CREAT | os.O_TRUNC, FILE_MODE)
            try:
                _write_all(fd, memoryview(data), 0)
            finally:
                os.close(fd)
        except OSError as error:
            raise _disk_error(error, path) from error

    @from_reserve
    def sync_dir(self, path: str) -> None:
        if not HAVE_FSYNC_DIR:
            return
        with _reported(path):
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    @from_reserve
    def sync_file(self, path: str) -> None:
        with _reported(path):
            fd = os.open(path, OPEN_FLAGS)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    @from_reserve
    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        temporary = path + ".tmp"
        with _reported(path):
            fd = os.open(temporary, OPEN_FLAGS | os.O_CREAT | os.O_TRUNC, FILE_MODE)
            try:
                _write_all(fd, memoryview(data), 0)
                if sync:
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        if sync:
            self.sync_dir(os.path.dirname(path) or ".")

    @from_reserve
    def sync_volume(self, path: str) -> bool:
        syncfs = _syncfs() if HAVE_SYNCFS else None
        if syncfs is None:
            return False
        with _reported(path):
            fd = os.open(path, os.O_RDONLY)
            try:
                if syncfs(fd):
                    raise OSError(errno.EIO, "the volume could not be synced")
            finally:
                os.close(fd)
        return True

    def lock(self, path: str) -> Lock:
        self.reserve.fill()
        with _reported(path):
            return lock_directory(path)

    def boot_id(self) -> str:
        try:
            with open(BOOT_ID_FILE, encoding="ascii") as file:
                return file.read(100).strip()
        except OSError:
            return ""  # not Linux: the end of a process and of the machine can't be told apart

    def free_bytes(self, path: str) -> tuple[int, int]:
        try:
            usage = shutil.disk_usage(path)
        except OSError:
            return -1, -1
        return usage.total, usage.free

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._max_threads, thread_name_prefix="penstock-disk")
        return asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.submit(function, *args, **kwargs)

    async def run_worker(self, module: str, request: bytes) -> bytes:
        # A thread waits for the child, because event loops differ in how they watch child processes.
        worker = await self.run(self._start_worker, module)
        try:
            answer, complaint = await self.run(worker.communicate, request)
        except BaseException:
            worker.kill()
            raise
        if worker.returncode:
            raise DiskError(
                errno.EIO, f"the helper process {module} failed: {complaint[-2000:].decode(errors='replace').strip()}"
            )
        return answer

    @from_reserve
    def _start_worker(self, module: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", module]
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)  # noqa: S603 (ours)

    def close(self) -> None:
        self.reserve.release()
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True)
        for file in self.descriptors.files():
            file.close()
