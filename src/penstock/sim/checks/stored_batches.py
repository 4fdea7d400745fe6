"""Reads the batches of a replica straight from the simulated disk.

A check must not read with the node's own code: that code would draw random numbers, and would take a log offline after
an injected disk fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.disk.volume import Directory, Inode, Volume
from penstock.log.segment import LOG_SUFFIX
from penstock.records.header import HEADER, HEADER_SIZE, LOG_OVERHEAD, MIN_BATCH_LENGTH

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.log.segment import Segment


class StoredBatch(NamedTuple):
    base_offset: int
    next_offset: int
    data: bytes


def batch_at(data: bytearray, position: int, end: int) -> StoredBatch | None:
    """Returns the batch at `position`; None if these bytes can't be a whole batch."""
    if position + HEADER_SIZE > end:
        return None
    fields = HEADER.unpack_from(data, position)
    base, length, last_delta = fields[0], fields[1], fields[6]
    stop = position + length + LOG_OVERHEAD
    if length < MIN_BATCH_LENGTH or stop > end or last_delta < 0:
        return None
    return StoredBatch(base, base + last_delta + 1, bytes(data[position:stop]))


def batches_of_directory(volume: Volume, path: str) -> Iterator[StoredBatch]:
    """Yields the batches of a log that no process has open, up to the first bytes that are not a batch."""
    directory = volume.find(path)
    if not isinstance(directory, Directory):
        return
    for name in sorted(each for each in directory.entries if each.endswith(LOG_SUFFIX)):
        inode = directory.entries[name]
        assert isinstance(inode, Inode)
        position, end = 0, len(inode.data)
        while (batch := batch_at(inode.data, position, end)) is not None:
            yield batch
            position += len(batch.data)
        if position < end:
            return


class Cursor:
    """Reads an open log from its start to its end, each batch once. After a truncation it begins again at the start of
    the log."""

    __slots__ = ("_position", "_segment", "_truncations", "log", "offset", "rewinds")

    def __init__(self, log: Log) -> None:
        self.log = log
        self.offset = -1
        """Every batch below this offset has been read."""
        self._segment: Segment | None = None
        self._position = 0
        self._truncations = log.truncations
        self.rewinds = 0
        """How often the cursor has started again, at the start of the log."""

    def rewind(self) -> None:
        """Makes the cursor read again from the start of the log."""
        self._segment = None
        self.offset = -1
        self.rewinds += 1

    def read(self, volume: Volume, end: int) -> Iterator[StoredBatch]:
        """Yields the batches that end at or below `end` and were not read yet. A batch counts as read when the caller
        asks for the next batch."""
        log = self.log
        if log.truncations != self._truncations:
            self._truncations = log.truncations
            self.rewind()
        if self.offset >= end:
            return
        start = log.segments.bases[0]
        if self.offset < start:
            self.rewinds += self.offset >= 0  # retention has deleted batches that were not read yet
            self.offset = start
            self._segment = None
        for segment in log.segments.starting_at(self.offset):
            inode = volume.find(segment.path(LOG_SUFFIX))
            if not isinstance(inode, Inode):
                return
            if segment is not self._segment:
                self._segment, self._position = segment, 0
            while (batch := batch_at(inode.data, self._position, segment.size)) is not None:
                if batch.next_offset > end:
                    return
                if batch.next_offset > self.offset:
                    yield batch
                    self.offset = batch.next_offset
                self._position += len(batch.data)
