"""Implements the simulated `Disk`: one process's view of its machine's volume. Calls take virtual time and may fail.

Work that a node does in a thread (an fsync, a cold read, `run`) takes virtual time while the event loop continues. A
call on the loop (`sync_now`) takes time in which the whole process stands still. When its process dies, a view can no
longer change the volume.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from penstock.disk.api import Buffer, DirectoryLockedError, DiskError
from penstock.disk.volume import Directory, Inode, Volume
from penstock.sim.engine.loop import ProcessKilled, ProcessLoop
from penstock.sim.engine.trace import Trace

if TYPE_CHECKING:
    from typing_extensions import Buffer as AnyBuffer

P = ParamSpec("P")
T = TypeVar("T")

TOTAL_BYTES = 1 << 40
#: Mean time of an fsync on a healthy disk.
NORMAL_SYNC_S = 0.002


@dataclass(slots=True)
class DiskConditions:
    """Holds the speed and the faults of a disk. Fault injection changes them while the node runs."""

    sync_s: float = NORMAL_SYNC_S
    """Mean time of an fsync; each takes between half and one and a half times as long."""
    read_s: float = 0.0003
    cold: float = 0.1
    """Share of reads whose data is not in the page cache."""
    sync_volume: bool = True
    """True if one call can sync the whole volume."""
    stall_until: float = 0.0
    """Virtual time until which no call to the disk ends."""
    write_error: float = 0.0
    """Share of writes and fsyncs that fail with EIO."""
    forget_on_error: bool = False
    """True if the kernel drops data that it could not write, and a later fsync succeeds nevertheless."""
    read_error: float = 0.0
    broken: str = ""
    """A directory in which every call fails with EIO; empty: none."""
    slow: str = ""
    """A directory in which every write, fsync and cold read takes `slow_s` longer; empty: none."""
    slow_s: float = 0.0
    filling: str = ""
    """The directory to which the limit of free bytes applies; empty: it applies to all directories together."""

    def is_broken(self, path: str) -> bool:
        return bool(self.broken) and within(path, self.broken)

    def delay(self, path: str) -> float:
        """Returns the additional seconds that a call for `path` takes."""
        return self.slow_s if self.slow and within(path, self.slow) else 0.0

    def heal(self) -> None:
        """Ends all faults of the disk. The usual duration of a sync does not change."""
        self.sync_s = NORMAL_SYNC_S
        self.stall_until = self.write_error = self.read_error = self.slow_s = 0.0
        self.broken = self.slow = self.filling = ""


def within(path: str, directory: str) -> bool:
    """Returns True if `path` is the directory or below it."""
    return path == directory or path.startswith(f"{directory}/")


class SimDisk:
    shared = False

    def __init__(
        self, volume: Volume, loop: ProcessLoop, random: Random, trace: Trace, conditions: DiskConditions
    ) -> None:
        self.volume = volume
        self.loop = loop
        self.random = random
        self.trace = trace
        self.conditions = conditions
        #: Called before every change with its kind and path. It may kill the process: see `Machine.die_at_change`.
        self.on_change: Callable[[str, str], None] | None = None
        #: Called before every change, like `on_change`: see `Machine.watch_disk`.
        self.on_step: Callable[[str, str], None] | None = None
        self._locks: list[str] = []

    # Faults and time.

    def _alive(self, path: str) -> None:
        if self.loop.dead:
            raise DiskError(errno.EIO, "the process that made this disk call is dead", path)

    def change(self, kind: str, path: str, size: int = 0) -> None:
        """Called before every change of a file. Raises DiskError, or kills the process, if a fault is planned for this
        change."""
        self._alive(path)
        self.trace.note(self.loop.name, f"disk {kind} {path} {size}")
        if self.on_step is not None:
            self.on_step(kind, path)
        if self.on_change is not None:
            self.on_change(kind, path)
        conditions = self.conditions
        if conditions.write_error and self.random.random() < conditions.write_error:
            raise DiskError(errno.EIO, "input/output error", path)
        if conditions.is_broken(path):
            raise DiskError(errno.EIO, "input/output error", path)

    def grow(self, path: str, size: int) -> None:
        free = self._free(path)
        if free is not None and size > 0:
            if size > free:
                raise DiskError(errno.ENOSPC, "no space left on device", path)
            self.volume.free_bytes = free - size

    def _free(self, path: str) -> int | None:
        filling = self.conditions.filling
        return self.volume.free_bytes if not filling or within(path, filling) else None

    def reading(self, path: str) -> None:
        self._alive(path)
        conditions = self.conditions
        if conditions.read_error and self.random.random() < conditions.read_error:
            raise DiskError(errno.EIO, "input/output error", path)
        if conditions.is_broken(path):
            raise DiskError(errno.EIO, "input/output error", path)

    def sync_time(self, path: str = "") -> float:
        conditions = self.conditions
        return conditions.sync_s * self.random.uniform(0.5, 1.5) + conditions.delay(path) + self._stall()

    def read_time(self, path: str) -> float:
        conditions = self.conditions
        return conditions.read_s * self.random.uniform(0.5, 1.5) + conditions.delay(path) + self._stall()

    def block(self, seconds: float) -> None:
        """Blocks the process for a call that it makes on its event loop, not in a thread."""
        if seconds and self.loop.timeline.running is self.loop:
            self.loop.block(seconds)

    def _stall(self) -> float:
        return max(0.0, self.conditions.stall_until - self.loop.time())

    # Disk

    def open(self, path: str, *, size: int | None = None) -> SimFile:
        self._alive(path)
        return SimFile(self, path)

    def create(self, path: str) -> SimFile:
        self.change("create", path)
        self.volume.create(path)
        return SimFile(self, path)

    def exists(self, path: str) -> bool:
        self._alive(path)
        return self.volume.find(path) is not None

    def real_path(self, path: str) -> str:
        return posixpath.normpath(path)

    def is_dir(self, path: str) -> bool:
        self._alive(path)
        return isinstance(self.volume.find(path), Directory)

    def listdir(self, path: str) -> list[str]:
        self.reading(path)
        return list(self.volume.directory(path).entries)

    def mkdir(self, path: str) -> None:
        self._alive(path)
        if not isinstance(self.volume.find(path), Directory):
            self.change("mkdir", path)
            self.volume.mkdir(path)

    def rename(self, old: str, new: str) -> None:
        self.change("rename", old)
        self.volume.rename(old, new)

    def remove(self, path: str) -> None:
        self.change("remove", path)
        self.volume.remove(path)

    def remove_tree(self, path: str) -> None:
        self.change("remove_tree", path)
        self.volume.remove_tree(path)

    def size(self, path: str) -> int:
        self.reading(path)
        return len(self.volume.inode(path).data)

    def mtime_ms(self, path: str) -> int:
        found = self.volume.find(path)
        return found.mtime_ms if isinstance(found, Inode) else 0

    def read_bytes(self, path: str, limit: int = 1 << 30) -> bytes:
        self.reading(path)
        data = self.volume.inode(path).data
        if len(data) > limit:
            raise DiskError(errno.EFBIG, f"the file has {len(data)} bytes, more than the limit of {limit} bytes", path)
        return bytes(data)

    def sync_dir(self, path: str) -> None:
        self.change("sync_dir", path)
        self.volume.directory(path).pending.clear()
        self.block(self.sync_time(path) if self.loop.timeline.running is self.loop else 0)

    def sync_file(self, path: str) -> None:
        self.sync_inode(self.volume.inode(path), path)

    def sync_inode(self, inode: Inode, path: str, sequence: int | None = None) -> None:
        try:
            self.change("sync", path)
        except DiskError:
            inode.poisoned = inode.poisoned or self.conditions.forget_on_error
            raise
        inode.synced(inode.sequence if sequence is None else sequence)

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
        file = self.create(path)
        if data:
            file.append(data)

    def sync_volume(self, path: str) -> bool:
        """Syncs the whole volume. Returns False if this machine can't sync a whole volume in one call."""
        if not self.conditions.sync_volume:
            return False
        self.change("sync_volume", path)
        self.volume.sync_all()
        return True

    def lock(self, path: str) -> SimLock:
        self._alive(path)
        if path in self.volume.locks:
            raise DirectoryLockedError(f"Another process uses {path}: stop that process first.")
        self.volume.locks.add(path)
        self._locks.append(path)
        return SimLock(self, path)

    def unlock(self, path: str) -> None:
        if path in self._locks:
            self._locks.remove(path)
            self.volume.locks.discard(path)

    def release(self) -> None:
        """Releases the locks of a process that has died."""
        for path in list(self._locks):
            self.unlock(path)

    def boot_id(self) -> str:
        return f"boot {self.volume.boots}"

    def free_bytes(self, path: str) -> tuple[int, int]:
        free = self._free(path)
        return TOTAL_BYTES, TOTAL_BYTES if free is None else free

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await asyncio.sleep(self.sync_time())
        # The function runs in a thread: the time that it takes is not the loop's.
        with self.loop.timeline.elsewhere():
            return function(*args, **kwargs)

    async def run_worker(self, module: str, request: bytes) -> bytes:
        raise DiskError(errno.ENOSYS, "a simulated disk is in memory, so no worker process can read it", module)

    def close(self) -> None:
        """Does nothing: the disk holds no resources."""


