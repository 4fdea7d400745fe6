"""Keeps fixed-size entries in a file, and the newest entries in memory until they are written to the file.

An index needs its newest entries often and its old entries seldom, and a node has thousands of indexes. So entries are
added in memory, written to the file in bulk (always before the recovery point passes them), and then dropped from
memory.
"""

from __future__ import annotations

import errno

from penstock.check import check
from penstock.disk.api import Disk, File

#: Entries kept in memory before they are written out: two megabytes of log at the default index interval.
SPILL_ENTRIES = 512


class EntryFile:
    __slots__ = ("_disk", "_file", "_path", "entry_size", "exists", "stored")

    def __init__(self, disk: Disk, path: str, entry_size: int, *, new: bool = False) -> None:
        self._disk = disk
        self._path = path
        self._file: File | None = None
        self.entry_size = entry_size
        #: Whole entries in the file.
        self.stored = 0
        self.exists = False
        if not new:
            try:
                self.stored = disk.size(path) // entry_size
                self.exists = True
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise

    @property
    def path(self) -> str:
        return self._path

    def _opened(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self._path)
        return self._file

    def read(self, start: int, count: int) -> bytes:
        return self._opened().pread(count * self.entry_size, start * self.entry_size)

    def append(self, data: bytes) -> None:
        check(len(data) % self.entry_size == 0, "only whole entries go into an index")
        if not data:
            return
        file = self._opened()
        whole = self.stored * self.entry_size
        if file.size != whole:
            file.truncate(whole)  # the rest of a torn entry, or room that Kafka preallocated
        file.append(data)
        self.exists = True
        self.stored += len(data) // self.entry_size

    def truncate(self, count: int) -> None:
        """Truncates the file to its first `count` entries and syncs it, so that a crash does not bring the removed
        entries back."""
        if count < self.stored:
            file = self._opened()
            file.truncate(count * self.entry_size)
            file.sync_now()
            self.stored = count

    def moved(self, path: str) -> None:
        self._path = path
        if self._file is not None:
            self._file.path = path

    def create(self) -> None:
        """Creates the empty file of entries if it is missing."""
        if not self.exists:
            self._disk.write_new(self._path, b"")
            self.exists = True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
