"""Walks over a batch's records quickly and decodes only the wanted parts.

A client decides how many records a batch holds. So a walk on the event loop is a generator: it yields after every
`SLICE_RECORDS` records (a slice), so that other tasks can run, and returns its result at the end.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.header import BatchHeader
from penstock.records.record import MAX_UNCOMPRESSED_BYTES, invalid, records_payload
from penstock.records.varint import read_varint, read_varlong

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")
#: Work in slices: each `next` does one slice, and the last one returns the result.
Slices = Generator[None, None, T]

#: Records of one slice, which takes less than a millisecond.
SLICE_RECORDS = 1_000
#: A batch with at most one slice of records and this many bytes is examined in one step.
SMALL_PACKED_BYTES = 16 * 1024
SMALL_UNPACKED_BYTES = 64 * 1024


def finish(work: Slices[T]) -> T:
    """Runs the generator `work` to its end and returns its result.

    No other task runs meanwhile. So this function is used only for small batches and in helper processes.
    """
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


def unpacked_if_small(header: BatchHeader, batch: Buffer) -> bytes | None:
    """Returns the unpacked records of a batch that is small enough to be examined in one step; None for a larger
    batch."""
    if header.size > SMALL_PACKED_BYTES or header.records_count > SLICE_RECORDS:
        return None
    try:
        return records_payload(batch, header, SMALL_UNPACKED_BYTES)
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            return None
        raise


class RawRecord(NamedTuple):
    """Holds a record whose key is decoded, but not its value and headers.

    `tail` has all bytes of the record after the timestamp, so that they can be written again unchanged.
    """

    attributes: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool
    tail: bytes


def raw_records(header: BatchHeader, batch: Buffer, max_bytes: int = MAX_UNCOMPRESSED_BYTES) -> Iterator[RawRecord]:
    """Yields every record of one whole batch, without decoding value and headers."""
    data = records_payload(batch, header, max_bytes)
    end = len(data)
    pos = 0
    try:
        for _ in range(header.records_count):
            length, pos = read_varint(data, pos)
            record_end = pos + length
            if length < 0 or record_end > end:
                raise invalid(f"A record claims the impossible length {length} in a batch of {end} bytes.")
            attributes = data[pos]
            timestamp, start = read_varlong(data, pos + 1)
            offset, pos = read_varint(data, start)
            length, pos = read_varint(data, pos)
            key = None
            if length >= 0:
                key = data[pos : pos + length]
                pos += length
            length, pos = read_varint(data, pos)
            if pos + max(length, 0) >= record_end:  # at least the count of headers follows
                raise invalid("A field of a record ends after the end of the record.")
            yield RawRecord(attributes, timestamp, offset, key, length >= 0, data[start:record_end])
            pos = record_end
    except IndexError:
        raise invalid("A record runs past the end of its batch.") from None
    if pos != end:
        raise invalid(f"{end - pos} bytes follow the last record of a batch.")


def indexes_without_key(header: BatchHeader, data: bytes, limit: int) -> Slices[list[int]]:
    """Returns the indexes of at most `limit` records without a key."""
    end = len(data)
    missing: list[int] = []
    pos = 0
    count = header.records_count
    try:
        for first in range(0, count, SLICE_RECORDS):
            for index in range(first, min(first + SLICE_RECORDS, count)):
                length, pos = read_varint(data, pos)
                record_end = pos + length
                if length < 0 or record_end > end:
                    raise invalid(f"A record claims the impossible length {length} in a batch of {end} bytes.")
                pos += 1
                while data[pos] >= 0x80:  # the timestamp
                    pos += 1
                pos += 1
                while data[pos] >= 0x80:  # the offset
                    pos += 1
                if data[pos + 1] & 1:  # an odd zigzag number is negative: there is no key
                    missing.append(index)
                    if len(missing) >= limit:
                        return missing
                pos = record_end
            yield
    except IndexError:
        raise invalid("A record runs past the end of its batch.") from None
    if pos != end:
        raise invalid(f"{end - pos} bytes follow the last record of a batch.")
    return missing


def record_times(header: BatchHeader, data: bytes) -> Iterator[list[tuple[int, int]]]:
    """Yields lists of (offset, timestamp) of the unpacked records, at most `SLICE_RECORDS` per list.

    The offsets increase within the range of the batch, whatever its producer wrote.
    """
    append_time = header.max_timestamp if header.log_append_time else None
    base_timestamp, next_offset, dense = header.base_timestamp, header.base_offset, header.is_dense
    end = len(data)
    pos = 0
    count = header.records_count
    try:
        for first in range(0, count, SLICE_RECORDS):
            times: list[tuple[int, int]] = []
            for index in range(first, min(first + SLICE_RECORDS, count)):
                length, pos = read_varint(data, pos)
                record_end = pos + length
                if length < 0 or record_end > end:
                    raise invalid(f"A record claims the impossible length {length} in a batch of {end} bytes.")
                delta, pos = read_varlong(data, pos + 1)
                offset = next_offset
                if not dense:
                    offset = header.offset_within(read_varint(data, pos)[0], next_offset, count - index)
                times.append((offset, base_timestamp + delta if append_time is None else append_time))
                pos, next_offset = record_end, offset + 1
            yield times
    except IndexError:
        raise invalid("A record runs past the end of its batch.") from None
