"""Finding a record by its time inside one batch; the caller passes over whole batches by their max timestamp."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.records.header import NO_TIMESTAMP, parse_header
from penstock.records.scan import record_times

if TYPE_CHECKING:
    from typing_extensions import Buffer


class TimedOffset(NamedTuple):
    timestamp: int
    offset: int


def first_at_or_after(batch: Buffer, timestamp: int, start_offset: int = 0) -> TimedOffset | None:
    """The first record of the batch, from `start_offset` on, that is not older than `timestamp`."""
    header = parse_header(batch)
    if header.max_timestamp < timestamp:
        return None
    for offset, time in record_times(header, batch):
        if time >= timestamp and offset >= start_offset:
            return TimedOffset(time, offset)
    return None


def latest(batch: Buffer) -> TimedOffset | None:
    """The record with the batch's max timestamp: the first of several, but the last where the broker set the time."""
    header = parse_header(batch)
    if header.max_timestamp == NO_TIMESTAMP or header.records_count == 0:
        return None
    if header.log_append_time:
        return TimedOffset(header.max_timestamp, header.last_offset)
    best: TimedOffset | None = None
    for offset, time in record_times(header, batch):
        if best is None or time > best.timestamp:
            best = TimedOffset(time, offset)
    return best
