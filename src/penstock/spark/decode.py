"""Decodes record batches into Arrow columns, without a Python object per record. Pure code.

First the decoder finds the start of each record by its length field. This is the only sequential part. Consecutive
records of equal length take one step. A batch with the same size and record count as the previous batch is assumed to
have the same layout; its length fields are checked afterwards.

Then numpy computes whole columns: the varints of all records, then keys and values with one copy each. If all values of
a column have the same length, numpy copies them. Otherwise an Arrow binary array refers to the raw bytes. For each
record, the array has four offsets: key start, key end, value start, value end. So every fourth element of the array is
a key, and the second element after each key is a value; `take` copies these elements. A batch that can't be decoded
raises KafkaError with INVALID_RECORD.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.records.header import HEADER_SIZE, BatchHeader
from penstock.records.record import MAX_UNCOMPRESSED_BYTES, MIN_RECORD_SIZE, invalid, records_payload
from penstock.spark.varints import Array, read_varints

#: Payload bytes per Arrow batch: enough to outweigh the overhead of numpy's calls, at little memory.
CHUNK_BYTES = 4 * 1024 * 1024
#: Equal lengths in a row after which counting the rest of the run with numpy is faster than walking.
_RUN_WORTH = 4
_RUN_WINDOW = 1024
#: Arrow's binary arrays count their bytes in 31 bits.
_MAX_OFFSET = (1 << 31) - 1

HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))

Batch = tuple[BatchHeader, memoryview]
Raw = bytes | bytearray


@dataclass(slots=True)
class Decoded:
    """Holds columns of consecutive records of one partition, in the order of their offsets."""

    key: Any
    value: Any
    offset: Array
    timestamp_ms: Array
    timestamp_type: Array
    headers: Any | None

    def __len__(self) -> int:
        return len(self.offset)


def decode_batches(
    batches: Iterable[Batch],
    *,
    start: int,
    end: int,
    headers: bool = False,
    min_timestamp_ms: int | None = None,
) -> Iterator[Decoded]:
    """Yields columns of the records with offsets from `start` to `end` - 1, a few megabytes at a time.

    `batches` are data batches that the reader may see. `min_timestamp_ms` skips a batch if all its records are older. A
    batch with newer records is returned whole.
    """
    chunk: list[tuple[BatchHeader, bytes | memoryview]] = []
    size = 0
    for header, batch in batches:
        if header.base_offset >= end or header.last_offset < start or not header.records_count:
            continue
        if min_timestamp_ms is not None and header.max_timestamp < min_timestamp_ms:
            continue
        payload = _payload(header, batch)
        if chunk and size + len(payload) > CHUNK_BYTES:
            yield from _decode_chunk(chunk, start, end, headers)
            chunk, size = [], 0
        chunk.append((header, payload))
        size += len(payload)
    if chunk:
        yield from _decode_chunk(chunk, start, end, headers)


def _payload(header: BatchHeader, batch: memoryview) -> bytes | memoryview:
    if header.compression:
        return records_payload(batch, header, MAX_UNCOMPRESSED_BYTES)
    payload = batch[HEADER_SIZE:]
    if header.records_count < 0 or header.records_count * MIN_RECORD_SIZE > len(payload):
        raise invalid(f"A record batch claims {header.records_count} records in {len(payload)} bytes.")
    return payload


def _decode_chunk(
    chunk: list[tuple[BatchHeader, bytes | memoryview]], start: int, end: int, headers: bool
) -> Iterator[Decoded]:
    raw, places = _in_one_buffer([payload for _, payload in chunk])
    data = np.frombuffer(raw, dtype=np.uint8)
    starts, ends = _record_bounds(chunk, places, raw, data)
    counts = np.array([header.records_count for header, _ in chunk])

    timestamp_delta, at = read_varints(data, starts + 1)  # one byte of attributes, unused so far
    offset_delta, at = read_varints(data, at)
    key_length, key_start = read_varints(data, at)
    key_end = key_start + np.maximum(key_length, 0)
    value_length, value_start = read_varints(data, key_end)
    value_end = value_start + np.maximum(value_length, 0)
    if (key_length < -1).any() or (value_length < -1).any() or (value_end >= ends).any():
        raise invalid("A record has a field that ends past the end of the record.")

    offset = np.repeat(np.array([header.base_offset for header, _ in chunk]), counts) + offset_delta
    timestamp, kind = _timestamps(chunk, counts, timestamp_delta)
    kept = None
    if chunk[0][0].base_offset < start or chunk[-1][0].last_offset >= end:
        kept = np.flatnonzero((offset >= start) & (offset < end))
        if not len(kept):
            return
        if len(kept) == len(offset):
            kept = None

    def of(column: Array) -> Array:
        return column if kept is None else column[kept]

    key, value = _fields(
        raw, data, of(key_length), of(key_start), of(key_end), of(value_length), of(value_start), of(value_end)
    )
    found = _headers(data, raw, of(value_end), of(ends)) if headers else None
    yield Decoded(key, value, of(offset), of(timestamp), of(kind), found)


def _in_one_buffer(payloads: list[bytes | memoryview]) -> tuple[Raw, list[int]]:
    """Returns one buffer with all payloads, and the position of each payload in this buffer.

    Makes no copy if the payloads are already parts of one buffer.
    """
    whole = payloads[0].obj if isinstance(payloads[0], memoryview) else None
    together = all(isinstance(each, memoryview) and each.obj is whole for each in payloads)
    if together and isinstance(whole, bytes | bytearray) and len(whole) <= _MAX_OFFSET:
        base = pa.py_buffer(whole).address
        return whole, [pa.py_buffer(each).address - base for each in payloads]
    return b"".join(payloads), list(accumulate((len(each) for each in payloads[:-1]), initial=0))


def _timestamps(chunk: list[Any], counts: Array, delta: Array) -> tuple[Array, Array]:
    """Returns each record's timestamp in milliseconds, and its type: 0 is CreateTime, 1 is LogAppendTime.

    With LogAppendTime, all records of a batch have the same timestamp.
    """
    appended = np.array([header.log_append_time for header, _ in chunk])
    base = np.array([h.max_timestamp if h.log_append_time else h.base_timestamp for h, _ in chunk], dtype=np.int64)
    kind = np.repeat(appended.astype(np.int32), counts)
    timestamp = np.repeat(base, counts)
    if not appended.any():
        return timestamp + delta, kind
    return timestamp + np.where(kind == 0, delta, 0), kind


# Bounds of records


def _record_bounds(chunk: list[Any], places: list[int], raw: Raw, data: Array) -> tuple[Array, Array]:
    """Returns two positions for every record: the position after its length field, and its end."""
    found = _guessed(chunk, places, raw, data)
    limits = [place + len(payload) for place, (_, payload) in zip(places, chunk, strict=True)]
    starts, ends, apart = _measured(found, limits, data)
    if apart.any():
        # Either a guessed layout is wrong or a batch is corrupt: walking these batches shows which.
        lasts = np.cumsum([len(each) for each in found])
        for index in {int(each) for each in np.searchsorted(lasts, np.flatnonzero(apart), side="right")}:
            found[index] = _walk(raw, data, places[index], limits[index], chunk[index][0].records_count)
        starts, ends, apart = _measured(found, limits, data)
        if apart.any():
            raise invalid("A record does not end where the next record begins.")
    return starts, ends


def _guessed(chunk: list[Any], places: list[int], raw: Raw, data: Array) -> list[Array]:
    """Returns the positions at which the records of each batch probably begin.

    A batch with the same size and record count as the previous batch probably has the same layout. `_measured` checks
    this.
    """
    found: list[Array] = []
    shape: tuple[int, int] | None = None
    layout: Array | None = None
    for place, (header, payload) in zip(places, chunk, strict=True):
        if layout is None or shape != (header.records_count, len(payload)):
            shape = (header.records_count, len(payload))
            layout = _walk(raw, data, place, place + len(payload), header.records_count) - place
        found.append(layout + place)
    return found


def _measured(found: list[Array], limits: list[int], data: Array) -> tuple[Array, Array, Array]:
    """Reads the length field at each position of `found`, where records probably begin.

    Returns three arrays with an element for each record: the position after its length field, its end, and True if the
    next record does not begin there. If no element is True, all positions are right, because the first one of each
    batch is known.
    """
    firsts = np.concatenate(found) if len(found) > 1 else found[0]
    length, starts = read_varints(data, firsts)
    ends = starts + length
    lasts = np.cumsum([len(each) for each in found]) - 1
    expected = np.empty_like(ends)
    expected[:-1] = firsts[1:]
    expected[lasts] = limits
    return starts, ends, ends != expected


def _walk(raw: Raw, data: Array, pos: int, limit: int, count: int) -> Array:
    """Returns the positions of `count` records from `pos` on.

    Raises KafkaError if the last record does not end at `limit`.
    """
    pieces: list[Array] = []
    places: list[int] = []
    add = places.append
    left = count
    same = 0
    last = -1
    try:
        while left > 0 and pos < limit:
            add(pos)
            left -= 1
            byte = raw[pos]
            if byte < 0x80:
                step = (byte >> 1) + 1
            else:
                second = raw[pos + 1]
                if second < 0x80:
                    step = ((byte & 0x7F | second << 7) >> 1) + 2
                else:
                    step = _long_step(raw, pos)
            pos += step
            if step != last:
                last, same = step, 0
                continue
            same += 1
            if same >= _RUN_WORTH and left > _RUN_WORTH:
                run = _run(data, pos, limit, step, left)
                if run:
                    pieces.append(np.array(places, dtype=np.int64))
                    pieces.append(np.arange(run, dtype=np.int64) * step + pos)
                    places.clear()
                    pos += run * step
                    left -= run
                # The next run may be as short as this one: don't count at every record.
                same = _RUN_WORTH if run >= _RUN_WINDOW else -_RUN_WORTH
    except IndexError:
        raise invalid("A record runs past the end of its batch.") from None
    if left or pos != limit:
        raise invalid(
            f"A batch does not match its header: {limit - pos} bytes are left over, and {left} records are missing."
        )
    if not pieces:
        return np.array(places, dtype=np.int64)
    return np.concatenate([*pieces, np.array(places, dtype=np.int64)])


def _run(data: Array, pos: int, limit: int, step: int, left: int) -> int:
    """Returns how many records from `pos` on have the same length as the record before `pos`.

    That record takes `step` bytes. Each record with the same length field takes `step` bytes, too, so the position of
    the next record is known.
    """
    room = min(left, (limit - pos) // step, _RUN_WINDOW)
    if room <= 0:
        return 0
    width = 1
    before = pos - step
    while data[before + width - 1] & 0x80:
        width += 1
    window = data[pos : pos + room * step]
    run = room
    for index in range(width):
        differs = window[index::step][:run] != data[before + index]
        first = int(differs.argmax()) if run else 0
        if run and differs[first]:
            run = first
    return run


def _long_step(raw: Raw, pos: int) -> int:
    value = shift = 0
    start = pos
    while shift < 35:
        byte = raw[pos]
        value |= (byte & 0x7F) << shift
        pos += 1
        if byte < 0x80:
            return (value >> 1) + pos - start
        shift += 7
    raise invalid("A record has a length that is not a valid varint.")


# Keys and values


def _fields(
    raw: Raw,
    data: Array,
    key_length: Array,
    key_start: Array,
    key_end: Array,
    value_length: Array,
    value_start: Array,
    value_end: Array,
) -> tuple[Any, Any]:
    key = _all_of_one_length(data, key_length, key_start)
    value = _all_of_one_length(data, value_length, value_start)
    if key is None or value is None:
        spans = np.empty((len(key_length), 4), dtype=np.int32)
        spans[:, 0] = key_start
        spans[:, 1] = key_end
        spans[:, 2] = value_start
        spans[:, 3] = value_end
        over = _spans_over(raw, spans)
        key = _taken(over, 0, key_length < 0) if key is None else key
        value = _taken(over, 2, value_length < 0) if value is None else value
    return key, value


def _all_of_one_length(data: Array, length: Array, start: Array) -> Any | None:
    """Returns the values as an Arrow column if all of them have the same length; otherwise None.

    numpy copies values of equal length in half the time of Arrow's `take`: it takes elements from a view that has an
    element at every byte.
    """
    size, count = int(length[0]), len(length)
    if size < 1 or (length != size).any():
        return None
    elements = np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    copied = elements[start].view(np.uint8)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(copied)])


def _spans_over(raw: Raw, spans: Array) -> Any:
    """Returns an Arrow binary array that refers to the raw bytes without a copy.

    Elements 0, 2, 4, … of the array are the given spans. Elements 1, 3, 5, … are the bytes between the spans.
    """
    offsets = spans.reshape(-1)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(raw)]
    )


def _taken(over: Any, first: int, null: Array) -> Any:
    count = len(null)
    if null.all():
        return pa.nulls(count, pa.binary())
    indices = np.arange(count, dtype=np.int64) * 4 + first
    return over.take(pa.array(indices, mask=null if null.any() else None))


# Headers


def _headers(data: Array, raw: Raw, at: Array, ends: Array) -> Any:
    """Returns the headers of all records as one column of type list<struct<key, value>>.

    A record without headers is null, as in Spark's own Kafka source.
    """
    counts, at = read_varints(data, at)
    if (counts < 0).any() or (counts * 2 > ends - at).any():
        raise invalid("A record has a header count that is larger than its remaining bytes allow.")
    total = int(counts.sum())
    if not total:
        if (at != ends).any():
            raise invalid("A record does not end where its length says.")
        return pa.nulls(len(counts), HEADERS_TYPE)
    lists = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=lists[1:])
    spans = np.empty((total, 4), dtype=np.int32)
    null = np.zeros(total, dtype=bool)
    at = at.copy()
    rows = np.flatnonzero(counts)
    nth = 0
    while len(rows):
        key_length, key_start = read_varints(data, at[rows])
        key_end = key_start + np.maximum(key_length, 0)
        value_length, value_start = read_varints(data, key_end)
        value_end = value_start + np.maximum(value_length, 0)
        if (key_length < 0).any() or (value_length < -1).any() or (value_end > ends[rows]).any():
            raise invalid("A record has a header that ends past the end of the record, or a header without a key.")
        slots = lists[rows] + nth
        spans[slots] = np.stack([key_start, key_end, value_start, value_end], axis=1)
        null[slots] = value_length < 0
        at[rows] = value_end
        nth += 1
        rows = rows[counts[rows] > nth]
    if (at != ends).any():
        raise invalid("A record does not end where its length says.")
    over = _spans_over(raw, spans)
    keys = _text(_taken(over, 0, np.zeros(total, dtype=bool)))
    pairs = pa.StructArray.from_arrays([keys, _taken(over, 2, null)], fields=list(HEADERS_TYPE.value_type))
    mask = pa.array(counts == 0) if (counts == 0).any() else None
    return pa.ListArray.from_arrays(pa.array(lists, pa.int32()), pairs, type=HEADERS_TYPE, mask=mask)


def _text(column: Any) -> Any:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8: as everywhere, undecodable bytes become the replacement character
        return pa.array([each.decode("utf-8", "replace") for each in column.to_pylist()], pa.string())
