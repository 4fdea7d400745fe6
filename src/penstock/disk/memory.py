"""Implements a disk in memory, for brokers without persistent data and for tests. It can simulate a power loss.

With `crashable=True`, `crash(random)` returns the disk as a machine finds it after a power loss: see `volume`.
Creating, renaming or removing a whole directory is durable at once.

`on_write` is called before every operation that changes the disk. It may raise, to simulate a full disk or a crash.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from penstock.check import check
from penstock.disk.api import Buffer, DirectoryLockedError, DiskError
from penstock.disk.volume import Directory, Inode, Volume

if TYPE_CHECKING:
    from typing_extensions import Buffer as AnyBuffer

P = ParamSpec("P")
T = TypeVar("T")

WriteHook = Callable[[str, str], None]


class MemoryFile:
    __slots__ = ("_disk", "_inode", "path")

    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._inode: Inode | None = None

    def _found(self) -> Inode:
        inode = self._inode
        if inode is None:
            inode = self._inode = self._disk.volume.inode(self.path, create=True)
        return inode

    @property
    def size(self) -> int:
        if self._inode is None and not self._disk.exists(self.path):
            return 0
        return len(self._found().data)

    def append(self, *buffers: AnyBuffer) -> None:
        disk = self._disk
        if disk.on_write is not None:
            disk.on_write("append", self.path)
        inode = self._found()
        inode.append(*buffers)
        inode.mtime_ms = disk.volume.now_ms()

    async def append_later(self, *buffers: AnyBuffer) -> None:
        self.append(*buffers)

    def pread(self, size: int, offset: int) -> bytes:
        return bytes(memoryview(self._found().data)[offset : offset + size])

    def pread_cached(self, size: int, offset: int) -> Buffer | None:
        return self.pread(size, offset)

    async def read(self, size: int, offset: int) -> bytes:
        return self.pread(size, offset)

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._inode_to_change("pwrite").write(offset, bytes(data))

    def truncate(self, size: int) -> None:
        self._inode_to_change("truncate").truncate(size)

    def _inode_to_change(self, operation: str) -> Inode:
        disk = self._disk
        if disk.on_write is not None:
            disk.on_write(operation, self.path)
        inode = self._found()
        inode.mtime_ms = disk.volume.now_ms()
        return inode

    def sync_now(self) -> None:
        self._disk.sync_inode(self._found(), self.path)

    async def sync(self) -> None:
        self.sync_now()

    def close(self) -> None:
        self._inode = None


class MemoryLock:
    __slots__ = ("_held", "_path")

    def __init__(self, path: str, held: set[str]) -> None:
        self._path = path
        self._held = held

    def release(self) -> None:
        self._held.discard(self._path)


class MemoryDisk:
    shared = False

    def __init__(
        self, *, crashable: bool = False, now_ms: Callable[[], int] = lambda: 0, volume: Volume | None = None
    ) -> None:
        self.volume = Volume(now_ms, crashable=crashable, durable_directories=True) if volume is None else volume
        self.on_write: WriteHook | None = None

    def crash(self, random: Random) -> MemoryDisk:
        """Returns the disk as the machine would find it after a power loss at this moment. This disk itself does not
        change."""
        check(self.volume.crashable, "only a disk made with crashable=True can crash")
        survivor = self.volume.copied()
        survivor.lose_power(random)
        return MemoryDisk(volume=survivor)

    def inode(self, path: str) -> Inode:
        return self.volume.inode(path)

    def sync_inode(self, inode: Inode, path: str) -> None:
        self._about_to("sync", path)
        inode.synced(inode.sequence)

    def _about_to(self, operation: str, path: str) -> None:
        if self.on_write is not None:
            self.on_write(operation, path)

    def open(self, path: str, *, size: int | None = None) -> MemoryFile:
        return MemoryFile(self, path)

    def create(self, path: str) -> MemoryFile:
        self._about_to("create", path)
        self.volume.create(path)
        return MemoryFile(self, path)

    def exists(self, path: str) -> bool:
        return self.volume.find(path) is not None

    def real_path(self, path: str) -> str:
        return posixpath.normpath(path)

    def is_dir(self, path: str) -> bool:
        return isinstance(self.volume.find(path), Directory)

    def listdir(self, path: str) -> list[str]:
        return list(self.volume.directory(path).entries)

    def mkdir(self, path: str) -> None:
        self._about_to("mkdir", path)
        self.volume.mkdir(path)

    def rename(self, old: str, new: str) -> None:
        self._about_to("rename", old)
        self.volume.rename(old, new)

    def remove(self, path: str) -> None:
        self._about_to("remove", path)
        self.volume.remove(path)

    def remove_tree(self, path: str) -> None:
        self._about_to("remove_tree", path)
        self.volume.remove_tree(path)

    def size(self, path: str) -> int:
        return len(self.volume.inode(path).data)

    def mtime_ms(self, path: str) -> int:
        return 0 if self.is_dir(path) else self.volume.inode(path).mtime_ms

    def read_bytes(self, path: str, limit: int = 1 << 30) -> bytes:
        data = self.volume.inode(path).data
        if len(data) > limit:
            raise DiskError(errno.EFBIG, f"the file has {len(data)} bytes and may have at most {limit}", path)
        return bytes(data)

    def sync_dir(self, path: str) -> None:
        self._about_to("sync_dir", path)
        self.volume.directory(path).pending.clear()

    def sync_file(self, path: str) -> None:
        self.sync_inode(self.volume.inode(path), path)

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        temporary = path + ".tmp"
        file = self.create(temporary)
        file.append(data)
        if sync:
            file.sync_now()
        self.rename(temporary, path)
        if sync:
            self.sync_dir(posixpath.dirname(path))

    def write_new(self, path: str, data: bytes) -> None:
        self.create(path).append(data)

    def sync_volume(self, path: str) -> bool:
        return False

    def lock(self, path: str) -> MemoryLock:
        if path in self.volume.locks:
            raise DirectoryLockedError(
                f"Another process or broker already uses {path}: stop that process or broker, or use another directory."
            )
        self.volume.locks.add(path)
        return MemoryLock(path, self.volume.locks)

    def boot_id(self) -> str:
        return f"boot {self.volume.boots}"

    def free_bytes(self, path: str) -> tuple[int, int]:
        return -1, -1

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    async def run_worker(self, module: str, request: bytes) -> bytes:
        raise DiskError(errno.ENOSYS, "a helper process can't open the files of a disk in memory", module)

    def close(self) -> None:
        """Does nothing: a disk in memory holds no resources."""
