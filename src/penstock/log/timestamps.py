"""Finding records by time: the time index narrows it down to a few batches, only the last is opened.

A batch is read here and looked into by the caller, who may have to wait for that. So each step begins with the segments
of that moment: those of the step before may be gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.log.scan import scan_headers

if TYPE_CHECKING:
    from penstock.log.segment import Segment
    from penstock.records.header import BatchHeader


class TimestampedOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


class Candidate(NamedTuple):
    """A batch that may hold the record."""

    header: BatchHeader
    batch: bytes


def next_with_time(segments: Sequence[Segment], timestamp: int, from_offset: int) -> Candidate | None:
    """The first batch that ends at or above `from_offset` and claims a timestamp of `timestamp` or later."""
    for segment in segments:
        if segment.max_timestamp < timestamp:
            continue
        start = segment.index.lookup(max(segment.time_index.lookup(timestamp), from_offset))
        for position, header in scan_headers(segment.file, start, segment.size):
            if header.max_timestamp >= timestamp and header.last_offset >= from_offset:
                return Candidate(header, segment.file.pread(header.size, position))
    return None


def next_with_max_time(segments: Sequence[Segment], from_offset: int) -> Candidate | None:
    """The first batch that ends at or above `from_offset` and claims the largest timestamp of all."""
    newest: Segment | None = None
    for segment in segments:
        if segment.max_timestamp >= 0 and (newest is None or segment.max_timestamp > newest.max_timestamp):
            newest = segment
    if newest is None:
        return None
    start = newest.index.lookup(max(newest.time_index.lookup(newest.max_timestamp), from_offset))
    for position, header in scan_headers(newest.file, start, newest.size):
        if header.max_timestamp == newest.max_timestamp and header.last_offset >= from_offset:
            return Candidate(header, newest.file.pread(header.size, position))
    return None
