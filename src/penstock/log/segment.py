"""Implements a segment: consecutive batches in one file, with the indexes of this file.

A batch is found in three ways, cheapest first: a short map of the newest batches, the sparse offset index, and a walk
over headers from the position that the index gives. Index objects are created on first use, because most segments are
idle.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from typing import TYPE_CHECKING

from penstock.disk.api import Disk, File
from penstock.log.offset_index import OffsetIndex
from penstock.log.scan import CorruptBatchError, scan_headers
from penstock.log.time_index import TimeIndex
from penstock.log.txn_index import AbortedTransaction, read_txn_index
from penstock.records.header import LOG_OVERHEAD, BatchHeader

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger(__name__)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
DELETED_SUFFIX = ".deleted"

#: The newest batches whose positions are kept in memory; half of them are dropped when there are this many.
TAIL_BATCHES = 512
MAX_RELATIVE_OFFSET = (1 << 31) - 1


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    return f"{directory}/{base_offset:020d}{suffix}"


class Segment:
    __slots__ = (
        "_aborted",
        "_first_timestamp",
        "_index",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_tail_ends",
        "_tail_floor",
        "_tail_positions",
        "_time_index",
        "base_offset",
        "bytes_since_index",
        "checked_from",
        "checked_to",
        "created_ms",
        "directory",
        "disk",
        "file",
        "has_aborted",
        "index_interval",
        "size",
        "suffix",
        "synced_size",
        "trusted_from",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        size: int = 0,
        has_aborted: bool = False,
        created_ms: int = 0,
        index_interval: int = 4096,
        suffix: str = "",
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.base_offset = base_offset
        #: Added to the file names while the segment is being compacted (`.cleaned`, `.swap`) or deleted (`.deleted`).
        self.suffix = suffix
        self.size = size
        self.file: File = disk.open(segment_path(directory, base_offset, LOG_SUFFIX) + suffix, size=size)
        self.index_interval = index_interval
        self.created_ms = created_ms
        self.has_aborted = has_aborted
        self.bytes_since_index = 0
        #: Bytes that have been synced.
        self.synced_size = 0
        #: Checksums of the bytes from here on were verified when they were appended or recovered. Of the bytes before,
        #: those between `checked_from` and `checked_to` have been verified since.
        self.trusted_from = size
        self.checked_from = self.checked_to = 0
        self._index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._aborted: list[AbortedTransaction] | None = None if has_aborted else []
        self._first_timestamp: int | None = None
        self._max_timestamp: int | None = None if size else -1
        self._max_timestamp_offset = base_offset
        #: The offset after each of the newest batches, and the position of each; only batches from `_tail_floor` on.
        self._tail_ends: list[int] = []
        self._tail_positions: list[int] = []
        self._tail_floor = base_offset if not size else -1

    @staticmethod
    def create(
        disk: Disk, directory: str, base_offset: int, *, created_ms: int, index_interval: int, suffix: str = ""
    ) -> Segment:
        disk.create(segment_path(directory, base_offset, LOG_SUFFIX) + suffix)
        return Segment(
            disk, directory, base_offset, created_ms=created_ms, index_interval=index_interval, suffix=suffix
        )

    def path(self, suffix: str) -> str:
        return segment_path(self.directory, self.base_offset, suffix) + self.suffix

    # Indexes.

    @property
    def index(self) -> OffsetIndex:
        if self._index is None:
            self._open_indexes()
        assert self._index is not None
        return self._index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._open_indexes()
        assert self._time_index is not None
        return self._time_index

    def _open_indexes(self) -> None:
        index = OffsetIndex(self.disk, self.path(INDEX_SUFFIX), self.base_offset)
        time_index = TimeIndex(self.disk, self.path(TIME_INDEX_SUFFIX), self.base_offset)
        self._index, self._time_index = index, time_index
        if not self.size:
            index.clear()
            time_index.clear()
            return
        complete = index.file.exists and time_index.file.exists
        if not complete or not index.is_sane(self.size) or not time_index.is_sane():
            self.rebuild_indexes()

    def is_index_full(self, max_index_bytes: int) -> bool:
        index, time_index = self._index, self._time_index
        if index is None or time_index is None:
            return False
        return len(index) >= max_index_bytes // 8 or len(time_index) >= max_index_bytes // 12 - 1

    def rebuild_indexes(self) -> None:
        """Rebuilds both indexes from the headers of the whole segment."""
        self.reset_indexes(0)
        size, self.size = self.size, 0
        try:
            for position, header in scan_headers(self.file, 0, size):
                if header.last_offset - self.base_offset > MAX_RELATIVE_OFFSET:  # the checksum does not cover offsets
                    reason = f"the batch's offset {header.base_offset} is too large for the segment"
                    raise CorruptBatchError(self.file.path, position, reason)
                self.account(header, position)
        finally:
            self.size = size

    def reset_indexes(self, offset: int) -> None:
        """Removes index entries at or above `offset`, and the state derived from them. Offset 0 removes all entries.

        The index files need not be valid: a crash may have left any bytes above `offset`.
        """
        if self._index is None or self._time_index is None:
            self._index = OffsetIndex(self.disk, self.path(INDEX_SUFFIX), self.base_offset)
            self._time_index = TimeIndex(self.disk, self.path(TIME_INDEX_SUFFIX), self.base_offset)
        if offset <= self.base_offset:
            self._index.clear()
            self._time_index.clear()
            self._max_timestamp = -1
            self._max_timestamp_offset = self.base_offset
            self._first_timestamp = None
            self.reset_tail(self.base_offset)
        else:
            self._index.truncate_to(offset)
            self._time_index.truncate_to(offset)
            self._max_timestamp = None
            self.reset_tail(-1)
        self.bytes_since_index = 0

    def reset_tail(self, floor: int) -> None:
        self._tail_ends.clear()
        self._tail_positions.clear()
        self._tail_floor = floor

    # Appending.

    def append(self, header: BatchHeader, head: Buffer, tail: Buffer) -> None:
        """Writes the batch, and adds it to size and indexes.

        If the write fails, the segment is unchanged. The steps after the write can't fail.
        """
        if self._index is None:
            self._open_indexes()
        self.file.append(head, tail)
        self.account(header, self.size)

    def append_many(self, headers: list[BatchHeader], data: list[Buffer]) -> None:
        """Writes several batches with one call, and adds them to size and indexes."""
        if self._index is None:
            self._open_indexes()
        self.file.append(*data)
        for header in headers:
            self.account(header, self.size)

    async def append_many_later(self, headers: list[BatchHeader], data: Buffer) -> None:
        """Appends batches as `append_many` does, without blocking the event loop. No other call may change the segment
        meanwhile."""
        if self._index is None:
            self._open_indexes()
        await self.file.append_later(data)
        for header in headers:
            self.account(header, self.size)

    def account(self, header: BatchHeader, position: int) -> None:
        """Adds a batch to size, indexes and timestamps. The batch was written at `position`, the previous end of the
        file."""
        index, time_index = self._index, self._time_index
        if index is None or time_index is None:
            self._open_indexes()
            index, time_index = self.index, self.time_index
        last_offset = header.base_offset + header.last_offset_delta
        timestamp = header.max_timestamp
        max_timestamp = self._max_timestamp
        if max_timestamp is None:
            max_timestamp = self.max_timestamp
        if timestamp > max_timestamp:
            self._max_timestamp = timestamp
            self._max_timestamp_offset = last_offset
        size = header.batch_length + LOG_OVERHEAD
        if self.bytes_since_index > self.index_interval:
            index.append(last_offset, position)
            time_index.maybe_append(self._max_timestamp or 0, self._max_timestamp_offset)
            self.bytes_since_index = size
        else:
            self.bytes_since_index += size
        if not position:
            self._first_timestamp = timestamp
        self.size = position + size
        ends = self._tail_ends
        if not ends and self._tail_floor < 0:
            self._tail_floor = header.base_offset
        ends.append(last_offset + 1)
        self._tail_positions.append(position)
        if len(ends) > TAIL_BATCHES:
            forget = TAIL_BATCHES // 2
            self._tail_floor = ends[forget - 1]
            del ends[:forget]
            del self._tail_positions[:forget]

    def append_aborted(self, aborted: AbortedTransaction) -> None:
        self.aborted.append(aborted)
        self.has_aborted = True
        file = self.disk.open(self.path(TXN_INDEX_SUFFIX))
        try:
            file.append(aborted.pack())
        finally:
            file.close()

    # Looking up.

    def locate(self, offset: int) -> tuple[int, int] | None:
        """Returns (position, size) of the first batch that ends at or after `offset`; None if the segment has no such
        batch."""
        ends = self._tail_ends
        if ends and offset >= self._tail_floor:
            slot = bisect_right(ends, offset)
            if slot == len(ends):
                return None
            positions = self._tail_positions
            position = positions[slot]
            after = positions[slot + 1] if slot + 1 < len(positions) else self.size
            return position, after - position
        for position, header in scan_headers(self.file, self.index.lookup(offset), self.size):
            if header.base_offset + header.last_offset_delta >= offset:
                return position, header.batch_length + LOG_OVERHEAD
        return None

    def position_of(self, offset: int) -> int:
        """Returns the file position directly after the last batch that ends before `offset`."""
        found = self.locate(offset)
        return found[0] if found is not None else self.size

    @property
    def max_timestamp(self) -> int:
        if self._max_timestamp is None:
            self._load_max_timestamp()
        return self._max_timestamp if self._max_timestamp is not None else -1

    @property
    def max_timestamp_offset(self) -> int:
        if self._max_timestamp is None:
            self._load_max_timestamp()
        return self._max_timestamp_offset

    def _load_max_timestamp(self) -> None:
        # The time index has the largest timestamp up to the last indexed batch; a few headers may follow that batch.
        timestamp, offset = self.time_index.last
        last = self.index.last
        try:
            for _, header in scan_headers(self.file, last[1] if last is not None else 0, self.size):
                if header.max_timestamp > timestamp:
                    timestamp, offset = header.max_timestamp, header.last_offset
        except CorruptBatchError as error:  # readers of the batch get the error: appends need not stop
            logger.warning("retention can't read the timestamps of records after a damaged batch: %s", error)
        self._max_timestamp, self._max_timestamp_offset = timestamp, offset

    def last_timestamp_fits(self) -> bool:
        """True if the last entry of the time index has the timestamp of its batch.

        After a power loss, the last bytes of an unsynced entry may be zeros. Its offset is then too low, and belongs to
        an older batch. If the last byte of the offset is not zero, the entry is complete, and the batch is not read.
        """
        timestamp, offset = self.time_index.last
        if timestamp < 0 or (offset - self.base_offset) & 0xFF:
            return True
        found = self.locate(offset)
        if found is None:
            return False
        return next(scan_headers(self.file, found[0], sum(found)))[1].max_timestamp == timestamp

    @property
    def first_timestamp(self) -> int | None:
        """Returns the largest timestamp of the first batch; None in an empty segment. segment.ms counts from this
        time."""
        if self._first_timestamp is None and self.size:
            for _, header in scan_headers(self.file, 0, self.size):
                self._first_timestamp = header.max_timestamp
                break
        return self._first_timestamp

    @property
    def aborted(self) -> list[AbortedTransaction]:
        if self._aborted is None:
            self._aborted = read_txn_index(self.base_offset, self.disk.read_bytes(self.path(TXN_INDEX_SUFFIX)))
        return self._aborted

    # Whole files.

    def seal(self) -> None:
        """Ends the segment: indexes the last timestamp and completes both index files. No append may follow."""
        if self.size:
            _ = self.index
        self.store_indexes()
        self.reset_tail(-1)

    def store_indexes(self) -> None:
        """Adds the largest timestamp to the time index, then writes the index entries from memory to the files.

        So a later `seal` adds nothing to an index file that a flush has already synced.
        """
        if self._index is None or self._time_index is None:
            return
        if self.size:
            self._time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
        self._index.store()
        self._time_index.store()
        self._index.file.create()
        self._time_index.file.create()

    def boundary(self, offset: int) -> int:
        """Returns `offset`, or the base offset of the batch that contains `offset`: a log can be truncated only between
        batches.
        """
        found = self.locate(offset)
        if found is None:
            return offset
        header = next(scan_headers(self.file, found[0], found[0] + found[1]))[1]
        return min(offset, header.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Removes every batch that ends at or after `offset`, and syncs the file before it returns."""
        position = self.position_of(offset)
        self.file.truncate(position)
        self.file.sync_now()
        self.size = self.synced_size = position
        self.trusted_from = min(self.trusted_from, position)
        self.checked_to = min(self.checked_to, position)
        self.reset_indexes(offset if position else 0)
        if self.has_aborted:
            self.replace_aborted([each for each in self.aborted if each.last_offset < offset])

    def replace_aborted(self, aborted: list[AbortedTransaction]) -> None:
        self._aborted = aborted
        self.has_aborted = bool(aborted)
        if aborted:
            self.disk.write_atomic(self.path(TXN_INDEX_SUFFIX), b"".join(each.pack() for each in aborted))
        else:
            self.disk.remove(self.path(TXN_INDEX_SUFFIX))

    def needs_check(self, position: int, end: int) -> bool:
        """True if an earlier process wrote some of the bytes from `position` to `end` and they are not verified yet."""
        if position >= self.trusted_from:
            return False
        return position < self.checked_from or min(end, self.trusted_from) > self.checked_to

    def mark_checked(self, position: int, end: int) -> None:
        if self.checked_from <= position <= self.checked_to:
            self.checked_to = max(self.checked_to, end)
        else:
            self.checked_from, self.checked_to = position, end

    def change_suffix(self, suffix: str) -> None:
        """Renames the segment's files to the new suffix; open handles stay valid.

        After a crash, the suffix of the data file is the suffix of the segment. The data file is renamed first for
        `.deleted`, and last for any other suffix. So a segment in use always has its index files, even after a crash.
        """
        old = {each: self.path(each) for each in SUFFIXES}
        self.suffix = suffix
        for each in SUFFIXES if suffix == DELETED_SUFFIX else reversed(SUFFIXES):
            if each == LOG_SUFFIX or self.disk.exists(old[each]):
                self.disk.rename(old[each], self.path(each))
        self._follow_path()

    def moved_to(self, directory: str) -> None:
        """Updates the paths of the segment's files after the log's directory was renamed; open handles stay valid."""
        self.directory = directory
        self._follow_path()

    def _follow_path(self) -> None:
        self.file.path = self.path(LOG_SUFFIX)
        if self._index is not None and self._time_index is not None:
            self._index.file.moved(self.path(INDEX_SUFFIX))
            self._time_index.file.moved(self.path(TIME_INDEX_SUFFIX))

    @property
    def touched(self) -> bool:
        """True if this process has appended to the segment or read its indexes."""
        return self._index is not None

    def sync_files(self) -> None:
        """Syncs all files of a segment to which no more batches are appended."""
        for each in SUFFIXES:
            if self.disk.exists(self.path(each)):
                self.disk.sync_file(self.path(each))
        self.synced_size = self.size

    def remove_files(self) -> None:
        self.close()
        for each in SUFFIXES:
            self.disk.remove(self.path(each))

    def close(self) -> None:
        self.file.close()
        if self._index is not None and self._time_index is not None:
            self._index.file.close()
            self._time_index.file.close()
