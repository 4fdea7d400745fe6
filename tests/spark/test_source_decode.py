"""The column decoder gives the same records as the reader that makes an object per record."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.batches import split_batches
from penstock.records.build import build_batch, seal
from penstock.records.header import HEADER_SIZE, BatchHeader, parse_header
from penstock.records.record import Record, read_records
from penstock.spark.decode import decode_batches
from penstock.spark.varints import read_varints
from tools.examples import examples

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
@settings(max_examples=examples(150), deadline=None)
def test_decoded_columns_have_the_same_fields_as_the_records(
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


def test_record_of_another_length_between_records_of_equal_length_is_decoded_correctly() -> None:
    records = [(5, b"k", bytes(100), ()) for _ in range(3000)] + [(5, b"k", bytes(99), ())]
    records += [(5, b"k", bytes(100), ()) for _ in range(3000)]
    data = build_batch(records)
    assert decoded_rows(data) == read_records(memoryview(data))


def test_batch_with_the_size_but_not_the_layout_of_the_previous_batch_is_decoded() -> None:
    sizes = ([10, 20, 30, 40], [40, 30, 20, 10], [10, 20, 30, 40], [25, 25, 25, 25])
    batches = [
        build_batch([(1, b"k", bytes([size]) * size, ()) for size in each], base_offset=4 * index)
        for index, each in enumerate(sizes)
    ]
    assert len({len(each) for each in batches}) == 1
    data = b"".join(batches)
    assert decoded_rows(data) == [record for _, view in split_batches(data) for record in read_records(view)]


def test_damaged_batch_among_batches_of_the_same_layout_is_refused() -> None:
    batches = [build_batch([(1, b"k", bytes(50), ())] * 4, base_offset=4 * index) for index in range(3)]
    damaged = bytearray(batches[1])
    damaged[HEADER_SIZE] += 2  # the length of its first record: one more
    with pytest.raises(KafkaError) as refused:
        decoded_rows(batches[0] + damaged + batches[2])  # the fetch checks checksums, not the decoder
    assert refused.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("value", [b"", None, bytes(1024), bytes(1 << 20)], ids=["empty", "null", "1 KiB", "1 MiB"])
@pytest.mark.parametrize("other", [False, True], ids=["one length", "two lengths"])
def test_columns_with_values_of_equal_and_of_different_lengths_are_decoded(value: bytes | None, other: bool) -> None:
    records = [(index, b"%04d" % index, value, ()) for index in range(12)]
    if other:
        records[7] = (7, b"k", b"another", ())
    data = build_batch(records[:6]) + build_batch(records[6:], base_offset=6)
    assert decoded_rows(data) == [record for _, view in split_batches(data) for record in read_records(view)]


def test_batch_that_is_skipped_between_two_batches_of_a_buffer_is_not_decoded() -> None:
    first, skipped, last = (
        build_batch([(5, b"k", bytes([index]) * 40, ())] * 10, base_offset=index * 10) for index in range(3)
    )
    batches = split_batches(first + skipped + last)
    (found,) = decode_batches([batches[0], batches[2]], start=0, end=100)
    assert found.offset.tolist() == [*range(10), *range(20, 30)]
    assert found.value.to_pylist() == [bytes([0]) * 40] * 10 + [bytes([2]) * 40] * 10


def test_compressed_batches_and_batches_from_several_buffers_are_decoded_together() -> None:
    parts = [
        build_batch([(5, b"k", bytes([index]) * 40, ())] * 10, base_offset=index * 10, compression=codec)
        for index, codec in enumerate((0, 4, 0))
    ]
    (found,) = decode_batches([split_batches(part)[0] for part in parts], start=5, end=25)
    assert found.offset.tolist() == [*range(5, 25)]
    assert found.value.to_pylist() == [bytes([offset // 10]) * 40 for offset in range(5, 25)]


def test_decoded_records_keep_their_offsets_across_gaps_left_by_compaction() -> None:
    records = [Record(offset, 7, b"k", b"v") for offset in (3, 10, 500, 9000)]
    assert [each.offset for each in decoded_rows(build_batch(records, base_offset=3))] == [3, 10, 500, 9000]


def test_every_record_of_a_log_append_time_batch_has_the_timestamp_of_the_batch() -> None:
    data = build_batch([(1, None, b"a", ()), (2, None, b"b", ())], log_append_time=99)
    (found,) = decode_batches(split_batches(data), start=0, end=10)
    assert found.timestamp_ms.tolist() == [99, 99]
    assert found.timestamp_type.tolist() == [1, 1]


def test_batches_older_than_the_minimum_timestamp_are_not_decoded() -> None:
    old = build_batch([(1, None, b"a", ())])
    new = build_batch([(100, None, b"b", ())], base_offset=1)
    found = list(decode_batches(split_batches(old + new), start=0, end=10, min_timestamp_ms=50))
    assert [each.offset.tolist() for each in found] == [[1]]


@given(st.integers(0, 400), st.integers(0, 255))
@settings(max_examples=examples(200), deadline=None)
def test_each_record_decoded_from_a_corrupt_batch_is_also_returned_by_the_record_reader(place: int, byte: int) -> None:
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
        # The column decoder only leaves out offsets outside of the batch's own range.
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
