"""Implements the offset index of a segment: sparse (relative offset, position) pairs, eight bytes each.

An entry holds the last offset of a batch, relative to the base offset, and the position where that batch starts.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from contextlib import suppress

from penstock.disk.api import Disk
from penstock.log.entries import SPILL_ENTRIES, EntryFile

ENTRY_SIZE = 8
#: Entries that the last step of a search reads at once.
BLOCK = 512
#: The array type that is 32 bits wide: the file holds its bytes, swapped.
INT32 = "i" if array("i").itemsize == 4 else "l"
_ENTRY = struct.Struct(">ii")


class OffsetIndex:
    __slots__ = ("_base", "_file", "_marks", "_offsets", "_positions")

    def __init__(self, disk: Disk, path: str, base_offset: int, *, new: bool = False) -> None:
        self._base = base_offset
        self._file = EntryFile(disk, path, ENTRY_SIZE, new=new)
        #: Entries that are not in the file yet.
        self._offsets = array(INT32)
        self._positions = array(INT32)
        #: The offset in every BLOCK-th entry of the file, as far as look-ups have read them.
        self._marks: array[int] | None = None

    def __len__(self) -> int:
        return self._file.stored + len(self._offsets)

    @property
    def file(self) -> EntryFile:
        return self._file

    def append(self, offset: int, position: int) -> None:
        self._offsets.append(offset - self._base)
        self._positions.append(position)
        if len(self._offsets) >= SPILL_ENTRIES:
            with suppress(OSError):  # they stay in memory; a flush that needs them in the file raises the error
                self.store()

    def lookup(self, offset: int) -> int:
        """Returns the position of the last indexed batch that ends at or before `offset`; 0 if there is none."""
        relative = offset - self._base
        offsets = self._offsets
        if offsets and relative >= offsets[0]:
            return self._positions[bisect_right(offsets, relative) - 1]
        if not self._file.stored:
            return 0
        return self._lookup_stored(relative)

    def _lookup_stored(self, relative: int) -> int:
        stored = self._file.stored
        block = 0
        if stored > BLOCK:
            marks = self._marks
            if marks is None:
                marks = self._marks = array(INT32)
            while len(marks) * BLOCK < stored:
                marks.append(self._stored_entry(len(marks) * BLOCK)[0])
            block = max(0, bisect_right(marks, relative) - 1) * BLOCK
        offsets, positions = _unpack(self._file.read(block, min(BLOCK, stored - block)))
        slot = bisect_right(offsets, relative) - 1
        return positions[slot] if slot >= 0 else 0

    def first_past(self, position: int) -> int | None:
        """Returns the offset of the first entry whose position is at least `position`; None if there is no such
        entry."""
        low, high = 0, self._file.stored
        while low < high:
            middle = (low + high) // 2
            if self._stored_entry(middle)[1] < position:
                low = middle + 1
            else:
                high = middle
        if low < self._file.stored:
            return self._base + self._stored_entry(low)[0]
        slot = bisect_left(self._positions, position)
        return self._base + self._offsets[slot] if slot < len(self._offsets) else None

    def _stored_entry(self, slot: int) -> tuple[int, int]:
        offset, position = _ENTRY.unpack(self._file.read(slot, 1))
        return offset, position

    @property
    def last(self) -> tuple[int, int] | None:
        """Returns (offset, position) of the newest entry; None if there is no entry."""
        if self._offsets:
            return self._base + self._offsets[-1], self._positions[-1]
        if not self._file.stored:
            return None
        relative, position = self._stored_entry(self._file.stored - 1)
        return self._base + relative, position

    def truncate_to(self, offset: int) -> None:
        """Removes the index entries for offsets at or above `offset`."""
        self._marks = None
        relative = offset - self._base
        if self._offsets and self._offsets[0] < relative:
            keep = bisect_left(self._offsets, relative)
            del self._offsets[keep:]
            del self._positions[keep:]
            return
        del self._offsets[:]
        del self._positions[:]
        self._file.truncate(self._good_entries(relative))

    def _good_entries(self, relative: int) -> int:
        """Counts the valid entries at the start of the index file. A crash may have damaged all later entries.

        Valid entries are in order, and their relative offsets are below `relative`.
        """
        if not self._file.stored:
            return 0
        last_offset, last_position, keep = (
            -1,
            0,
            0,
        )  # a segment's first batch has no entry, so zeros are unwritten space
        for offset, position in zip(*_unpack(self._file.read(0, self._file.stored))):
            if not (last_offset < offset < relative and last_position < position):
                break
            last_offset, last_position, keep = offset, position, keep + 1
        return keep

    def clear(self) -> None:
        self._marks = None
        del self._offsets[:]
        del self._positions[:]
        self._file.truncate(0)

    def store(self) -> None:
        """Writes all index entries to the file, without a sync."""
        if self._offsets:
            pairs = array(INT32, bytes(len(self._offsets) * ENTRY_SIZE))
            pairs[0::2] = self._offsets
            pairs[1::2] = self._positions
            if sys.byteorder == "little":
                pairs.byteswap()
            self._file.append(pairs.tobytes())
            del self._offsets[:]
            del self._positions[:]

    def entries(self) -> list[tuple[int, int]]:
        """Returns all index entries, for checks and tools."""
        offsets, positions = _unpack(self._file.read(0, self._file.stored)) if self._file.stored else ((), ())
        stored = [(self._base + offset, position) for offset, position in zip(offsets, positions)]
        return stored + [(self._base + offset, pos) for offset, pos in zip(self._offsets, self._positions)]

    def is_sane(self, log_size: int) -> bool:
        """True if the first and the last entry fit a log of this size: a cheap check."""
        last = self.last
        if last is None:
            return True
        if self._file.stored:
            first = self._stored_entry(0)
            if first[0] < 0 or first[1] < 0 or (len(self) > 1 and first >= (last[0] - self._base, last[1])):
                return False
        return last[0] >= self._base and 0 <= last[1] < log_size


def _unpack(data: bytes) -> tuple[array[int], array[int]]:
    pairs = array(INT32)
    pairs.frombytes(data[: len(data) // ENTRY_SIZE * ENTRY_SIZE])
    if sys.byteorder == "little":
        pairs.byteswap()
    return pairs[0::2], pairs[1::2]
