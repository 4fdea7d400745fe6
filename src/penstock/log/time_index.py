"""Implements the time index of a segment.

Each entry (12 bytes) has the largest timestamp so far, and the last offset of the batch with this timestamp.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from contextlib import suppress

from penstock.disk.api import Disk
from penstock.log.entries import SPILL_ENTRIES, EntryFile
from penstock.log.offset_index import INT32

ENTRY_SIZE = 12
_ENTRY = struct.Struct(">qi")


class TimeIndex:
    __slots__ = ("_base", "_file", "_last_timestamp", "_offsets", "_timestamps")

    def __init__(self, disk: Disk, path: str, base_offset: int, *, new: bool = False) -> None:
        self._base = base_offset
        self._file = EntryFile(disk, path, ENTRY_SIZE, new=new)
        #: Entries that are not in the file yet.
        self._timestamps = array("q")
        self._offsets = array(INT32)
        self._last_timestamp: int | None = -1 if not self._file.stored else None

    def __len__(self) -> int:
        return self._file.stored + len(self._timestamps)

    @property
    def file(self) -> EntryFile:
        return self._file

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Adds an entry if `timestamp` is larger than the timestamps of all entries."""
        last = self._last_timestamp
        if last is None:
            last = self._last_timestamp = self.last[0]
        if timestamp <= last:
            return
        self._last_timestamp = timestamp
        self._timestamps.append(timestamp)
        self._offsets.append(offset - self._base)
        if len(self._timestamps) >= SPILL_ENTRIES:
            with suppress(OSError):  # they stay in memory; a flush that needs them in the file raises the error
                self.store()

    @property
    def last(self) -> tuple[int, int]:
        """Returns (timestamp, offset) of the newest entry; (-1, base offset) if there is no entry."""
        if self._timestamps:
            return self._timestamps[-1], self._base + self._offsets[-1]
        if not self._file.stored:
            return -1, self._base
        return self._stored_entry(self._file.stored - 1)

    def _stored_entry(self, slot: int) -> tuple[int, int]:
        timestamp, relative = _ENTRY.unpack(self._file.read(slot, 1))
        return timestamp, self._base + relative

    def lookup(self, timestamp: int) -> int:
        """Returns the offset at which a search for `timestamp` can start. All batches that end before this offset are
        older."""
        if self._timestamps and timestamp >= self._timestamps[0]:
            return self._base + self._offsets[bisect_right(self._timestamps, timestamp) - 1]
        low, high = 0, self._file.stored
        found = self._base
        while low < high:
            middle = (low + high) // 2
            stamp, offset = self._stored_entry(middle)
            if stamp <= timestamp:
                low, found = middle + 1, offset
            else:
                high = middle
        return found

    def truncate_to(self, offset: int) -> None:
        """Removes the index entries for offsets at or above `offset`."""
        relative = offset - self._base
        keep = bisect_left(self._offsets, relative)
        del self._timestamps[keep:]
        del self._offsets[keep:]
        if not keep:
            self._file.truncate(self._good_entries(relative))
        self._last_timestamp = self.last[0]

    def _good_entries(self, relative: int) -> int:
        """Counts the valid entries at the start of the index file. A crash may have damaged all later entries.

        Valid entries are in order, and their relative offsets are below `relative`.
        """
        if not self._file.stored:
            return 0
        last_timestamp, last_offset, keep = 0, -1, 0  # zeros are unwritten space
        data = self._file.read(0, self._file.stored)
        for timestamp, offset in _ENTRY.iter_unpack(data[: len(data) // ENTRY_SIZE * ENTRY_SIZE]):
            if not (last_timestamp < timestamp and last_offset <= offset < relative):
                break
            last_timestamp, last_offset, keep = timestamp, offset, keep + 1
        return keep

    def clear(self) -> None:
        del self._timestamps[:]
        del self._offsets[:]
        self._file.truncate(0)
        self._last_timestamp = -1

    def store(self) -> None:
        if self._timestamps:
            self._file.append(b"".join(map(_ENTRY.pack, self._timestamps, self._offsets)))
            del self._timestamps[:]
            del self._offsets[:]

    def entries(self) -> list[tuple[int, int]]:
        """Returns all index entries, for checks and tools."""
        stored = [self._stored_entry(slot) for slot in range(self._file.stored)]
        return stored + [(stamp, self._base + offset) for stamp, offset in zip(self._timestamps, self._offsets)]

    def is_sane(self) -> bool:
        """True if the first and the last entry of the index are in order: a cheap check."""
        if not self._file.stored:
            return True
        first, last = self._stored_entry(0), self.last
        return first[1] >= self._base and (len(self) == 1 or (first[0] < last[0] and first[1] <= last[1]))
