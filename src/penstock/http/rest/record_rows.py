"""Converts records to JSON, filters them, and limits the size of an answer. Pure.

A key, a value or a header is `{"text": …}` if it is UTF-8, otherwise `{"base64": …}`; null stays null.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from penstock.records.record import read_records

if TYPE_CHECKING:
    from penstock.records.record import Record

#: Bytes of keys, values and headers in one answer. A longer record is shown without its value.
ANSWER_MAX_BYTES = 2 * 1024 * 1024
#: Bytes of one batch after decompression; larger batches are left out, because they cost too much memory.
BATCH_MAX_BYTES = 8 * 1024 * 1024


def record_size(record: Record) -> int:
    """Returns how many bytes the record's key, value and headers (with their names) add to an answer."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def matching_records(batch: memoryview, first: int, wanted: bytes) -> list[Record]:
    """Returns the records at offset `first` or later that contain `wanted` in their key or value.

    Raises KafkaError(MESSAGE_TOO_LARGE) if the batch is larger than BATCH_MAX_BYTES after decompression.
    """
    return [
        each
        for each in read_records(batch, BATCH_MAX_BYTES)
        if each.offset >= first and (wanted in (each.key or b"") or wanted in (each.value or b""))
    ]


def record_row(partition: int, record: Record, max_bytes: int = ANSWER_MAX_BYTES) -> dict[str, Any]:
    """Returns the record as a JSON object. Leaves out key, value and headers if the record is longer than
    `max_bytes`."""
    too_long = record_size(record) > max_bytes
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "size": record_size(record),
        "left_out": too_long,
        "key": None if too_long else _shown(record.key),
        "value": None if too_long else _shown(record.value),
        "headers": [] if too_long else [{"name": name, "value": _shown(value)} for name, value in record.headers],
    }


def _shown(data: bytes | None) -> dict[str, str] | None:
    if data is None:
        return None
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
