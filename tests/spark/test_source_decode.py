"""Columns are compared with the reader that makes an object per record."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.batches import split_batches
from penstock.records.build import build_batch, seal
from penstock.records.header import BatchHeader, parse_header
from penstock.records.record import Record, read_records
from penstock.spark.decode import decode_batches
from penstock.spark.varints import read_varints

small = st.one_of(st.none(), st.binary(max_size=12), st.integers(0, 300).map(bytes))
headers = st.lists(st.tuples(st.text(max_size=5), small), max_size=3).map(tuple)
rows = st.lists(st.tuples(st.integers(-(2**40), 2**40), small, small, headers), min_size=1, max_size=40)


def decoded_rows(data: bytes, start: int = 0, end: int = 1 << 60) -> list[Record]:
    found: list[Record] = []
    for each in decode_batches(split_batches(data), start=start, end=end, headers=True):
        assert each.headers is not None
        names = each.headers.to_pylist()
        for index in range(len(each)):
            pairs = tuple((pair["key"], pair["value"]) for pair in names[index] or ())
            key, value = each.key[index].as_py(), each.value[index].as_py()
            found.append(Record(int(each.offset[index]), int(each.timestamp_ms[index]), key, value, pairs))
    return found


@given(
    st.lists(rows, min_size=1, max_size=4), st.sampled_from([0, 1, 2, 3, 4]), st.integers(0, 60), st.integers(0, 160)
)
@settings(max_examples=150, deadline=None)
def test_columns_hold_what_records_hold(
    batches: list[list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]],
    codec: int,
    start: int,
    end: int,
) -> None:
    data, offset = b"", 0
    for batch in batches:
        data += build_batch(batch, base_offset=offset, compression=codec)
        offset += len(batch)
    expected = [record for _, view in split_batches(data) for record in read_records(view)]
    assert decoded_rows(data) == expected
    assert decoded_rows(data, start, end) == [each for each in expected if start <= each.offset < end]


def test_long_runs_of_equal_lengths_are_found_and_left_at_the_right_record() -> None:
    records = [(5, b"k", bytes(100), ()) for _ in range(3000)] + [(5, b"k", bytes(99), ())]
    records += [(5, b"k", bytes(100), ()) for _ in range(3000)]
    data = build_batch(records)
    assert decoded_rows(data) == read_records(memoryview(data))


def test_gaps_that_compaction_left_stay_gaps() -> None:
    records = [Record(offset, 7, b"k", b"v") for offset in (3, 10, 500, 9000)]
    assert [each.offset for each in decoded_rows(build_batch(records, base_offset=3))] == [3, 10, 500, 9000]


def test_the_broker_s_time_is_the_batch_s_time_for_every_record() -> None:
    data = build_batch([(1, None, b"a", ()), (2, None, b"b", ())], log_append_time=99)
    (found,) = decode_batches(split_batches(data), start=0, end=10)
    assert found.timestamp_ms.tolist() == [99, 99]
    assert found.timestamp_type.tolist() == [1, 1]


def test_batches_that_are_too_old_are_not_unpacked() -> None:
    old = build_batch([(1, None, b"a", ())])
    new = build_batch([(100, None, b"b", ())], base_offset=1)
    found = list(decode_batches(split_batches(old + new), start=0, end=10, min_timestamp_ms=50))
    assert [each.offset.tolist() for each in found] == [[1]]


@given(st.integers(0, 400), st.integers(0, 255))
@settings(max_examples=200, deadline=None)
def test_nonsense_inside_a_batch_is_refused_or_harmless(place: int, byte: int) -> None:
    whole = build_batch([(index, b"key", bytes(index % 90), (("h", b"x"),)) for index in range(20)])
    header, payload = parse_header(whole), bytearray(whole[61:])
    payload[place % len(payload)] = byte
    broken = seal(BatchHeader(*header), bytes(payload)) + bytes(payload)
    try:
        expected: list[Record] | None = read_records(memoryview(broken))
    except KafkaError:
        expected = None
    found: list[Record] | None = None
    code = None
    try:
        found = decoded_rows(broken)
    except KafkaError as error:
        code = error.code
    assert code in (None, ErrorCode.INVALID_RECORD)
    if expected is not None:
        # Offsets outside the batch's own range are the only thing that the column reader leaves out.
        assert found is None or [each for each in expected if each in found] == found


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30))
@settings(deadline=None)
def test_varints_of_any_size_are_read(numbers: list[int]) -> None:
    data, starts = b"", []
    for number in numbers:
        starts.append(len(data))
        rest = (number << 1) ^ (number >> 63)
        while rest > 0x7F:
            data += bytes([rest & 0x7F | 0x80])
            rest >>= 7
        data += bytes([rest])
    values, ends = read_varints(np.frombuffer(data, dtype=np.uint8), np.array(starts))
    assert values.tolist() == numbers
    assert ends.tolist() == [*starts[1:], len(data)]
