"""Tests that Penstock and two other implementations read each other's batches."""

from __future__ import annotations

import struct
import warnings
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.check import InvariantError
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.batches import crc_ok, split_batches
from penstock.records.build import NewRecord, build_batch
from penstock.records.compression import Codec
from penstock.records.excerpts import Wanted, excerpt_steps
from penstock.records.header import HEADER_SIZE, BatchHeader, parse_header, sequence_after
from penstock.records.record import Record, read_records
from penstock.records.varint import read_varint, read_varlong, varint
from tools.examples import examples

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its own resources the old way
    from kafka.record.default_records import DefaultRecordBatchBuilder
    from kafka.record.memory_records import MemoryRecords

CODECS = list(Codec)
# kafka-python wants another snappy package than the one here; aiokafka uses ours and checks snappy
KAFKA_PYTHON_CODECS = [codec for codec in CODECS if codec is not Codec.SNAPPY]

timestamps = st.integers(0, 2**41)
header_lists = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3).map(tuple)
new_records = st.tuples(
    timestamps, st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=300), header_lists
)
record_lists = st.lists(new_records, min_size=1, max_size=20)


def content(records: list[Record]) -> list[NewRecord]:
    return [(r.timestamp, r.key, r.value, r.headers) for r in records]


@pytest.mark.parametrize("codec", CODECS)
@given(records=record_lists, base_offset=st.integers(0, 2**62))
@settings(max_examples=examples(40), deadline=None)
def test_records_read_from_a_batch_equal_the_records_it_was_built_from(
    codec: Codec, records: list[NewRecord], base_offset: int
) -> None:
    batch = build_batch(records, base_offset=base_offset, compression=codec)
    read = read_records(batch)
    assert content(read) == records
    assert [r.offset for r in read] == list(range(base_offset, base_offset + len(records)))
    excerpts = [each for found, _ in excerpt_steps(batch, Wanted(record_bytes=2**30), 2**30) for each in found]
    assert [(each.offset, each.timestamp, each.key, each.value, each.headers) for each in excerpts] == read
    header = parse_header(batch)
    assert crc_ok(batch)
    assert header.size == len(batch)
    assert header.records_count == len(records)
    assert header.max_timestamp == max(r[0] for r in records)


