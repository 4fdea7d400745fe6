"""Tests how the declaration of a field determines the bytes that are written and read."""

import pytest

from penstock.protocol.codec import EncodeError, decode, encode, encode_parts, reader, writer
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.messages.api_01_fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from penstock.protocol.messages.api_03_metadata import MetadataRequest, MetadataResponse
from penstock.protocol.messages.api_12_heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.protocol.messages.api_20_delete_topics import DeletableTopicResult, DeleteTopicsResponse
from penstock.protocol.messages.headers import RequestHeader
from penstock.protocol.persisted.group.consumer_group_member_metadata import ConsumerGroupMemberMetadataValue
from penstock.protocol.primitives import MAX_ERROR_MESSAGE_BYTES


def produce(records: bytes | memoryview) -> ProduceRequest:
    partition = PartitionProduceData(index=1, records=records)
    return ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[partition])])


def test_field_that_is_not_set_has_kafkas_default() -> None:
    request = FetchRequest()
    assert (request.max_bytes, request.session_epoch, request.topics) == (0x7FFFFFFF, -1, [])
    assert request.cluster_id is None
    assert MetadataRequest().allow_auto_topic_creation is True


def test_two_messages_do_not_share_their_empty_default_arrays() -> None:
    FetchRequest().topics.append(None)  # type: ignore[arg-type]
    assert FetchRequest().topics == []


def test_message_constructor_refuses_an_unknown_keyword() -> None:
    with pytest.raises(TypeError):
        HeartbeatRequest(group="g")  # type: ignore[call-arg]


def test_messages_compare_by_value_and_print_their_fields() -> None:
    assert HeartbeatRequest(group_id="g") == HeartbeatRequest(group_id="g")
    assert HeartbeatRequest(group_id="g") != HeartbeatRequest(group_id="h")
    assert HeartbeatRequest() != HeartbeatResponse()
    assert repr(HeartbeatResponse(error_code=3)) == "HeartbeatResponse(throttle_time_ms=0, error_code=3)"


@pytest.mark.parametrize("version", [3, 9, 12])
def test_decoded_record_set_is_a_view_of_the_frame(version: int) -> None:
    frame = bytearray(encode(produce(b"batch"), version))
    records = decode(ProduceRequest, version, frame).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    frame[frame.index(b"batch")] = ord("B")
    assert bytes(records) == b"Batch"


@pytest.mark.parametrize("version", [4, 12])
def test_record_set_is_encoded_without_a_copy(version: int) -> None:
    first, second = memoryview(b"first batch"), b"second batch"
    topic = FetchableTopicResponse(
        topic="t",
        partitions=[PartitionData(records=first), PartitionData(records=None), PartitionData(records=second)],
    )
    response = FetchResponse(responses=[topic])
    parts = encode_parts(response, version)
    assert any(part is first for part in parts)
    assert any(part is second for part in parts)
    assert b"".join(parts) == encode(response, version)


def test_unknown_tagged_fields_are_kept_and_written_back_in_order() -> None:
    request = HeartbeatRequest(group_id="g", unknown_tagged_fields={300: b"later", 7: b""})
    wire = encode(request, 4)
    assert wire.endswith(b"\x02\x07\x00\xac\x02\x05later")
    assert decode(HeartbeatRequest, 4, wire).unknown_tagged_fields == {7: b"", 300: b"later"}
    assert encode(decode(HeartbeatRequest, 4, wire), 4) == wire


def test_unknown_tagged_fields_survive_a_round_trip_beside_known_tagged_fields() -> None:
    request = FetchRequest(cluster_id="c", unknown_tagged_fields={64: b"x"})
    assert decode(FetchRequest, 12, encode(request, 12)) == request


def test_tagged_field_with_its_default_value_is_not_encoded() -> None:
    assert len(encode(FetchRequest(cluster_id="c"), 12)) == len(encode(FetchRequest(), 12)) + 4


def test_null_struct_in_a_tagged_field_is_encoded_as_a_zero_byte() -> None:
    value = ConsumerGroupMemberMetadataValue(classic_member_metadata=None)
    wire = encode(value, 0)
    assert wire.endswith(b"\x01\x00\x01\x00")
    assert decode(ConsumerGroupMemberMetadataValue, 0, wire) == value


def test_an_ignorable_field_is_dropped_in_a_version_without_it() -> None:
    response = MetadataResponse(cluster_id="c", throttle_time_ms=5)
    assert decode(MetadataResponse, 0, encode(response, 0)) == MetadataResponse()


def test_non_ignorable_field_with_a_value_is_refused_in_a_version_without_it() -> None:
    with pytest.raises(EncodeError, match=r"HeartbeatRequest.group_instance_id has a value that version 2"):
        encode(HeartbeatRequest(group_instance_id="i"), 2)
    encode(HeartbeatRequest(group_instance_id="i"), 3)


def test_encoding_null_is_refused_in_a_version_whose_field_is_not_nullable() -> None:
    with pytest.raises(EncodeError):
        encode(MetadataRequest(topics=None), 0)
    assert encode(MetadataRequest(topics=None), 1) == b"\xff\xff\xff\xff"


def test_encoding_a_value_that_does_not_fit_its_field_raises_encode_error() -> None:
    with pytest.raises(EncodeError):
        encode(HeartbeatRequest(generation_id=2**31), 0)
    with pytest.raises(EncodeError, match="at most 32767"):
        encode(HeartbeatRequest(group_id="g" * 40_000), 4)
    with pytest.raises(EncodeError):
        encode(HeartbeatRequest(group_id="\ud800"), 0)
    with pytest.raises(EncodeError, match="16 bytes"):
        encode(ProduceRequest(topic_data=[TopicProduceData(topic_id=b"short")]), 13)
    with pytest.raises(EncodeError, match="no version"):
        encode(HeartbeatRequest(), 77)


@pytest.mark.parametrize("size", [0, 126, 127, 128, 16_383, 32_767])
@pytest.mark.parametrize("version", [0, 4])
def test_strings_of_all_encoded_lengths_survive_a_round_trip(size: int, version: int) -> None:
    request = HeartbeatRequest(group_id="x" * size)
    assert decode(HeartbeatRequest, version, encode(request, version)) == request


def test_request_header_version_2_encodes_the_client_id_with_a_two_byte_length() -> None:
    header = RequestHeader(request_api_key=18, request_api_version=3, correlation_id=1, client_id="me")
    assert encode(header, 2) == b"\x00\x12\x00\x03\x00\x00\x00\x01\x00\x02me\x00"


def test_codec_of_a_message_version_is_compiled_once() -> None:
    assert reader(HeartbeatRequest, 4) is reader(HeartbeatRequest, 4)
    assert writer(HeartbeatRequest, 4) is writer(HeartbeatRequest, 4)
    assert reader(HeartbeatRequest, 4) is not reader(HeartbeatRequest, 3)


def test_too_long_error_message_is_shortened_in_the_middle() -> None:
    """Checks that a response with a long error message still fits: the message may repeat a name of 32,767 bytes."""
    name = "Ä" * 16_000
    message = f"There is no topic {name}: create it first."
    answer = decode(
        DeleteTopicsResponse,
        5,
        encode(DeleteTopicsResponse(responses=[DeletableTopicResult(name="t", error_message=message)]), 5),
    )
    told = answer.responses[0].error_message
    assert told is not None
    assert len(told.encode()) <= MAX_ERROR_MESSAGE_BYTES
    assert told.startswith("There is no topic ÄÄ")
    assert told.endswith("ÄÄ: create it first.")
    assert " [...] " in told
