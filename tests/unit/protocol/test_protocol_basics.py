"""Tests numbers, ids, error codes, the table of APIs, and the encoding of persisted records."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol import primitives
from penstock.protocol.apis import (
    APIS,
    request_class,
    request_header_version,
    response_class,
    response_header_version,
)
from penstock.protocol.codec import DecodeError
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.persisted import framing, index
from penstock.protocol.persisted.group.offset_commit import OffsetCommitKey, OffsetCommitValue
from penstock.protocol.uuid import METADATA_TOPIC_ID, ZERO_UUID, uuid_from_str, uuid_to_str


@given(st.integers(0, 2**32 - 1))
def test_an_unsigned_varint_survives_a_round_trip(value: int) -> None:
    wire = primitives.write_uvarint(value)
    assert primitives.read_uvarint(wire, 0) == (value, len(wire))


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_signed_varlong_survives_a_round_trip(value: int) -> None:
    wire = primitives.write_varint(value)
    assert primitives.read_varlong(wire, 0) == (value, len(wire))


@pytest.mark.parametrize(
    ("value", "wire"), [(0, b"\0"), (-1, b"\1"), (1, b"\2"), (-2147483648, b"\xff\xff\xff\xff\x0f")]
)
def test_varints_are_written_and_read_in_zigzag_encoding(value: int, wire: bytes) -> None:
    assert primitives.write_varint(value) == wire
    assert primitives.read_varint(wire, 0) == (value, len(wire))


@pytest.mark.parametrize("wire", [b"\xff" * 6, b"\xff\xff\xff\xff\x1f"])
def test_a_varint_over_32_bits_is_refused(wire: bytes) -> None:
    with pytest.raises(DecodeError):
        primitives.read_varint(wire, 0)


def test_a_varlong_over_64_bits_is_refused() -> None:
    with pytest.raises(DecodeError):
        primitives.read_varlong(b"\xff" * 11, 0)
    with pytest.raises(DecodeError):
        primitives.read_uvarlong(b"\xff" * 9 + b"\x02", 0)
    assert primitives.read_uvarlong(b"\xff" * 9 + b"\x01", 0) == (2**64 - 1, 10)


@given(st.binary(min_size=16, max_size=16))
def test_uuid_survives_conversion_to_text_and_back(value: bytes) -> None:
    text = uuid_to_str(value)
    assert len(text) == 22
    assert uuid_from_str(text) == value


def test_uuids_are_written_in_kafkas_text_form() -> None:
    assert uuid_to_str(ZERO_UUID) == "A" * 22
    assert uuid_to_str(METADATA_TOPIC_ID) == "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.mark.parametrize("text", ["", "short", "A" * 23, "A" * 40, "!" * 22])
def test_parsing_an_invalid_id_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        uuid_from_str(text)


def test_error_codes_have_the_numbers_and_retriable_flags_of_kafka() -> None:
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert not ErrorCode.INVALID_TOPIC_EXCEPTION.retriable
    assert (ErrorCode(-1), ErrorCode(0)) == (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE)


def test_a_kafka_error_has_a_code_and_a_message_with_the_remedy() -> None:
    error = KafkaError(ErrorCode.INVALID_CONFIG, "Set a positive number.")
    assert (error.code, error.message) == (ErrorCode.INVALID_CONFIG, "Set a positive number.")
    assert str(error) == "INVALID_CONFIG: Set a positive number."
    assert str(KafkaError(ErrorCode.NONE)) == "NONE"


@pytest.mark.parametrize("key", APIS)
def test_table_of_apis_has_the_same_versions_as_the_message_classes(key: int) -> None:
    api = APIS[key]
    for cls in (request_class(key), response_class(key)):
        declared = (cls.API_KEY, cls.MIN_VERSION, cls.MAX_VERSION, cls.FLEXIBLE_SINCE)
        assert declared == (key, api.min_version, api.max_version, api.flexible_since)
    assert request_class(key).__name__ == api.name + "Request"


def test_flexible_api_versions_use_newer_headers_except_in_the_api_versions_response() -> None:
    assert (request_header_version(0, 8), request_header_version(0, 9)) == (1, 2)
    assert (response_header_version(0, 8), response_header_version(0, 9)) == (0, 1)
    assert (request_header_version(18, 3), response_header_version(18, 3)) == (2, 0)


def test_import_of_the_table_of_apis_imports_no_message_module() -> None:
    code = "import sys, penstock.protocol.apis; print(sum('.messages.' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0\n"


def test_class_of_a_persisted_record_is_found_by_its_type_number() -> None:
    for number in index.METADATA_RECORDS:
        assert number == index.metadata_record(number).API_KEY
    for number in index.REMOTE_LOG_RECORDS:
        assert number == index.remote_log_record(number).API_KEY
    for table, lookup in (
        (index.GROUP_RECORDS, index.group_record),
        (index.TRANSACTION_RECORDS, index.transaction_record),
        (index.SHARE_RECORDS, index.share_record),
    ):
        for number in table:
            assert [cls.API_KEY for cls in lookup(number)] == [number, number]


def test_a_coordinator_record_survives_encoding_and_decoding() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    value = OffsetCommitValue(offset=42, leader_epoch=1, metadata="", commit_timestamp=5)
    wire = framing.encode_key(key)
    assert wire == b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03"
    assert framing.decode_record(index.group_record, wire, framing.encode_value(value, 4)) == (key, value)
    assert framing.decode_record(index.group_record, wire, None) == (key, None)


@pytest.mark.parametrize(("key", "value"), [(b"", None), (b"\x03\xe7", None), (b"\xff\xff", None)])
def test_persisted_record_of_an_unknown_type_is_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises(DecodeError):
        framing.decode_record(index.group_record, key, value)


def test_persisted_record_value_of_an_unknown_version_is_refused() -> None:
    key = framing.encode_key(OffsetCommitKey(group="g", topic="t", partition=0))
    with pytest.raises(DecodeError, match="no version 99"):
        framing.decode_record(index.group_record, key, b"\x00\x63")
