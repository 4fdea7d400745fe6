"""Finding records by time: the time index narrows it down to a few batches, only the last is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.log.scan import scan_headers
from penstock.records.record import read_records

if TYPE_CHECKING:
    from penstock.log.segment import Segment
    from penstock.records.header import BatchHeader


class TimestampedOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


def find_timestamp(segments: Sequence[Segment], timestamp: int, from_offset: int) -> TimestampedOffset | None:
    """The first record at or above `from_offset` whose timestamp is `timestamp` or later."""
    for segment in segments:
        if segment.max_timestamp < timestamp:
            continue
        start = segment.index.lookup(max(segment.time_index.lookup(timestamp), from_offset))
        for position, header in scan_headers(segment.file, start, segment.size):
            if header.max_timestamp >= timestamp and header.last_offset >= from_offset:
                found = _first_record(segment, position, header, timestamp, from_offset)
                if found is not None:
                    return found
    return None


def find_max_timestamp(segments: Sequence[Segment], from_offset: int) -> TimestampedOffset | None:
    newest: Segment | None = None
    for segment in segments:
        if segment.max_timestamp >= 0 and (newest is None or segment.max_timestamp > newest.max_timestamp):
            newest = segment
    if newest is None:
        return None
    return find_timestamp([newest], newest.max_timestamp, from_offset)


def _first_record(
    segment: Segment, position: int, header: BatchHeader, timestamp: int, from_offset: int
) -> TimestampedOffset | None:
    batch = segment.file.pread(header.size, position)
    for record in read_records(batch):
        if record.timestamp >= timestamp and record.offset >= from_offset:
            return TimestampedOffset(record.timestamp, record.offset, header.partition_leader_epoch)
    return None
