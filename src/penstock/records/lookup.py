"""Finds a record by its time inside one batch. The caller skips whole batches by their max timestamp.

The caller passes the records unpacked. A client decides how many records a batch has, so both searches are generators
that let other tasks run in between (see `scan`).
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.protocol.vocabulary import NO_TIMESTAMP
from penstock.records.header import BatchHeader
from penstock.records.scan import Slices, record_times


class TimedOffset(NamedTuple):
    timestamp: int
    offset: int


def first_at_or_after(
    header: BatchHeader, data: bytes, timestamp: int, start_offset: int = 0
) -> Slices[TimedOffset | None]:
    """Returns the first record at or after `start_offset` whose timestamp is `timestamp` or later.

    Returns None if the batch has no such record.
    """
    if header.max_timestamp < timestamp:
        return None
    for times in record_times(header, data):
        for offset, time in times:
            if time >= timestamp and offset >= start_offset:
                return TimedOffset(time, offset)
        yield
    return None


def latest(header: BatchHeader, data: bytes) -> Slices[TimedOffset | None]:
    """Returns the first record with the largest timestamp of the batch; None if the batch has no timestamps.

    With LogAppendTime all records have the same timestamp; then returns the last record.
    """
    if header.max_timestamp == NO_TIMESTAMP or header.records_count == 0:
        return None
    if header.log_append_time:
        return TimedOffset(header.max_timestamp, header.last_offset)
    best: TimedOffset | None = None
    for times in record_times(header, data):
        for offset, time in times:
            if best is None or time > best.timestamp:
                best = TimedOffset(time, offset)
        yield
    return best
