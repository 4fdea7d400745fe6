"""Decodes the records inside a batch, for readers, look-up by time and compaction.

The caller verifies the CRC (`batches.crc_ok`). All other checks are made here: a batch with a valid CRC and invalid
records raises INVALID_RECORD and no other error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.compression import decompress
from penstock.records.header import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    MAGIC,
    BatchHeader,
    parse_header,
)
from penstock.records.varint import read_varint, read_varlong

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_UNCOMPRESSED_BYTES = 256 * 1024 * 1024
MIN_RECORD_SIZE = 7  # seven one-byte fields, so a count above size / 7 is false

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    def contains(self, text: bytes) -> bool:
        """Returns True if the key or the value contains the text."""
        return text in (self.key or b"") or text in (self.value or b"")


def invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, reason)


def records_payload(batch: Buffer, header: BatchHeader, max_bytes: int = MAX_UNCOMPRESSED_BYTES) -> bytes:
    """Returns the unpacked records of one whole batch, as bytes."""
    view = memoryview(batch)
    if header.magic != MAGIC or header.size != len(view):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "These bytes are not one whole record batch of format v2.")
    payload = view[HEADER_SIZE:]
    codec = header.attributes & COMPRESSION_MASK
    data = decompress(codec, payload, max_bytes) if codec and header.records_count else bytes(payload)
    count = header.records_count
    if count < 0 or count * MIN_RECORD_SIZE > len(data):
        raise invalid(f"A record batch claims {count} records, which can't be in its {len(data)} bytes.")
    return data


def read_records(batch: Buffer, max_bytes: int = MAX_UNCOMPRESSED_BYTES) -> list[Record]:
    """Returns every record of one whole batch. Raises MESSAGE_TOO_LARGE if they unpack to more than `max_bytes`."""
    header = parse_header(batch)
    data = records_payload(batch, header, max_bytes)
    try:
        records, pos = _read_all(header, data)
    except IndexError:
        raise invalid("A record runs past the end of its batch.") from None
    if pos != len(data):
        raise invalid(f"{len(data) - pos} bytes follow the last record of a batch.")
    return records


def _read_all(header: BatchHeader, data: bytes) -> tuple[list[Record], int]:
    """Decodes all records. Returns them, and the position after them.

    One-byte numbers, which are by far the most frequent, are decoded without a function call.
    """
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME_FLAG else None
    pos, end = 0, len(data)
    records: list[Record] = []
    add = records.append
    new = tuple.__new__
    for _ in range(header.records_count):
        if (length := data[pos]) < 0x80:
            length = (length >> 1) ^ -(length & 1)
            pos += 1
        else:
            length, pos = read_varint(data, pos)
        record_end = pos + length
        if length < 0 or record_end > end:
            raise invalid(f"A record claims the impossible length {length} in a batch of {end} bytes.")
        if (byte := data[pos + 1]) < 0x80:  # after one byte of attributes, which has no meaning yet
            timestamp = (byte >> 1) ^ -(byte & 1)
            pos += 2
        else:
            timestamp, pos = read_varlong(data, pos + 1)
        if (byte := data[pos]) < 0x80:
            offset = (byte >> 1) ^ -(byte & 1)
            pos += 1
        elif (second := data[pos + 1]) < 0x80:
            raw = byte & 0x7F | second << 7
            offset = (raw >> 1) ^ -(raw & 1)
            pos += 2
        else:
            offset, pos = read_varint(data, pos)
        if (length := data[pos]) == 1:
            key = None
            pos += 1
        elif length < 0x80 and not length & 1:
            pos += 1
            key = data[pos : (pos := pos + (length >> 1))]
        else:
            key, pos = _read_bytes(data, pos, record_end)
        if (length := data[pos]) < 0x80 and not length & 1:
            pos += 1
            value: bytes | None = data[pos : (pos := pos + (length >> 1))]
        else:
            value, pos = _read_bytes(data, pos, record_end)
        if pos < record_end and data[pos] == 0:
            headers: Headers = ()
            pos += 1
        else:
            headers, pos = _read_headers(data, pos, record_end)
        if pos != record_end:
            raise invalid("A record has more or fewer bytes than its length field says.")
        timestamp = base_timestamp + timestamp if append_time is None else append_time
        add(new(Record, (base_offset + offset, timestamp, key, value, headers)))
    return records, pos


def _read_bytes(data: bytes, pos: int, record_end: int) -> tuple[bytes | None, int]:
    byte = data[pos]
    if byte < 0x80:
        length = (byte >> 1) ^ -(byte & 1)
        pos += 1
    else:
        length, pos = read_varint(data, pos)
    if length < 0:
        return None, pos
    after = pos + length
    if after > record_end:
        raise invalid(f"A field of {length} bytes ends after the end of its record.")
    return data[pos:after], after


def _read_headers(data: bytes, pos: int, record_end: int) -> tuple[Headers, int]:
    count, pos = read_varint(data, pos)
    if count < 0 or count * 2 > record_end - pos:
        raise invalid(f"A record claims {count} headers, which can't be in its {record_end - pos} bytes.")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key, pos = _read_bytes(data, pos, record_end)
        if key is None:
            raise invalid("A record has a header without a key.")
        value, pos = _read_bytes(data, pos, record_end)
        headers.append((key.decode("utf-8", "replace"), value))
    return tuple(headers), pos