@pytest.mark.parametrize("codec", KAFKA_PYTHON_CODECS)
@given(records=record_lists)
@settings(max_examples=examples(25), deadline=None)
def test_kafka_python_reads_penstocks_batches(codec: Codec, records: list[NewRecord]) -> None:
    data = build_batch(records, base_offset=7, compression=codec, producer_id=9, producer_epoch=1, base_sequence=4)
    batch = MemoryRecords(data).next_batch()
    assert batch.validate_crc()
    assert (batch.base_offset, batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 9, 1, 4)
    assert [(r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch] == records


@pytest.mark.parametrize("codec", CODECS)
@given(records=record_lists)
@settings(max_examples=examples(25), deadline=None)
def test_aiokafka_reads_penstocks_batches(codec: Codec, records: list[NewRecord]) -> None:
    batch = AioBatch(build_batch(records, base_offset=7, compression=codec))
    assert batch.validate_crc()
    read = [(r.timestamp, r.key, r.value, tuple((k, v) for k, v in r.headers)) for r in batch]
    assert read == records


def _foreign(builder: Any, records: list[NewRecord]) -> bytes:
    for offset, (timestamp, key, value, headers) in enumerate(records):
        assert builder.append(offset, timestamp, key, value, list(headers)) is not None
    return bytes(builder.build())


@pytest.mark.parametrize("codec", KAFKA_PYTHON_CODECS)
@given(records=record_lists)
@settings(max_examples=examples(25), deadline=None)
def test_penstock_reads_batches_of_kafka_python(codec: Codec, records: list[NewRecord]) -> None:
    builder = DefaultRecordBatchBuilder(2, int(codec), True, 9, 1, 4, 10**9)
    batch = _foreign(builder, records)
    assert crc_ok(batch)
    assert content(read_records(batch)) == records
    assert parse_header(batch).is_transactional


@pytest.mark.parametrize("codec", CODECS)
@given(records=record_lists)
@settings(max_examples=examples(25), deadline=None)
def test_penstock_reads_batches_of_aiokafka(codec: Codec, records: list[NewRecord]) -> None:
    builder = AioBuilder(2, int(codec), 0, -1, -1, -1, 10**9)
    batch = _foreign(builder, records)
    assert crc_ok(batch)
    assert content(read_records(batch)) == records


@given(records=record_lists)
@settings(max_examples=examples(25), deadline=None)
def test_uncompressed_batches_have_the_same_bytes_as_batches_of_kafka_python(records: list[NewRecord]) -> None:
    theirs = _foreign(DefaultRecordBatchBuilder(2, 0, True, 9, 1, 4, 10**9), records)
    ours = build_batch(records, producer_id=9, producer_epoch=1, base_sequence=4, transactional=True)
    epoch = slice(12, 16)  # the leader's to fill in; a client may leave what it likes
    assert ours[: epoch.start] + theirs[epoch] + ours[epoch.stop :] == theirs


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_varlong_survives_encoding_and_decoding(value: int) -> None:
    encoded = varint(value)
    assert read_varlong(encoded + b"x", 0) == (value, len(encoded))


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_varint_survives_encoding_and_decoding(value: int) -> None:
    encoded = varint(value)
    assert len(encoded) <= 5
    assert read_varint(encoded, 0) == (value, len(encoded))


@pytest.mark.parametrize("data", [b"\x80" * 5 + b"\x01", b"\xff" * 20])
def test_varint_with_too_many_bytes_is_refused_with_invalid_record(data: bytes) -> None:
    with pytest.raises(KafkaError) as refused:
        read_varint(data, 0)
    assert refused.value.code == ErrorCode.INVALID_RECORD


def test_records_of_a_batch_keep_their_offsets_even_with_gaps_between_them() -> None:
    records = [Record(10, 5, b"a", b"1"), Record(14, 3, b"b", None)]
    batch = build_batch(records, base_offset=8)
    assert read_records(batch) == records
    header = parse_header(batch)
    assert (header.last_offset, header.next_offset, header.records_count) == (14, 15, 2)


def test_building_an_empty_batch_or_a_batch_with_unordered_offsets_raises_an_invariant_error() -> None:
    with pytest.raises(InvariantError):
        build_batch([Record(3, 0, None, None), Record(3, 0, None, None)], base_offset=3)
    with pytest.raises(InvariantError):
        build_batch([])


def test_every_record_of_a_log_append_time_batch_has_the_timestamp_of_the_batch() -> None:
    batch = build_batch([(1, b"k", b"v", ()), (2, b"k", b"v", ())], log_append_time=99)
    assert parse_header(batch).log_append_time
    assert [r.timestamp for r in read_records(batch)] == [99, 99]


def test_delete_horizon_in_the_base_timestamp_does_not_change_record_timestamps() -> None:
    batch = build_batch([(1, b"k", None, ()), (2, b"k", None, ())], delete_horizon_ms=5000)
    header = parse_header(batch)
    assert (header.delete_horizon_ms, header.max_timestamp) == (5000, 2)
    assert [r.timestamp for r in read_records(batch)] == [1, 2]


def test_a_parsed_header_is_packed_to_the_same_bytes() -> None:
    batch = build_batch(
        [(1, b"k", None, ())], base_offset=3, leader_epoch=6, producer_id=1, producer_epoch=2, base_sequence=3
    )
    assert parse_header(batch).pack() == batch[:HEADER_SIZE]


@pytest.mark.parametrize(("sequence", "increment", "result"), [(0, 1, 1), (2**31 - 1, 1, 0), (2**31 - 2, 5, 3)])
def test_sequence_numbers_wrap_to_zero_after_the_largest_number(sequence: int, increment: int, result: int) -> None:
    assert sequence_after(sequence, increment) == result
    header = BatchHeader(0, 0, 0, 2, 0, 0, increment, 0, 0, 1, 1, sequence, increment + 1)
    assert header.last_sequence == result


def test_last_sequence_of_a_batch_without_sequence_numbers_is_minus_one() -> None:
    assert parse_header(build_batch([(1, None, None, ()), (1, None, None, ())])).last_sequence == -1


def test_buffer_is_split_into_batches_by_their_length_fields() -> None:
    parts = [build_batch([(1, None, bytes(n), ())], base_offset=n) for n in range(5)]
    split = split_batches(b"".join(parts))
    assert [bytes(view) for _, view in split] == parts
    assert [header.base_offset for header, _ in split] == list(range(5))


def test_incomplete_batch_is_corrupt_unless_partial_batches_are_allowed() -> None:
    batch = build_batch([(1, None, b"value", ())])
    for end in range(len(batch) + 1, 2 * len(batch)):
        cut = (batch + batch)[:end]
        assert len(split_batches(cut, allow_partial=True)) == 1
        with pytest.raises(KafkaError) as refused:
            split_batches(cut)
        assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("magic", "code"),
    [
        (0, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (1, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (3, ErrorCode.CORRUPT_MESSAGE),
        (255, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_batches_with_another_magic_byte_than_2_are_refused(magic: int, code: ErrorCode) -> None:
    batch = bytearray(build_batch([(1, None, b"value", ())]))
    batch[16] = magic
    with pytest.raises(KafkaError) as refused:
        split_batches(batch)
    assert refused.value.code == code


@pytest.mark.parametrize("length", [-1, 0, 13, 14, 48])
def test_batch_length_below_the_header_size_is_corrupt(length: int) -> None:
    batch = bytearray(build_batch([(1, None, b"value" * 20, ())]))
    struct.pack_into(">i", batch, 8, length)
    with pytest.raises(KafkaError) as refused:
        split_batches(batch)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


def test_flipped_bit_in_the_bytes_that_the_crc_covers_is_detected() -> None:
    batch = build_batch([(1, b"key", b"value", ())])
    for position in range(17, len(batch)):
        broken = bytearray(batch)
        broken[position] ^= 1
        assert not crc_ok(broken)
    assert not crc_ok(batch[:40])