class SimLock:
    __slots__ = ("_disk", "_path")

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        if not self._disk.loop.dead:
            self._disk.unlock(self._path)


class SimFile:
    __slots__ = ("_disk", "_inode", "path")

    def __init__(self, disk: SimDisk, path: str) -> None:
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
        self._write(b"".join(buffers), None)
        self._disk.block(self._disk.conditions.delay(self.path))

    async def append_later(self, *buffers: AnyBuffer) -> None:
        await asyncio.sleep(self._disk.read_time(self.path))
        self._write(b"".join(buffers), None)

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._write(bytes(data), offset)
        self._disk.block(self._disk.conditions.delay(self.path))

    def _write(self, data: bytes, offset: int | None) -> None:
        disk = self._disk
        try:
            disk.change("write", self.path, len(data))
        except ProcessKilled:
            # The process dies inside the call: the kernel has taken a part of the data.
            inode = self._found()
            inode.write(len(inode.data) if offset is None else offset, data[: disk.random.randint(0, len(data))])
            raise
        inode = self._found()
        if offset is None:
            offset = len(inode.data)
        disk.grow(self.path, offset + len(data) - len(inode.data))
        inode.write(offset, data)
        inode.mtime_ms = disk.volume.now_ms()

    def truncate(self, size: int) -> None:
        disk = self._disk
        disk.change("truncate", self.path, size)
        inode = self._found()
        inode.truncate(size)
        inode.mtime_ms = disk.volume.now_ms()

    def pread(self, size: int, offset: int) -> bytes:
        self._disk.reading(self.path)
        return bytes(memoryview(self._found().data)[offset : offset + size])

    def pread_cached(self, size: int, offset: int) -> Buffer | None:
        if self._disk.random.random() < self._disk.conditions.cold:
            return None
        return self.pread(size, offset)

    async def read(self, size: int, offset: int) -> bytes:
        await asyncio.sleep(self._disk.read_time(self.path))
        return self.pread(size, offset)

    def sync_now(self) -> None:
        disk = self._disk
        disk.sync_inode(self._found(), self.path)
        if disk.loop.timeline.running is disk.loop:
            disk.loop.block(disk.sync_time(self.path))

    async def sync(self) -> None:
        """Syncs all data written before the call; later writes are not covered."""
        inode = self._found()
        sequence = inode.sequence
        await asyncio.sleep(self._disk.sync_time(self.path))
        self._disk.sync_inode(inode, self.path, sequence)

    def close(self) -> None:
        self._inode = None
