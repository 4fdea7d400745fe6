"""Finding records by time: the time index narrows it down to a few batches, only the last is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.log.scan import scan_headers
from penstock.records.lookup import first_at_or_after, latest

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
    """The record with the largest timestamp: of several, the first."""
    newest: Segment | None = None
    for segment in segments:
        if segment.max_timestamp >= 0 and (newest is None or segment.max_timestamp > newest.max_timestamp):
            newest = segment
    if newest is None:
        return None
    start = newest.index.lookup(newest.time_index.lookup(newest.max_timestamp))
    for position, header in scan_headers(newest.file, start, newest.size):
        if header.max_timestamp == newest.max_timestamp:
            found = latest(newest.file.pread(header.size, position))
            if found is not None and found.offset >= from_offset:
                return TimestampedOffset(found.timestamp, found.offset, header.partition_leader_epoch)
    return None


def _first_record(
    segment: Segment, position: int, header: BatchHeader, timestamp: int, from_offset: int
) -> TimestampedOffset | None:
    found = first_at_or_after(segment.file.pread(header.size, position), timestamp, from_offset)
    if found is None:
        return None
    return TimestampedOffset(found.timestamp, found.offset, header.partition_leader_epoch)
