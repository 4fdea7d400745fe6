"""Encodes Arrow columns as record batches, without a Python object per record. Pure code.

A record is `length attributes timestampΔ offsetΔ keyLength key valueLength value headerCount`. Each field is encoded
for all records at once. The fields before the key, and the fields between key and value, are computed as columns of
bytes. Then one `take` over Arrow's binary arrays puts the pieces of all records in order. The data buffer of its result
is the payload. Headers are rare: records with headers are built one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.client.accumulator import BATCH_OVERHEAD, RECORD_OVERHEAD, Built
from penstock.protocol.vocabulary import NO_LEADER_EPOCH
from penstock.records.build import encode_record, seal
from penstock.records.compression import compress
from penstock.records.header import MAGIC, TRANSACTIONAL_FLAG, BatchHeader

Array = Any
"""numpy or Arrow arrays; their types are not checked here."""

_MAX_VARINT_BYTES = 10
_ATTRIBUTES = 1  # bytes
_NO_HEADERS = b"\x00"


@dataclass(frozen=True, slots=True)
class Rows:
    """Holds the records for one partition, in order.

    Keys and values are Arrow binary arrays; timestamps are numpy int64 in ms.
    """

    keys: Array
    values: Array
    timestamps: Array
    headers: Array | None = None
    """An Arrow list of structs of key and value; None if no record has headers."""

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, end: int) -> Rows:
        size = end - start
        headers = None if self.headers is None else self.headers.slice(start, size)
        return Rows(self.keys.slice(start, size), self.values.slice(start, size), self.timestamps[start:end], headers)


def build(rows: Rows, compression: int = 0, level: int | None = None) -> Built:
    """Encodes all rows as one batch. The batch header is completed later, when the producer's id and sequence are
    known."""
    base = int(rows.timestamps[0])
    deltas = rows.timestamps - base
    payload = _payload(rows, deltas) if rows.headers is None else _payload_with_headers(rows, deltas)
    if compression:
        payload = compress(compression, payload, level)
    count, latest = len(rows), int(rows.timestamps.max())

    def finish(producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool) -> bytes:
        attributes = compression | (TRANSACTIONAL_FLAG if transactional else 0)
        owner = (producer_id, producer_epoch, base_sequence)
        header = BatchHeader(0, 0, NO_LEADER_EPOCH, MAGIC, 0, attributes, count - 1, base, latest, *owner, count)
        return seal(header, payload) + bytes(payload)

    return Built(count, len(memoryview(payload)), finish)


def cuts(rows: Rows, batch_bytes: int) -> list[tuple[int, int]]:
    """Splits the rows into ranges. Each range becomes a batch of at most `batch_bytes`.

    A record that is larger than `batch_bytes` becomes a batch with only this record.
    """
    ends = np.cumsum(_byte_lengths(rows.keys) + _byte_lengths(rows.values) + _header_lengths(rows) + RECORD_OVERHEAD)
    found, start, before = [], 0, 0
    room = batch_bytes - BATCH_OVERHEAD
    while start < len(rows):
        end = max(int(np.searchsorted(ends, before + room, side="right")), start + 1)
        found.append((start, end))
        start, before = end, int(ends[end - 1])
    return found


def _payload(rows: Rows, deltas: Array) -> Any:
    count = len(rows)
    key_lengths, value_lengths = _varint_lengths(rows.keys), _varint_lengths(rows.values)
    key_bytes, value_bytes = np.maximum(key_lengths, 0), np.maximum(value_lengths, 0)
    fields = [_varints(deltas), _varints(np.arange(count)), _varints(key_lengths)]
    value_field = _varints(value_lengths)
    sizes = _ATTRIBUTES + sum(widths for _, widths in fields) + value_field[1]
    sizes = sizes + key_bytes + value_bytes + len(_NO_HEADERS)
    # A record ends with its header count, 0. This byte is put before the next record's length, to save a piece.
    end_of_last = (np.zeros((count, 1), np.uint8), np.arange(count) > 0)
    attributes = (np.zeros((count, 1), np.uint8), np.ones(count, np.int64))
    heads = _joined([end_of_last, _varints(sizes), attributes, *fields])
    middles = _joined([value_field])
    pieces = pa.concat_arrays([heads, rows.keys.fill_null(b""), middles, rows.values.fill_null(b"")])
    order = (np.arange(4)[None, :] * count + np.arange(count)[:, None]).ravel()
    laid = pieces.take(pa.array(order))
    _, offsets, data = laid.buffers()
    ends = np.frombuffer(offsets, np.int32)[laid.offset : laid.offset + len(laid) + 1]
    view = memoryview(data)[int(ends[0]) : int(ends[-1])]
    return b"".join((view, _NO_HEADERS))


def _varint_lengths(array: Array) -> Array:
    """Returns the length of each element as its length field stores it: the number of bytes, or -1 for null."""
    lengths = _byte_lengths(array)
    if array.null_count:
        lengths[_nulls(array)] = -1
    return lengths


def _byte_lengths(array: Array) -> Array:
    if not len(array):
        return np.zeros(0, np.int64)
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    return np.diff(offsets.astype(np.int64))


def _nulls(array: Array) -> Array:
    return array.is_null().to_numpy(zero_copy_only=False)


def _varints(numbers: Array) -> tuple[Array, Array]:
    """Encodes numbers as zigzag varints.

    Returns a matrix of bytes with one row for each number, and the number of used bytes of each row.
    """
    left = ((numbers << 1) ^ (numbers >> 63)).astype(np.int64).view(np.uint64)
    widths = np.ones(len(numbers), np.int64)
    columns = []
    for _ in range(_MAX_VARINT_BYTES):
        rest = left >> np.uint64(7)
        more = rest > 0
        columns.append((left & np.uint64(0x7F)).astype(np.uint8) | (more.astype(np.uint8) << 7))
        if not more.any():
            break
        widths += more
        left = rest
    return np.stack(columns, axis=1), widths


def _joined(fields: list[tuple[Array, Array]]) -> Any:
    """Joins the bytes of several fields, row by row. Returns an Arrow binary array."""
    matrix = np.concatenate([bytes_ for bytes_, _ in fields], axis=1)
    kept = np.concatenate(
        [np.arange(bytes_.shape[1])[None, :] < np.asarray(widths)[:, None] for bytes_, widths in fields], axis=1
    )
    count = matrix.shape[0]
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(kept.sum(axis=1), out=offsets[1:])
    data = matrix[kept]
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


# --- headers: one by one


def _payload_with_headers(rows: Rows, deltas: Array) -> bytes:
    assert rows.headers is not None
    columns = zip(
        deltas.tolist(), rows.keys.to_pylist(), rows.values.to_pylist(), rows.headers.to_pylist(), strict=True
    )
    return b"".join(
        encode_record(delta, index, key, value, tuple((each["key"], each["value"]) for each in headers or ()))
        for index, (delta, key, value, headers) in enumerate(columns)
    )


def _header_lengths(rows: Rows) -> Array:
    """Returns an upper limit for the size of each record's headers, in bytes."""
    if rows.headers is None:
        return 0
    return np.array(
        [
            sum(10 + len(each["key"]) * 3 + len(each["value"] or b"") for each in headers or ())
            for headers in rows.headers.to_pylist()
        ],
        np.int64,
    )
