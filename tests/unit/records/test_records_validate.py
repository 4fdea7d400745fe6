"""Tests which batches a leader accepts or refuses, the error codes, and the header fields that the leader changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.batches import claimed_attributes, crc_ok
from penstock.records.build import NewRecord, build_batch, seal
from penstock.records.compression import Codec
from penstock.records.control import EndTxn, build_end_txn
from penstock.records.header import HEADER_SIZE, parse_header
from penstock.records.record import read_records, records_payload
from penstock.records.scan import SLICE_RECORDS, finish
from penstock.records.validate import (
    MAX_RECORD_ERRORS,
    AppendRules,
    InvalidRecordsError,
    LeaderBatch,
    Prepared,
    UnpackFirstError,
    inspecting,
    packed_anew,
    validate_own,
    validate_produced,
)

NOW = 1_700_000_000_000
HOUR = 3_600_000
RULES = AppendRules(1_048_588, timestamp_after_max_ms=HOUR)
RECORDS: list[NewRecord] = [(NOW - 5, b"a", b"1" * 50, ()), (NOW - 3, b"b", b"2", ()), (NOW - 4, None, b"3", ())]
BATCH = build_batch(RECORDS)


def produced(batch: bytes, rules: AppendRules = RULES) -> LeaderBatch:
    """Validates a batch as an append does. A batch that is too large to be examined at once is prepared first."""
    place: dict[str, Any] = {"base_offset": 500, "leader_epoch": 7, "now_ms": NOW}
    try:
        return validate_produced(batch, rules, **place)
    except UnpackFirstError as first:
        data = records_payload(first.batch, first.header)
        max_timestamp = finish(inspecting(first.header, data, rules, NOW))
        prepared = Prepared(rules, max_timestamp, packed_anew(first.header, data, rules))
        return validate_produced(batch, rules, **place, prepared=prepared)


def refusal(batch: bytes, rules: AppendRules = RULES) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        produced(batch, rules)
    return refused.value


def stored(batch: LeaderBatch) -> bytes:
    return batch.head + bytes(batch.tail)


def changed(**fields: int) -> bytes:
    """Returns BATCH with other header fields and the right CRC for them."""
    payload = BATCH[HEADER_SIZE:]
    return seal(parse_header(BATCH)._replace(**fields), payload) + payload


def test_validation_changes_only_offset_and_leader_epoch_of_a_batch() -> None:
    result = produced(BATCH)
    data = stored(result)
    assert parse_header(data) == result.header
    assert (result.header.base_offset, result.header.last_offset) == (500, 502)
    assert result.header.partition_leader_epoch == 7
    assert data[16:] == BATCH[16:]
    assert crc_ok(data)
    assert [r.offset for r in read_records(data)] == [500, 501, 502]


def test_validation_does_not_copy_the_payload_of_a_batch() -> None:
    frame = bytearray(BATCH)
    result = validate_produced(memoryview(frame), RULES, base_offset=0, leader_epoch=0, now_ms=NOW)
    assert isinstance(result.tail, memoryview)
    assert result.tail.obj is frame


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_of_every_codec_are_accepted_unchanged(codec: Codec) -> None:
    batch = build_batch(RECORDS, compression=codec)
    assert stored(produced(batch))[16:] == batch[16:]
    assert claimed_attributes(batch) == codec
    assert claimed_attributes(batch[:60]) == 0


def test_idempotent_and_transactional_batches_are_accepted() -> None:
    batch = build_batch(RECORDS, producer_id=4, producer_epoch=0, base_sequence=0, transactional=True)
    header = produced(batch).header
    assert (header.producer_id, header.last_sequence, header.is_transactional) == (4, 2, True)


MAGIC_0 = BATCH[:16] + b"\x00" + BATCH[17:]
MAGIC_1 = BATCH[:16] + b"\x01" + BATCH[17:]
MAGIC_3 = BATCH[:16] + b"\x03" + BATCH[17:]
BAD_CRC = BATCH[:-1] + b"\xff"
REFUSED: list[tuple[str, bytes, ErrorCode]] = [
    ("nothing", b"", ErrorCode.INVALID_RECORD),
    ("less than a header", BATCH[:40], ErrorCode.INVALID_RECORD),
    ("a cut off batch", BATCH[:-1], ErrorCode.INVALID_RECORD),
    ("two batches", BATCH + BATCH, ErrorCode.INVALID_RECORD),
    ("format v0", MAGIC_0, ErrorCode.INVALID_RECORD),
    ("format v1", MAGIC_1, ErrorCode.INVALID_RECORD),
    ("an unknown format", MAGIC_3, ErrorCode.CORRUPT_MESSAGE),
    ("a tiny length", BATCH[:8] + b"\x00\x00\x00\x05" + BATCH[12:], ErrorCode.CORRUPT_MESSAGE),
    ("a length below the header", BATCH[:8] + b"\x00\x00\x00\x20" + BATCH[12:], ErrorCode.CORRUPT_MESSAGE),
    ("a negative length", BATCH[:8] + b"\xff\xff\xff\xff" + BATCH[12:], ErrorCode.CORRUPT_MESSAGE),
    ("a wrong CRC", BAD_CRC, ErrorCode.CORRUPT_MESSAGE),
    ("a base offset", build_batch(RECORDS, base_offset=1), ErrorCode.INVALID_RECORD),
    ("no records", changed(records_count=0, last_offset_delta=-1), ErrorCode.INVALID_RECORD),
    ("a negative count", changed(records_count=-1), ErrorCode.INVALID_RECORD),
    ("a count below the offsets", changed(records_count=2), ErrorCode.INVALID_RECORD),
    ("a count above the offsets", changed(records_count=4), ErrorCode.INVALID_RECORD),
    ("a negative last offset", changed(last_offset_delta=-1), ErrorCode.INVALID_RECORD),
    (
        "more records than bytes",
        changed(records_count=2**31 - 1, last_offset_delta=2**31 - 2),
        ErrorCode.INVALID_RECORD,
    ),
    (
        "more records than a codec can pack",
        changed(records_count=2**31 - 1, last_offset_delta=2**31 - 2, attributes=Codec.ZSTD),
        ErrorCode.INVALID_RECORD,
    ),
    ("an unknown codec", changed(attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ("a control batch", changed(attributes=0x20), ErrorCode.INVALID_RECORD),
    (
        "a marker",
        build_end_txn(EndTxn(True, 0), producer_id=1, producer_epoch=1, timestamp=NOW),
        ErrorCode.INVALID_RECORD,
    ),
    ("a producer without sequence", changed(producer_id=1, producer_epoch=1), ErrorCode.INVALID_RECORD),
    ("a producer without epoch", changed(producer_id=1, base_sequence=1), ErrorCode.INVALID_RECORD),
    ("a transaction without producer", changed(attributes=0x10), ErrorCode.INVALID_RECORD),
    ("a time in the future", build_batch([(NOW + HOUR + 1, b"k", b"v", ())]), ErrorCode.INVALID_TIMESTAMP),
]


@pytest.mark.parametrize(("batch", "code"), [pytest.param(b, c, id=name) for name, b, c in REFUSED])
def test_an_invalid_batch_of_a_client_is_refused(batch: bytes, code: ErrorCode) -> None:
    error = refusal(batch)
    assert error.code == code
    assert error.message


def test_produce_ignores_an_incomplete_batch_after_the_first_batch_as_in_kafka() -> None:
    for tail in (b"x", BATCH[:30], BATCH[:-1]):
        assert stored(produced(BATCH + tail))[16:] == BATCH[16:]


def test_batch_size_is_checked_before_the_crc() -> None:
    assert refusal(BATCH, replace(RULES, max_message_bytes=len(BATCH) - 1)).code == ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(BAD_CRC, replace(RULES, max_message_bytes=len(BATCH) - 1)).code == ErrorCode.MESSAGE_TOO_LARGE
    assert produced(BATCH, replace(RULES, max_message_bytes=len(BATCH)))


def test_timestamps_too_old_or_too_new_are_refused_and_the_error_lists_the_records() -> None:
    rules = replace(RULES, timestamp_before_max_ms=1000)
    batch = build_batch([(NOW - 2000, b"k", b"v", ()), (NOW, b"k", b"v", ()), (NOW - 1500, b"k", b"v", ())])
    error = refusal(batch, rules)
    assert isinstance(error, InvalidRecordsError)
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    assert [record.batch_index for record in error.record_errors] == [0, 2]
    assert produced(build_batch([(NOW - 1000, None, None, ()), (NOW + HOUR, None, None, ())]), rules)


def test_record_without_a_timestamp_passes_all_timestamp_bounds() -> None:
    rules = replace(RULES, timestamp_before_max_ms=1000)
    assert produced(build_batch([(-1, b"k", b"v", ())]), rules).header.max_timestamp == -1


def test_a_missing_max_timestamp_is_set_from_the_records() -> None:
    result = produced(changed(max_timestamp=-1))
    assert result.header.max_timestamp == NOW - 3
    assert stored(result)[16:] == BATCH[16:]


def test_topic_with_log_append_time_overwrites_the_timestamp_and_recomputes_the_crc() -> None:
    result = produced(BATCH, replace(RULES, log_append_time=True))
    data = stored(result)
    assert crc_ok(data)
    assert parse_header(data) == result.header
    assert (result.header.max_timestamp, result.header.log_append_time) == (NOW, True)
    assert [r.timestamp for r in read_records(data)] == [NOW] * 3
    assert data[HEADER_SIZE:] == BATCH[HEADER_SIZE:]


def test_timestamp_bounds_do_not_apply_to_a_topic_with_log_append_time() -> None:
    rules = replace(RULES, log_append_time=True, timestamp_before_max_ms=0)
    assert produced(build_batch([(0, b"k", b"v", ()), (2 * NOW, b"k", b"v", ())]), rules)


def test_batch_that_a_producer_sends_with_log_append_time_is_handled_as_in_kafka() -> None:
    batch = build_batch(RECORDS, log_append_time=NOW)
    error = refusal(batch, replace(RULES, log_append_time=True))
    assert isinstance(error, InvalidRecordsError)
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    assert len(error.record_errors) == 3
    # where the topic keeps create times, Kafka takes the claim away and the batch in
    result = produced(batch)
    assert not result.header.log_append_time
    assert crc_ok(stored(result))


@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("target", list(Codec))
def test_codec_of_the_topic_replaces_the_codec_of_the_producer(source: Codec, target: Codec) -> None:
    batch = build_batch(RECORDS, compression=source, producer_id=1, producer_epoch=2, base_sequence=3)
    result = produced(batch, replace(RULES, codec=target))
    data = stored(result)
    assert crc_ok(data)
    assert parse_header(data) == result.header
    assert result.header.compression == target
    assert result.header.base_sequence == 3
    assert [(r.timestamp, r.key, r.value, r.headers) for r in read_records(data)] == RECORDS
    if source == target:
        assert data[16:] == batch[16:]


def test_batch_that_exceeds_max_message_bytes_after_recompression_is_refused() -> None:
    batch = build_batch([(NOW, None, bytes(50_000), ())], compression=Codec.GZIP)
    rules = replace(RULES, codec=Codec.NONE, max_message_bytes=10_000)
    assert refusal(batch, rules).code == ErrorCode.MESSAGE_TOO_LARGE


def test_damaged_compressed_batch_is_refused_as_corrupt_if_it_has_to_be_recompressed() -> None:
    batch = changed(attributes=Codec.LZ4)
    assert produced(batch)
    assert refusal(batch, replace(RULES, codec=Codec.NONE)).code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", list(Codec))
def test_error_of_a_compacted_topic_lists_the_records_without_a_key(codec: Codec) -> None:
    rules = replace(RULES, keys_required=True)
    error = refusal(build_batch(RECORDS, compression=codec), rules)
    assert isinstance(error, InvalidRecordsError)
    assert error.code == ErrorCode.INVALID_RECORD
    assert [record.batch_index for record in error.record_errors] == [2]
    batch = build_batch(RECORDS[:2], compression=codec)
    assert stored(produced(batch, rules))[16:] == batch[16:]


def test_compacted_topic_accepts_a_record_with_an_empty_key() -> None:
    assert produced(build_batch([(NOW, b"", b"v", ())]), replace(RULES, keys_required=True))


def test_validation_finds_records_without_a_key_in_a_batch_of_thousands_of_records() -> None:
    records: list[NewRecord] = [(NOW + n * 1000, b"k" * 100 if n % 2 else None, b"v", ()) for n in range(3000)]
    error = refusal(build_batch(records), replace(RULES, keys_required=True))
    assert isinstance(error, InvalidRecordsError)
    assert [record.batch_index for record in error.record_errors] == list(range(0, 2 * MAX_RECORD_ERRORS, 2))


def test_one_append_of_the_broker_itself_may_contain_several_batches_and_control_batches() -> None:
    marker = build_end_txn(EndTxn(False, 3), producer_id=1, producer_epoch=1, timestamp=NOW)
    results = validate_own(BATCH + marker + BATCH, RULES, base_offset=10, leader_epoch=2, now_ms=NOW)
    assert [batch.header.base_offset for batch in results] == [10, 13, 14]
    assert all(crc_ok(stored(batch)) for batch in results)
    assert {batch.header.partition_leader_epoch for batch in results} == {2}


def test_control_batches_of_the_broker_stay_uncompressed() -> None:
    marker = build_end_txn(EndTxn(False, 3), producer_id=1, producer_epoch=1, timestamp=NOW)
    rules = replace(RULES, codec=Codec.LZ4)
    (result,) = validate_own(marker, rules, base_offset=10, leader_epoch=2, now_ms=NOW)
    assert result.header.compression == Codec.NONE


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (BAD_CRC, ErrorCode.CORRUPT_MESSAGE),
        (BATCH + BATCH[:-1], ErrorCode.CORRUPT_MESSAGE),
        (changed(records_count=2), ErrorCode.INVALID_RECORD),
        (build_batch([(NOW, None, bytes(2_000_000), ())]), ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_batches_that_the_broker_itself_appends_are_validated_too(data: bytes, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        validate_own(data, RULES, base_offset=0, leader_epoch=0, now_ms=NOW)
    assert refused.value.code == code


@dataclass(frozen=True)
class Settings:
    max_message_bytes: int = 5000
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = 10
    message_timestamp_after_max_ms: int = 20
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    cleanup_policy: frozenset[str] = frozenset({"delete"})


def test_topic_configs_decide_which_batches_are_accepted_and_how_they_are_stored() -> None:
    assert AppendRules.of(Settings()) == AppendRules(5000, False, 10, 20, None, None, False)
    special = Settings(
        message_timestamp_type="LogAppendTime",
        compression_type="zstd",
        compression_zstd_level=7,
        cleanup_policy=frozenset({"compact", "delete"}),
    )
    assert AppendRules.of(special) == AppendRules(5000, True, 10, 20, Codec.ZSTD, 7, True)
    assert AppendRules.of(Settings(compression_type="uncompressed")).codec is Codec.NONE
    assert AppendRules.of(Settings(compression_type="snappy")).level is None


def test_append_refuses_to_decompress_a_batch_whose_decompressed_size_may_be_large() -> None:
    """A few kilobytes may unpack to a million records, and examining them would block all other requests."""
    records: list[NewRecord] = [(NOW + 2 * HOUR, None, b"", ())] * (SLICE_RECORDS + 1)
    tiny = build_batch(records, compression=Codec.ZSTD)
    wide = build_batch([(NOW, None, bytes(10**6), ())], compression=Codec.ZSTD)
    assert max(len(tiny), len(wide)) < 2000
    for batch, rules in (
        (tiny, RULES),
        (tiny, replace(RULES, keys_required=True)),
        (wide, replace(RULES, keys_required=True)),
        (wide, replace(RULES, codec=Codec.LZ4)),
    ):
        with pytest.raises(UnpackFirstError):
            validate_produced(batch, rules, base_offset=0, leader_epoch=0, now_ms=NOW)


def test_validation_reports_a_limited_number_of_invalid_timestamps() -> None:
    records: list[NewRecord] = [(NOW + 2 * HOUR, None, b"", ())] * (20 * SLICE_RECORDS)
    batch = build_batch(records)
    header = parse_header(batch)
    looking = inspecting(header, records_payload(batch, header), RULES, NOW)
    slices = 0
    with pytest.raises(InvalidRecordsError) as refused:
        for slices, _ in enumerate(looking, 1):  # noqa: B007 (counted)
            pass
    assert len(refused.value.record_errors) == MAX_RECORD_ERRORS
    assert slices <= MAX_RECORD_ERRORS // SLICE_RECORDS + 1


def test_batch_is_decompressed_again_if_the_topic_config_changed_after_the_first_decompression() -> None:
    batch = build_batch([(NOW, b"k", bytes(100_000), ())], compression=Codec.ZSTD)
    old, new = replace(RULES, keys_required=True), replace(RULES, codec=Codec.LZ4)
    with pytest.raises(UnpackFirstError):
        validate_produced(batch, new, base_offset=0, leader_epoch=0, now_ms=NOW, prepared=Prepared(old, NOW, None))
