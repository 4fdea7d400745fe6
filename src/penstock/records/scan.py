"""A quick pass over a batch's records that cuts out what is asked for and decodes nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.records.header import BatchHeader
from penstock.records.record import MAX_UNCOMPRESSED_BYTES, invalid, records_payload
from penstock.records.varint import read_varint, read_varlong

if TYPE_CHECKING:
    from typing_extensions import Buffer


class RawRecord(NamedTuple):
    """A record that keeps its bytes: `tail` is everything after the timestamp, so it can be written again unchanged."""

    attributes: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool
    tail: bytes


def raw_records(header: BatchHeader, batch: Buffer, max_bytes: int = MAX_UNCOMPRESSED_BYTES) -> list[RawRecord]:
    """Every record of one whole batch, its value and headers untouched."""
    data = records_payload(batch, header, max_bytes)
    records = []
    end = len(data)
    pos = 0
    try:
        for _ in range(header.records_count):
            length, pos = read_varint(data, pos)
            record_end = pos + length
            if length < 0 or record_end > end:
                raise invalid(f"A record claims a length of {length} in a batch of {end} bytes.")
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
                raise invalid("A record holds a field that ends behind it.")
            records.append(RawRecord(attributes, timestamp, offset, key, length >= 0, data[start:record_end]))
            pos = record_end
    except IndexError:
        raise invalid("A record runs past the end of its batch.") from None
    if pos != end:
        raise invalid(f"{end - pos} bytes follow the last record of a batch.")
    return records


def indexes_without_key(header: BatchHeader, batch: Buffer, limit: int) -> list[int]:
    """Which records of the batch have no key; at most `limit` of them."""
    data = records_payload(batch, header)
    end = len(data)
    missing = []
    pos = 0
    try:
        for index in range(header.records_count):
            length, pos = read_varint(data, pos)
            record_end = pos + length
            if length < 0 or record_end > end:
                raise invalid(f"A record claims a length of {length} in a batch of {end} bytes.")
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
    except IndexError:
        raise invalid("A record runs past the end of its batch.") from None
    if pos != end:
        raise invalid(f"{end - pos} bytes follow the last record of a batch.")
    return missing


def record_times(
    header: BatchHeader, batch: Buffer, max_bytes: int = MAX_UNCOMPRESSED_BYTES
) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of each record in turn, read no further than the caller goes on."""
    data = records_payload(batch, header, max_bytes)
    append_time = header.max_timestamp if header.log_append_time else None
    end = len(data)
    pos = 0
    try:
        for _ in range(header.records_count):
            length, pos = read_varint(data, pos)
            record_end = pos + length
            if length < 0 or record_end > end:
                raise invalid(f"A record claims a length of {length} in a batch of {end} bytes.")
            delta, pos = read_varlong(data, pos + 1)
            offset, pos = read_varint(data, pos)
            yield header.base_offset + offset, header.base_timestamp + delta if append_time is None else append_time
            pos = record_end
    except IndexError:
        raise invalid("A record runs past the end of its batch.") from None
