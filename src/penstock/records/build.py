"""Builds record batches, for coordinators, the metadata log and Penstock's own client."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.check import check
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from penstock.records.batches import crc32c
from penstock.records.compression import compress
from penstock.records.header import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER,
    LOG_APPEND_TIME_FLAG,
    MAGIC,
    MIN_BATCH_LENGTH,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from penstock.records.record import Headers, Record
from penstock.records.varint import VARINTS, varint

if TYPE_CHECKING:
    from typing_extensions import Buffer

NewRecord = tuple[int, bytes | None, bytes | None, Headers]

_COVERED = struct.Struct(">hiqqqhii")  # the header's fields from the attributes on, which the CRC covers
_NULL = varint(-1)
_ZERO = b"\x00"


def build_batch(
    records: Iterable[Record | NewRecord],
    *,
    base_offset: int = 0,
    compression: int = 0,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = NO_LEADER_EPOCH,
    log_append_time: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """Builds one batch. A `Record` keeps its own offset.

    A `NewRecord` gets the offset after the previous record, or `base_offset` if it is the first record.
    """
    parts: list[bytes] = []
    base_timestamp = log_append_time if delete_horizon_ms is None else delete_horizon_ms
    max_timestamp = NO_TIMESTAMP
    last_delta = -1
    encode = encode_record
    for record in records:
        if len(record) == 5:
            offset, timestamp, key, value, headers = record
            delta = offset - base_offset
            check(delta > last_delta, "the records of a batch must be in the order of their offsets")
        else:
            timestamp, key, value, headers = record
            delta = last_delta + 1
        last_delta = delta
        if log_append_time is not None:
            timestamp = log_append_time
        if base_timestamp is None:
            base_timestamp = timestamp
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        parts.append(encode(timestamp - base_timestamp, delta, key, value, headers))
    check(parts, "a batch needs at least one record")
    assert base_timestamp is not None
    attributes = (
        compression
        | (LOG_APPEND_TIME_FLAG if log_append_time is not None else 0)
        | (TRANSACTIONAL_FLAG if transactional else 0)
        | (CONTROL_FLAG if control else 0)
        | (DELETE_HORIZON_FLAG if delete_horizon_ms is not None else 0)
    )
    payload = b"".join(parts)
    if compression:
        payload = compress(compression, payload, level)
    header = BatchHeader(
        base_offset,
        0,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(parts),
    )
    return seal(header, payload) + payload


def seal(header: BatchHeader, payload: Buffer) -> bytes:
    """Returns the bytes of a batch header, with the length and the CRC for `payload`.

    The caller appends the payload.
    """
    view = memoryview(payload)
    try:
        crc = crc32c(view, crc32c(_COVERED.pack(*header[5:])))
        return HEADER.pack(header[0], MIN_BATCH_LENGTH + len(view), header[2], MAGIC, crc, *header[5:])
    except struct.error:  # a timestamp computed from a damaged base and delta
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "A field of a record batch has a value that does not fit its type."
        ) from None


def encode_record(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: Headers = ()
) -> bytes:
    """Encodes one record, with its length in front."""
    known = VARINTS
    start = _ZERO + known[timestamp_delta] + known[offset_delta]
    key_part = _NULL if key is None else known[len(key)] + key
    value_part = _NULL if value is None else known[len(value)] + value
    body = start + key_part + value_part + (_encode_headers(headers) if headers else _ZERO)
    return known[len(body)] + body


def _encode_headers(headers: Headers) -> bytes:
    parts = [varint(len(headers))]
    for name, content in headers:
        encoded = name.encode()
        parts += (varint(len(encoded)), encoded)
        parts += (_NULL,) if content is None else (varint(len(content)), content)
    return b"".join(parts)
