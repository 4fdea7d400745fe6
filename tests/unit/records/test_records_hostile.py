"""Tests batches with a valid CRC and invalid content: readers raise an error code and no other exception."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.batches import split_batches
from penstock.records.build import build_batch, seal
from penstock.records.compact import Compactor, OffsetMap, TransactionScan
from penstock.records.control import parse_control, read_end_txn
from penstock.records.excerpts import Wanted, excerpt_steps
from penstock.records.header import HEADER_SIZE, parse_header
from penstock.records.lookup import first_at_or_after, latest
from penstock.records.record import Record, read_records, records_payload
from penstock.records.scan import Slices, finish, indexes_without_key, raw_records
from penstock.records.validate import (
    AppendRules,
    LeaderBatch,
    Prepared,
    UnpackFirstError,
    inspecting,
    packed_anew,
    validate_own,
    validate_produced,
)
from tools.examples import examples

EXAMPLE = build_batch(
    [(1000 + n, b"k%d" % n, b"v" * n * 30, (("h", b"x"), ("n", None))) for n in range(4)] + [(2000, None, None, ())]
)
RULES = AppendRules(10**6, keys_required=True)


def with_payload(payload: bytes, count: int, codec: int = 0, **fields: int) -> bytes:
    header = parse_header(EXAMPLE)._replace(
        records_count=count, attributes=codec, last_offset_delta=count - 1, **fields
    )
    return seal(header, payload) + payload


def compacts(batch: bytes) -> None:
    header = parse_header(batch)
    offsets = OffsetMap(0, 100)
    offsets.add_batch(header, batch, TransactionScan())
    Compactor(offsets, TransactionScan(), 10**6, 10, header.next_offset).clean(header, batch)


def in_slices(work: Callable[..., Slices[object]], *args: int) -> Callable[[bytes], object]:
    """Returns a function that unpacks the records of a batch and passes them to `work`."""

    def read(batch: bytes) -> object:
        header = parse_header(batch)
        return finish(work(header, records_payload(batch, header), *args))

    return read


def produced(batch: bytes) -> LeaderBatch:
    """Validates a client's batch as an append does. A batch that is large when unpacked is examined first."""
    try:
        return validate_produced(batch, RULES, base_offset=0, leader_epoch=0, now_ms=0)
    except UnpackFirstError as first:
        data = records_payload(first.batch, first.header)
        max_timestamp = finish(inspecting(first.header, data, RULES, 0))
        prepared = Prepared(RULES, max_timestamp, packed_anew(first.header, data, RULES))
    return validate_produced(batch, RULES, base_offset=0, leader_epoch=0, now_ms=0, prepared=prepared)


READERS: list[Callable[[bytes], object]] = [
    read_records,
    lambda batch: list(excerpt_steps(batch, Wanted(), 10**6)),
    lambda batch: list(excerpt_steps(batch, Wanted(contains=b"v", headers=0), 10**6)),
    lambda batch: list(raw_records(parse_header(batch), batch)),
    in_slices(indexes_without_key, 10),
    in_slices(first_at_or_after, 1500),
    in_slices(latest),
    read_end_txn,
    compacts,
    produced,
    lambda batch: validate_own(batch, RULES, base_offset=0, leader_epoch=0, now_ms=0),
    split_batches,
]


def outcome(read: Callable[[bytes], object], batch: bytes) -> ErrorCode:
    try:
        read(batch)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


@pytest.mark.parametrize("read", READERS)
@given(
    payload=st.binary(max_size=120),
    count=st.integers(-(2**31) + 1, 2**31 - 1) | st.integers(0, 8),
    codec=st.integers(0, 7),
)
@settings(max_examples=examples(60), deadline=None)
def test_decoding_garbage_records_raises_a_kafka_error(
    read: Callable[[bytes], object], payload: bytes, count: int, codec: int
) -> None:
    outcome(read, with_payload(payload, count, codec))


@pytest.mark.parametrize("read", READERS)
@given(changes=st.lists(st.tuples(st.integers(0, len(EXAMPLE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=examples(100), deadline=None)
def test_decoding_a_mutated_batch_with_a_correct_crc_raises_only_kafka_errors(
    read: Callable[[bytes], object], changes: list[tuple[int, int]]
) -> None:
    batch = bytearray(EXAMPLE)
    for position, byte in changes:
        batch[position] = byte
    outcome(read, bytes(batch))
    sealed = seal(parse_header(batch), bytes(batch[HEADER_SIZE:])) + bytes(batch[HEADER_SIZE:])
    outcome(read, sealed)


@pytest.mark.parametrize("read", READERS)
@given(data=st.binary(max_size=200))
@settings(max_examples=examples(40), deadline=None)
def test_decoding_bytes_that_are_no_batch_raises_a_kafka_error(read: Callable[[bytes], object], data: bytes) -> None:
    outcome(read, data)


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (b"", 1),
        (b"\x0c\x00\x00\x00\x01\x01\x00", 2**31 - 1),
        (b"\x0c\x00\x00\x00\x01\x01\x00", -1),
        (b"\x0c\x00\x00\x00\x01\x01\x00" * 2, 1),  # bytes behind the last record
        (b"\x0e\x00\x00\x00\x01\x01\x00", 1),  # longer than the data
        (b"\x0a\x00\x00\x00\x01\x01\x00", 1),  # shorter than its fields
        (b"\x01\x00\x00\x00\x01\x01\x00", 1),  # a length of -1
        (b"\x0c\x00\x00\x00\x7e\x01\x00", 1),  # a key past the end
        (b"\x0c\x00\x00\x00\x01\x7e\x00", 1),  # a value past the end
        (b"\x0c\x00\x00\x00\x01\x01\x7e", 1),  # headers past the end
        (b"\x0c\x00\x00\x00\x01\x01\x01", 1),  # -1 headers
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", 1),  # a header without a key
    ],
)
def test_records_with_impossible_lengths_are_refused_with_invalid_record(payload: bytes, count: int) -> None:
    assert outcome(read_records, with_payload(payload, count)) == ErrorCode.INVALID_RECORD


def test_record_of_the_smallest_possible_size_is_decoded() -> None:
    batch = with_payload(b"\x0c\x00\x00\x00\x01\x01\x00", 1)
    assert read_records(batch) == [Record(0, 1000, None, None)]


def test_unpacking_a_batch_is_limited_to_max_bytes() -> None:
    batch = build_batch([(0, None, bytes(10_000), ())], compression=1)
    assert outcome(lambda b: read_records(b, max_bytes=5000), batch) == ErrorCode.MESSAGE_TOO_LARGE


def test_reading_a_batch_with_trailing_bytes_fails_with_corrupt_message() -> None:
    assert outcome(read_records, EXAMPLE + b"x") == ErrorCode.CORRUPT_MESSAGE


@given(key=st.none() | st.binary(max_size=6), value=st.none() | st.binary(max_size=40))
@settings(max_examples=examples(200), deadline=None)
def test_decoding_garbage_control_records_raises_only_kafka_errors(key: bytes | None, value: bytes | None) -> None:
    try:
        parse_control(Record(0, 0, key, value))
    except KafkaError as error:
        code = error.code
    else:
        code = ErrorCode.NONE
    assert code in (ErrorCode.NONE, ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("kind", range(7))
@given(value=st.binary(max_size=60))
@settings(max_examples=examples(60), deadline=None)
def test_decoding_garbage_values_of_known_control_records_raises_only_kafka_errors(kind: int, value: bytes) -> None:
    outcome(lambda data: parse_control(Record(0, 0, bytes((0, 0, 0, kind)), b"\x00\x00" + data)), value)
