"""Rewrites old segments as compacted `.cleaned` segments, usually in a helper process.

The helper process only reads and writes files, so it may die at any moment: the next start of the broker removes its
unfinished files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.log.scan import ScannedBatch, scan_headers, scan_verified
from penstock.log.segment import Segment
from penstock.log.swap import CLEANED_SUFFIX
from penstock.log.txn_index import AbortedTransaction
from penstock.records.compact import Compactor, LastRecord, LastRecords, OffsetMap, TransactionScan
from penstock.records.header import parse_header

if TYPE_CHECKING:
    from penstock.disk.api import Disk


@dataclass(slots=True)
class CompactionJob:
    directory: str
    #: (base offset, size) of every segment from the start of the log to the first that may not be compacted.
    segments: list[tuple[int, int]]
    #: The dirty part, which was never compacted, is [first_dirty_offset, first_uncleanable_offset).
    first_dirty_offset: int
    first_uncleanable_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    max_keys: int
    #: Aborted transactions of all these segments, in order.
    aborted: list[tuple[int, int, int, int]] = field(default_factory=list)
    #: Producer id → (last data offset or None, epoch).
    last_records: dict[int, tuple[int | None, int]] = field(default_factory=dict)
    #: Producers whose last batch or marker may be above the high watermark, so that a truncation may remove it.
    uncommitted_producers: list[int] = field(default_factory=list)
    #: False if tombstones and markers stay even after their delete horizon.
    drops_tombstones: bool = True

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(data: bytes) -> CompactionJob:
        fields: dict[str, Any] = json.loads(data)
        fields["segments"] = [(base, size) for base, size in fields["segments"]]
        fields["aborted"] = [tuple(each) for each in fields["aborted"]]
        fields["last_records"] = {int(key): tuple(value) for key, value in fields["last_records"].items()}
        return CompactionJob(**fields)


@dataclass(slots=True)
class CompactedGroup:
    #: Base offsets of the segments that the new one replaces; the first of them is its own base offset.
    sources: list[int]
    size: int
    has_aborted: bool


@dataclass(slots=True)
class CompactionResult:
    groups: list[CompactedGroup]
    #: Everything below is compacted now.
    end_offset: int
    records_read: int = 0
    records_kept: int = 0
    bytes_read: int = 0

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(data: bytes) -> CompactionResult:
        fields: dict[str, Any] = json.loads(data)
        fields["groups"] = [CompactedGroup(**each) for each in fields["groups"]]
        return CompactionResult(**fields)


class AbandonedError(Exception):
    """Raised inside a compaction when the broker no longer needs the result of the compaction."""


def compact(disk: Disk, job: CompactionJob, wanted: Callable[[], bool] = lambda: True) -> CompactionResult:
    """Writes the compacted segments of `job`.

    Raises CorruptBatchError if a segment is damaged; the caller must then keep all old segments. Calls `wanted`
    regularly, and raises AbandonedError once `wanted` returns False.
    """
    segments = [Segment(disk, job.directory, base, size=size) for base, size in job.segments]
    try:
        offsets = _learn(job, segments, wanted)
        if offsets.latest_offset < job.first_dirty_offset:
            # Everything is compacted already, or not even one batch fits into memory: nothing to do in this round.
            return CompactionResult([], job.first_uncleanable_offset if not len(offsets) else job.first_dirty_offset)
        end_offset = offsets.latest_offset + 1
        sources = [segment for segment in segments if segment.base_offset < end_offset]
        result = CompactionResult([], end_offset)
        transactions = TransactionScan()
        transactions.add_aborted(_aborted(job))
        compactor = Compactor(
            offsets,
            transactions,
            job.now_ms,
            job.delete_retention_ms,
            end_offset,
            {key: LastRecord(*value) for key, value in job.last_records.items()},
            _last_committed(job, sources),
            drops_tombstones=job.drops_tombstones,
        )
        for group in group_segments(job, sources):
            result.groups.append(_rewrite(disk, job, group, compactor, wanted))
        result.records_read = compactor.stats.records_read
        result.records_kept = compactor.stats.records_kept
        result.bytes_read = compactor.stats.bytes_read
        disk.sync_dir(job.directory)
        return result
    finally:
        for segment in segments:
            segment.close()


def _aborted(job: CompactionJob) -> list[AbortedTransaction]:
    return [AbortedTransaction(*each) for each in job.aborted]


def _batches(segment: Segment, wanted: Callable[[], bool]) -> Iterator[ScannedBatch]:
    for batch in scan_verified(segment.file, 0, segment.size):
        if not wanted():
            raise AbandonedError
        yield batch


def _learn(job: CompactionJob, segments: list[Segment], wanted: Callable[[], bool]) -> OffsetMap:
    """Reads the dirty part of the log and returns the latest offset of each key in it."""
    offsets = OffsetMap(job.first_dirty_offset, job.max_keys)
    transactions = TransactionScan()
    transactions.add_aborted(_aborted(job))
    for slot, segment in enumerate(segments):
        if slot + 1 < len(segments) and segments[slot + 1].base_offset <= job.first_dirty_offset:
            continue
        for batch in _batches(segment, wanted):
            if batch.header.base_offset >= job.first_uncleanable_offset:
                return offsets
            if not offsets.add_batch(batch.header, batch.data, transactions):
                return offsets
    return offsets


def _last_committed(job: CompactionJob, sources: list[Segment]) -> dict[int, LastRecord]:
    """Returns the last committed record of each producer in `job.uncommitted_producers`.

    Reads the segments `sources`, which hold only committed records.
    """
    last = LastRecords(job.uncommitted_producers)
    for segment in sources if job.uncommitted_producers else ():
        for _, header in scan_headers(segment.file, 0, segment.size):
            last.add(header)
    return last.found


def group_segments(job: CompactionJob, segments: list[Segment]) -> list[list[Segment]]:
    """Returns groups of adjacent segments. Each group fits into one new segment, even if no record is dropped."""
    groups: list[list[Segment]] = []
    room = index_room = 0
    for segment in segments:
        index_bytes = len(segment.index) * 8 + len(segment.time_index) * 12 if segment.size else 0
        fits = groups and segment.base_offset - groups[-1][0].base_offset < 1 << 30
        if fits and segment.size <= room and index_bytes <= index_room:
            groups[-1].append(segment)
            room -= segment.size
            index_room -= index_bytes
        else:
            groups.append([segment])
            room = job.segment_bytes - segment.size
            index_room = job.segment_index_bytes - index_bytes
    return groups


def _rewrite(
    disk: Disk, job: CompactionJob, group: list[Segment], compactor: Compactor, wanted: Callable[[], bool]
) -> CompactedGroup:
    new = Segment.create(
        disk,
        job.directory,
        group[0].base_offset,
        created_ms=job.now_ms,
        index_interval=job.index_interval_bytes,
        suffix=CLEANED_SUFFIX,
    )
    kept_aborts: list[AbortedTransaction] = []
    compactor.transactions.on_kept_abort = lambda each: kept_aborts.append(
        AbortedTransaction(each.producer_id, each.first_offset, each.last_offset, _stable(job, each.last_offset))
    )
    try:
        for segment in group:
            for batch in _batches(segment, wanted):
                cleaned = compactor.clean(batch.header, batch.data)
                if cleaned is not None:
                    new.append(parse_header(cleaned), cleaned, b"")
        for aborted in kept_aborts:
            new.append_aborted(aborted)
        new.seal()
        new.sync_files()
        return CompactedGroup([segment.base_offset for segment in group], new.size, bool(kept_aborts))
    finally:
        new.close()


def _stable(job: CompactionJob, last_offset: int) -> int:
    return next(stable for _, _, last, stable in job.aborted if last == last_offset)
