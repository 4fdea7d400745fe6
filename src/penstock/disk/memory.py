"""A disk in memory, for brokers that keep nothing and for tests; it can crash the way real disks do.

With `crashable=True` every file remembers what was synced and what was done since. `crash(random)` gives the disk as a
machine would find it after power loss: of each file the synced bytes plus any prefix of the later operations, the last
of them torn at any byte (sometimes with zeros where data was promised); of each directory any prefix of the unsynced
creations, renames and removals. Making, renaming and removing whole directories is taken to be durable at once.
`on_write` is called before every operation that changes something and may raise: a full disk, or a crash at that point.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from penstock.disk.api import Buffer, DirectoryLockedError, DiskError

if TYPE_CHECKING:
    from typing_extensions import Buffer as AnyBuffer

P = ParamSpec("P")
T = TypeVar("T")

WriteHook = Callable[[str, str], None]


@dataclass(slots=True, eq=False)
class Inode:
    data: bytearray = field(default_factory=bytearray)
    mtime_ms: int = 0
    #: Content at the last sync, and (offset, bytes) writes or (size, None) truncations since. Kept if crashable.
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def after_crash(self, random: Random) -> bytearray:
        survived = bytearray(self.durable)
        kept = random.randint(0, len(self.pending))
        for offset, data in self.pending[:kept]:
            _apply(survived, offset, data)
        if kept < len(self.pending):
            offset, data = self.pending[kept]
            if data:
                torn = data[: random.randint(0, len(data))]
                if random.random() < 0.25:
                    torn += bytes(random.randint(0, len(data) - len(torn)))
                _apply(survived, offset, torn)
        return survived


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        _resize(content, offset)
    else:
        if len(content) < offset:
            _resize(content, offset)
        content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size <= len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


class MemoryFile:
    __slots__ = ("_disk", "_inode", "path")

    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._inode: Inode | None = None

    def _found(self) -> Inode:
        inode = self._inode
        if inode is None:
            inode = self._inode = self._disk.inode(self.path, create=True)
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
        offset = len(inode.data)
        for buffer in buffers:
            inode.data += buffer
        inode.mtime_ms = disk.now_ms()
        if disk.crashable:
            inode.pending.append((offset, bytes(inode.data[offset:])))

    def pread(self, size: int, offset: int) -> bytes:
        return bytes(memoryview(self._found().data)[offset : offset + size])

    def pread_cached(self, size: int, offset: int) -> Buffer | None:
        return self.pread(size, offset)

    async def read(self, size: int, offset: int) -> bytes:
        return self.pread(size, offset)

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._change("pwrite", offset, bytes(data))

    def truncate(self, size: int) -> None:
        self._change("truncate", size, None)

    def _change(self, operation: str, offset: int, data: bytes | None) -> None:
        disk = self._disk
        if disk.on_write is not None:
            disk.on_write(operation, self.path)
        inode = self._found()
        _apply(inode.data, offset, data)
        inode.mtime_ms = disk.now_ms()
        if disk.crashable:
            inode.pending.append((offset, data))

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


@dataclass(slots=True)
class MemoryDirectory:
    names: dict[str, Inode] = field(default_factory=dict)
    durable: dict[str, Inode] = field(default_factory=dict)
    #: Unsynced changes in order: name → inode, or None when the name went away. A rename is one step of two.
    pending: list[tuple[tuple[str, Inode | None], ...]] = field(default_factory=list)


class MemoryDisk:
    shared = False

    def __init__(self, *, crashable: bool = False, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.crashable = crashable
        self.now_ms = now_ms
        self.on_write: WriteHook | None = None
        self.boots = 1
        self._directories: dict[str, MemoryDirectory] = {"": MemoryDirectory(), "/": MemoryDirectory()}
        self._locked: set[str] = set()

    def crash(self, random: Random) -> MemoryDisk:
        """What is left after power loss at this moment. This disk is not to be used any more."""
        survivor = MemoryDisk(crashable=True, now_ms=self.now_ms)
        survivor.boots = self.boots + 1
        contents: dict[int, Inode] = {}
        for path, directory in self._directories.items():
            names = dict(directory.durable)
            for step in directory.pending[: random.randint(0, len(directory.pending))]:
                for name, inode in step:
                    if inode is None:
                        names.pop(name, None)
                    else:
                        names[name] = inode
            kept: dict[str, Inode] = {}
            for name, inode in names.items():
                if id(inode) not in contents:
                    data = inode.after_crash(random)
                    contents[id(inode)] = Inode(data, inode.mtime_ms, bytes(data))
                kept[name] = contents[id(inode)]
            survivor._directories[path] = MemoryDirectory(kept, dict(kept))
        return survivor

    def inode(self, path: str, *, create: bool = False) -> Inode:
        directory, name = self._split(path)
        inode = directory.names.get(name)
        if inode is None:
            if not create:
                raise DiskError(errno.ENOENT, "no such file", path)
            inode = Inode(mtime_ms=self.now_ms())
            self._link(directory, (name, inode))
        return inode

    def sync_inode(self, inode: Inode, path: str) -> None:
        if self.on_write is not None:
            self.on_write("sync", path)
        if self.crashable:
            inode.durable = bytes(inode.data)
            inode.pending.clear()

    def _split(self, path: str) -> tuple[MemoryDirectory, str]:
        parent, name = posixpath.split(path)
        directory = self._directories.get(parent)
        if directory is None:
            raise DiskError(errno.ENOENT, "no such directory", path)
        return directory, name

    def _link(self, directory: MemoryDirectory, *step: tuple[str, Inode | None]) -> None:
        for name, inode in step:
            if inode is None:
                directory.names.pop(name, None)
            else:
                directory.names[name] = inode
        if self.crashable:
            directory.pending.append(step)

    def _about_to(self, operation: str, path: str) -> None:
        if self.on_write is not None:
            self.on_write(operation, path)

    def open(self, path: str, *, size: int | None = None) -> MemoryFile:
        return MemoryFile(self, path)

    def create(self, path: str) -> MemoryFile:
        self._about_to("create", path)
        directory, name = self._split(path)
        self._link(directory, (name, Inode(mtime_ms=self.now_ms())))
        return MemoryFile(self, path)

    def exists(self, path: str) -> bool:
        if path in self._directories:
            return True
        parent, name = posixpath.split(path)
        directory = self._directories.get(parent)
        return directory is not None and name in directory.names

    def is_dir(self, path: str) -> bool:
        return path in self._directories

    def listdir(self, path: str) -> list[str]:
        directory = self._directories.get(path)
        if directory is None:
            raise DiskError(errno.ENOENT, "no such directory", path)
        prefix = path.rstrip("/") + "/"
        inner = [
            each[len(prefix) :]
            for each in self._directories
            if each.startswith(prefix) and "/" not in each[len(prefix) :]
        ]
        return [*directory.names, *(name for name in inner if name)]

    def mkdir(self, path: str) -> None:
        self._about_to("mkdir", path)
        while path not in self._directories:
            self._directories[path] = MemoryDirectory()
            path = posixpath.dirname(path)

    def rename(self, old: str, new: str) -> None:
        self._about_to("rename", old)
        if old in self._directories:
            for path in [each for each in self._directories if each == old or each.startswith(old + "/")]:
                self._directories[new + path[len(old) :]] = self._directories.pop(path)
            return
        source, old_name = self._split(old)
        target, new_name = self._split(new)
        inode = source.names.get(old_name)
        if inode is None:
            raise DiskError(errno.ENOENT, "no such file", old)
        if source is target:
            self._link(source, (old_name, None), (new_name, inode))
        else:
            self._link(target, (new_name, inode))
            self._link(source, (old_name, None))

    def remove(self, path: str) -> None:
        self._about_to("remove", path)
        directory, name = self._split(path)
        if name in directory.names:
            self._link(directory, (name, None))

    def remove_tree(self, path: str) -> None:
        self._about_to("remove_tree", path)
        for each in [each for each in self._directories if each == path or each.startswith(path + "/")]:
            del self._directories[each]

    def size(self, path: str) -> int:
        return len(self.inode(path).data)

    def mtime_ms(self, path: str) -> int:
        return 0 if path in self._directories else self.inode(path).mtime_ms

    def read_bytes(self, path: str, limit: int = 1 << 30) -> bytes:
        data = self.inode(path).data
        if len(data) > limit:
            raise DiskError(
                errno.EFBIG, f"the file has {len(data)} bytes, more than the {limit} that it may have", path
            )
        return bytes(data)

    def sync_dir(self, path: str) -> None:
        self._about_to("sync_dir", path)
        directory = self._directories.get(path)
        if directory is not None and self.crashable:
            directory.durable = dict(directory.names)
            directory.pending.clear()

    def sync_file(self, path: str) -> None:
        self.sync_inode(self.inode(path), path)

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
        if path in self._locked:
            raise DirectoryLockedError(
                f"Another process or broker already uses {path}: stop it, or give this one another directory."
            )
        self._locked.add(path)
        return MemoryLock(path, self._locked)

    def boot_id(self) -> str:
        return f"boot {self.boots}"

    def free_bytes(self, path: str) -> tuple[int, int]:
        return -1, -1

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    async def run_worker(self, module: str, request: bytes) -> bytes:
        raise DiskError(errno.ENOSYS, "no other process can see these files", module)

    def close(self) -> None:
        """Nothing is held."""
