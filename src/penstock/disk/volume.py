"""Implements a volume in memory: a tree of files, and the simulation of a power cut.

Every write goes to the page cache, which survives the end of a process but not a power cut.

On a crashable volume, each file and each directory has a list of its changes since its last sync. A power cut undoes
the newest changes of each list; their number is random. One undone write of a file may be torn: only its first bytes
stay in the file, and zeros may follow them or replace some of them.

`MemoryDisk` and the simulator's disk are both views of a volume. A volume that is not crashable keeps no lists of
changes.
"""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from penstock.disk.api import DiskError

if TYPE_CHECKING:
    from typing_extensions import Buffer as AnyBuffer

SECTOR = 512


class _Change(NamedTuple):
    """Describes one write or truncation of a file, with the bytes that undo it."""

    sequence: int
    offset: int
    #: Bytes written; -1: the file was cut to `offset`.
    length: int
    old: bytes
    old_size: int


class Severity(Enum):
    """Names the share of unsynced changes that a power cut undoes: all, some or none."""

    NOTHING = "nothing"
    EVERYTHING = "all unsynced changes"
    SOME = "some unsynced changes"


@dataclass(slots=True, eq=False)
class Inode:
    data: bytearray = field(default_factory=bytearray)
    mtime_ms: int = 0
    sequence: int = 0
    #: An fsync failed: the changes that it should have synced never reach the disk, even if a later fsync succeeds.
    poisoned: bool = False
    crashable: bool = True
    pending: list[_Change] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        content = self.data
        size = len(content)
        self.sequence += 1
        if self.crashable:
            old = bytes(content[offset : offset + len(data)]) if offset < size else b""
            self.pending.append(_Change(self.sequence, offset, len(data), old, size))
        if offset > size:
            content.extend(bytes(offset - size))
        content[offset : offset + len(data)] = data

    def append(self, *buffers: AnyBuffer) -> None:
        if self.crashable:
            self.write(len(self.data), b"".join(buffers))
            return
        for buffer in buffers:
            self.data += buffer

    def truncate(self, size: int) -> None:
        content = self.data
        before = len(content)
        self.sequence += 1
        if self.crashable:
            self.pending.append(_Change(self.sequence, size, -1, bytes(content[size:]), before))
        if size <= before:
            del content[size:]
        else:
            content.extend(bytes(size - before))

    def synced(self, sequence: int) -> None:
        """Marks all changes up to number `sequence` as synced."""
        if not self.poisoned:
            pending = self.pending
            if not pending or pending[-1].sequence <= sequence:
                pending.clear()
            else:
                self.pending = [change for change in pending if change.sequence > sequence]

    def lose(self, random: Random, severity: Severity) -> int:
        """Undoes the changes of this file that a power cut destroys. Returns their number."""
        pending = self.pending
        match severity:
            case Severity.NOTHING:
                kept = len(pending)
            case Severity.EVERYTHING:
                kept = 0
            case Severity.SOME:
                kept = random.randint(0, len(pending))
        for change in reversed(pending[kept:]):
            torn = severity is Severity.SOME and change is pending[kept] and change.length > 1
            self._undo(change, random.randint(0, change.length) if torn else 0, random)
        lost = len(pending) - kept
        pending.clear()
        self.poisoned = False
        return lost

    def _undo(self, change: _Change, kept: int, random: Random) -> None:
        """Undoes a change, except the first `kept` bytes of a write."""
        content = self.data
        if change.length < 0:
            del content[change.offset :]
            content += change.old
            del content[change.old_size :]
            return
        end = change.offset + change.length
        for at in range(change.offset + kept, min(end, change.offset + len(change.old))):
            content[at] = change.old[at - change.offset]
        size = max(change.old_size, change.offset + kept)
        if not kept and size < change.offset:
            size = change.old_size
        del content[size:]
        if kept and random.random() < 0.25:
            content += bytes(random.randint(0, end - min(size, end)))  # the new size was on disk, the data was not
        elif kept > SECTOR and random.random() < 0.25:
            start = change.offset + random.randrange(kept // SECTOR) * SECTOR
            stop = min(start + SECTOR, change.offset + kept)
            content[start:stop] = bytes(stop - start)


@dataclass(slots=True, eq=False)
class Directory:
    entries: dict[str, Inode | Directory] = field(default_factory=dict)
    crashable: bool = True
    #: (name, entry before, entry after) of every change since the last sync; the changes of one step happen together.
    pending: list[list[tuple[str, Inode | Directory | None, Inode | Directory | None]]] = field(default_factory=list)

    def link(self, *step: tuple[str, Inode | Directory | None], durable: bool = False) -> None:
        """Changes several directory entries atomically. An entry is removed if its new value is None.

        With `durable`, the change survives a power cut even without a sync.
        """
        done: list[tuple[str, Inode | Directory | None, Inode | Directory | None]] = []
        for name, target in step:
            done.append((name, self.entries.get(name), target))
            self._set(name, target)
        if self.crashable and not durable:
            self.pending.append(done)

    def _set(self, name: str, target: Inode | Directory | None) -> None:
        if target is None:
            self.entries.pop(name, None)
        else:
            self.entries[name] = target

    def lose(self, random: Random, severity: Severity) -> int:
        """Undoes the changes of this directory that a power cut destroys. Returns their number."""
        pending = self.pending
        kept = {Severity.NOTHING: len(pending), Severity.EVERYTHING: 0}.get(severity)
        if kept is None:
            kept = random.randint(0, len(pending))
        for step in reversed(pending[kept:]):
            for name, before, _ in reversed(step):
                self._set(name, before)
        lost = len(pending) - kept
        pending.clear()
        return lost


class Volume:
    """Holds the files of one machine's disk. Each process uses the volume through its own `Disk`."""

    def __init__(self, now_ms: Callable[[], int], *, crashable: bool = True, durable_directories: bool = False) -> None:
        self.now_ms = now_ms
        self.crashable = crashable
        #: True: making, renaming and removing a whole directory needs no sync to survive a power cut.
        self.durable_directories = durable_directories
        self.root = Directory(crashable=crashable)
        #: Number of power losses so far.
        self.boots = 0
        self.locks: set[str] = set()
        #: Bytes that may still be written; None: no limit.
        self.free_bytes: int | None = None
        self._found: dict[str, Directory] = {"": self.root, "/": self.root}

    # Finding files and directories.

    def directory(self, path: str) -> Directory:
        known = self._found.get(path)
        if known is None:
            found = self.find(path)
            if not isinstance(found, Directory):
                raise DiskError(errno.ENOENT, "no such directory", path)
            known = self._found[path] = found
        return known

    def find(self, path: str) -> Inode | Directory | None:
        parent, _, name = path.rstrip("/").rpartition("/")
        known = self._found.get(parent)
        if known is not None:
            return known.entries.get(name)
        found: Inode | Directory | None = self.root
        for part in filter(None, path.split("/")):
            if not isinstance(found, Directory):
                return None
            found = found.entries.get(part)
        return found

    def split(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        return self.directory(parent), name

    def inode(self, path: str, *, create: bool = False) -> Inode:
        directory, name = self.split(path)
        found = directory.entries.get(name)
        if isinstance(found, Directory):
            raise DiskError(errno.EISDIR, "is a directory", path)
        if found is None:
            if not create:
                raise DiskError(errno.ENOENT, "no such file", path)
            found = self._new_inode()
            directory.link((name, found))
        return found

    def create(self, path: str) -> None:
        """Creates an empty file, or replaces an existing file with an empty file."""
        directory, name = self.split(path)
        directory.link((name, self._new_inode()))

    def _new_inode(self) -> Inode:
        return Inode(mtime_ms=self.now_ms(), crashable=self.crashable)

    def files(self, start: str = "") -> Iterator[tuple[str, Inode]]:
        """Yields every file below `start` with its path."""
        found = self.find(start) if start else self.root
        if isinstance(found, Directory):
            yield from _walk(start.rstrip("/"), found)

    # Changing the tree.

    def mkdir(self, path: str) -> None:
        found: Inode | Directory = self.root
        for part in filter(None, path.split("/")):
            if not isinstance(found, Directory):
                raise DiskError(errno.ENOTDIR, "a part of the path is a file, not a directory", path)
            inner = found.entries.get(part)
            if inner is None:
                inner = Directory(crashable=self.crashable)
                found.link((part, inner), durable=self.durable_directories)
            found = inner

    def rename(self, old: str, new: str) -> None:
        source, old_name = self.split(old)
        target, new_name = self.split(new)
        moved = source.entries.get(old_name)
        if moved is None:
            raise DiskError(errno.ENOENT, "no such file", old)
        there = target.entries.get(new_name)
        if isinstance(there, Directory) and there.entries:
            raise DiskError(errno.ENOTEMPTY, "the target is a directory that is not empty", new)
        durable = self.durable_directories and isinstance(moved, Directory)
        if source is target:
            source.link((old_name, None), (new_name, moved), durable=durable)
        else:
            target.link((new_name, moved), durable=durable)
            source.link((old_name, None), durable=durable)
        if isinstance(moved, Directory):
            self._forget_paths()

    def remove(self, path: str) -> None:
        directory, name = self.split(path)
        if isinstance(directory.entries.get(name), Inode):
            directory.link((name, None))

    def remove_tree(self, path: str) -> None:
        directory, name = self.split(path)
        if name in directory.entries:
            directory.link((name, None), durable=self.durable_directories)
            self._forget_paths()

    def detach(self, path: str) -> Directory:
        """Syncs the directory at `path` and puts an empty directory in its place, as unmounting a disk does.

        Returns the old directory, for a later `attach`.
        """
        directory = self.directory(path)
        for inner in _directories(directory):
            inner.pending.clear()
        for _, inode in _walk(path, directory):
            inode.pending.clear()
        self.attach(path, Directory(crashable=self.crashable))
        return directory

    def attach(self, path: str, directory: Directory) -> None:
        """Puts `directory` at `path`, in place of the directory there, as mounting a disk does."""
        parent, name = self.split(path)
        parent.link((name, directory), durable=True)
        self._forget_paths()

    def _forget_paths(self) -> None:
        self._found = {"": self.root, "/": self.root}

    def sync_all(self) -> None:
        """Syncs all files and directories."""
        for directory in _directories(self.root):
            directory.pending.clear()
        for _, inode in self.files():
            inode.pending.clear()

    # Power.

    def lose_power(self, random: Random, severity: Severity = Severity.SOME) -> tuple[int, int]:
        """Undoes unsynced changes, as a power cut does. Returns two counts of undone changes: (directories, files)."""
        self.locks.clear()
        self.boots += 1
        entries = 0
        stack = [self.root]
        while stack:
            directory = stack.pop()
            entries += directory.lose(random, severity)
            stack.extend(inner for inner in directory.entries.values() if isinstance(inner, Directory))
        self._forget_paths()
        return entries, sum(inode.lose(random, severity) for _, inode in self.files())

    def copied(self) -> Volume:
        """Returns a copy of the volume with the same files, directories and unsynced changes, and no locks."""
        made = Volume(self.now_ms, crashable=self.crashable, durable_directories=self.durable_directories)
        made.root = copy.deepcopy(self.root)
        made.boots, made.free_bytes = self.boots, self.free_bytes
        made._forget_paths()
        return made


def _walk(path: str, directory: Directory) -> Iterator[tuple[str, Inode]]:
    for name, inner in directory.entries.items():
        if isinstance(inner, Directory):
            yield from _walk(f"{path}/{name}", inner)
        else:
            yield f"{path}/{name}", inner


def _directories(directory: Directory) -> Iterator[Directory]:
    yield directory
    for inner in directory.entries.values():
        if isinstance(inner, Directory):
            yield from _directories(inner)
