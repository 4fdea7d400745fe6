"""What a machine has on its disk, and what of it a loss of power leaves.

Every write goes to the page cache, which a killed process leaves behind and a power cut does not. Each file remembers
how to undo what was done to it since its last fsync, each directory what was done to its entries since it was last
synced. A power cut undoes a suffix of each of these lists, on its own for every file and directory, and tears the last
change that stays: at any byte, with zeros behind, or with whole sectors missing in the middle.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import NamedTuple

from penstock.disk.api import DiskError

SECTOR = 512


class _Change(NamedTuple):
    sequence: int
    offset: int
    #: Bytes written; -1: the file was cut to `offset`.
    length: int
    old: bytes
    old_size: int


class Severity(Enum):
    """How much of what was not synced a power cut takes."""

    NOTHING = "nothing"
    EVERYTHING = "everything unsynced"
    SOME = "some of what was unsynced"


@dataclass(slots=True, eq=False)
class Inode:
    data: bytearray = field(default_factory=bytearray)
    mtime_ms: int = 0
    sequence: int = 0
    #: An fsync failed: what was not on disk then never gets there, whatever a later fsync says.
    poisoned: bool = False
    pending: list[_Change] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        content = self.data
        size = len(content)
        self.sequence += 1
        old = bytes(content[offset : offset + len(data)]) if offset < size else b""
        self.pending.append(_Change(self.sequence, offset, len(data), old, size))
        if offset > size:
            content.extend(bytes(offset - size))
        content[offset : offset + len(data)] = data

    def truncate(self, size: int) -> None:
        content = self.data
        before = len(content)
        self.sequence += 1
        self.pending.append(_Change(self.sequence, size, -1, bytes(content[size:]), before))
        if size <= before:
            del content[size:]
        else:
            content.extend(bytes(size - before))

    def synced(self, sequence: int) -> None:
        """Everything up to this change is on disk."""
        if not self.poisoned:
            pending = self.pending
            if not pending or pending[-1].sequence <= sequence:
                pending.clear()
            else:
                self.pending = [change for change in pending if change.sequence > sequence]

    def lose(self, random: Random, severity: Severity) -> int:
        """Power is gone. Returns how many changes went."""
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
        """All of it but the first `kept` bytes of a write."""
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
            content += bytes(random.randint(0, end - min(size, end)))  # the size was on disk, the data was not
        elif kept > SECTOR and random.random() < 0.25:
            start = change.offset + random.randrange(kept // SECTOR) * SECTOR
            stop = min(start + SECTOR, change.offset + kept)
            content[start:stop] = bytes(stop - start)


@dataclass(slots=True, eq=False)
class Directory:
    entries: dict[str, Inode | Directory] = field(default_factory=dict)
    #: (name, what it was, what it is) for every change since the last sync; those of one step happen together.
    pending: list[list[tuple[str, Inode | Directory | None, Inode | Directory | None]]] = field(default_factory=list)

    def link(self, *step: tuple[str, Inode | Directory | None]) -> None:
        done: list[tuple[str, Inode | Directory | None, Inode | Directory | None]] = []
        for name, target in step:
            done.append((name, self.entries.get(name), target))
            self._set(name, target)
        self.pending.append(done)

    def _set(self, name: str, target: Inode | Directory | None) -> None:
        if target is None:
            self.entries.pop(name, None)
        else:
            self.entries[name] = target

    def lose(self, random: Random, severity: Severity) -> int:
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


class Platter:
    """The disk of one machine. Processes use it through a `SimDisk` each."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.root = Directory()
        #: How often the machine has lost power.
        self.boots = 0
        self.locks: set[str] = set()
        #: Bytes that may still be written; None: no end to them.
        self.free_bytes: int | None = None
        self._found: dict[str, Directory] = {"": self.root, "/": self.root}

    # Finding things.

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
            raise DiskError(errno.EISDIR, "it is a directory", path)
        if found is None:
            if not create:
                raise DiskError(errno.ENOENT, "no such file", path)
            found = Inode(mtime_ms=self.now_ms())
            directory.link((name, found))
        return found

    def files(self, start: str = "") -> Iterator[tuple[str, Inode]]:
        """Every file below `start` with its path."""
        found = self.find(start) if start else self.root
        if isinstance(found, Directory):
            yield from _walk(start.rstrip("/"), found)

    # Changing the tree.

    def mkdir(self, path: str) -> None:
        found: Inode | Directory = self.root
        for part in filter(None, path.split("/")):
            if not isinstance(found, Directory):
                raise DiskError(errno.ENOTDIR, "it is a file", path)
            inner = found.entries.get(part)
            if inner is None:
                inner = Directory()
                found.link((part, inner))
            found = inner

    def rename(self, old: str, new: str) -> None:
        source, old_name = self.split(old)
        target, new_name = self.split(new)
        moved = source.entries.get(old_name)
        if moved is None:
            raise DiskError(errno.ENOENT, "no such file", old)
        there = target.entries.get(new_name)
        if isinstance(there, Directory) and there.entries:
            raise DiskError(errno.ENOTEMPTY, "there is a directory with things in it", new)
        if source is target:
            source.link((old_name, None), (new_name, moved))
        else:
            target.link((new_name, moved))
            source.link((old_name, None))
        if isinstance(moved, Directory):
            self._forget_paths()

    def remove(self, path: str) -> None:
        directory, name = self.split(path)
        if isinstance(directory.entries.get(name), Inode):
            directory.link((name, None))

    def remove_tree(self, path: str) -> None:
        directory, name = self.split(path)
        if name in directory.entries:
            directory.link((name, None))
            self._forget_paths()

    def _forget_paths(self) -> None:
        self._found = {"": self.root, "/": self.root}

    def sync_all(self) -> None:
        """As if a long time had passed."""
        for directory in _directories(self.root):
            directory.pending.clear()
        for _, inode in self.files():
            inode.pending.clear()

    # Power.

    def lose_power(self, random: Random, severity: Severity = Severity.SOME) -> tuple[int, int]:
        """Returns how many changes of directories and of files are gone."""
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
