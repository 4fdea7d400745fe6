"""Finds records by time: the time index narrows the search to a few batches, which are unpacked one by one.

Unpacking may have to wait, and segments may be deleted meanwhile. So each step of a search uses the segments that exist
at that time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.log.scan import CorruptBatchError, scan_headers
from penstock.protocol.errors import KafkaError
from penstock.records import lookup
from penstock.records.batches import crc_ok
from penstock.records.scan import Slices

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.log.segment import Segment
    from penstock.records.header import BatchHeader


class TimestampedOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


Search = Callable[[bytes], Slices[lookup.TimedOffset | None]]


class Candidate(NamedTuple):
    """Names a batch that may contain the record with the searched timestamp."""

    header: BatchHeader
    batch: bytes


async def first_at_or_after(log: Log, timestamp: int) -> TimestampedOffset | None:
    """Returns the first record of the log at or after `timestamp`; None if there is none."""
    from_offset = log.log_start_offset
    while (found := _candidate(log, next_with_time, timestamp, from_offset)) is not None:
        header = found.header
        search = partial(lookup.first_at_or_after, header, timestamp=timestamp, start_offset=from_offset)
        record = await _look_into(log, found, search, from_offset)
        if record is not None:
            return TimestampedOffset(record.timestamp, record.offset, header.partition_leader_epoch)
        from_offset = max(header.next_offset, log.log_start_offset)
    return None


async def first_with_max(log: Log) -> TimestampedOffset | None:
    """Returns the first record that has the largest timestamp of the log; None if no record has a timestamp."""
    from_offset = log.log_start_offset
    while (found := _candidate(log, next_with_max_time, from_offset)) is not None:
        header = found.header
        record = await _look_into(log, found, partial(lookup.latest, header), from_offset)
        if record is not None and record.offset >= from_offset:
            return TimestampedOffset(record.timestamp, record.offset, header.partition_leader_epoch)
        from_offset = max(header.next_offset, log.log_start_offset)
    return None


async def _look_into(log: Log, found: Candidate, search: Search, from_offset: int) -> lookup.TimedOffset | None:
    """Returns the record that the search finds in the batch; None if it finds no record.

    The records of a batch may be impossible to decode although its CRC is right. Such a batch counts as one record with
    the largest timestamp of its header, so that the search does not fail.
    """
    header, batch = found
    try:
        return await log.environment.unpacking.look_into(header, batch, search)
    except KafkaError:
        if not crc_ok(batch):
            raise
        return lookup.TimedOffset(header.max_timestamp, max(header.base_offset, from_offset))


def _candidate(log: Log, find: Callable[..., Candidate | None], *args: int) -> Candidate | None:
    try:
        return find(log.segments, *args)
    except CorruptBatchError as error:
        raise log.health.corrupt(error) from error
    except OSError as error:
        raise log.health.failed(error) from error


def next_with_time(segments: Sequence[Segment], timestamp: int, from_offset: int) -> Candidate | None:
    """Returns the first batch that ends at or above `from_offset` and whose max timestamp is at least `timestamp`."""
    for segment in segments:
        if segment.max_timestamp < timestamp:
            continue
        start = segment.index.lookup(max(segment.time_index.lookup(timestamp), from_offset))
        for position, header in scan_headers(segment.file, start, segment.size):
            if header.max_timestamp >= timestamp and header.last_offset >= from_offset:
                return Candidate(header, segment.file.pread(header.size, position))
    return None


def next_with_max_time(segments: Sequence[Segment], from_offset: int) -> Candidate | None:
    """Returns the first batch that ends at or above `from_offset` and has the largest timestamp of all segments."""
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
