"""Tests that invalid bytes raise only DecodeError, and allocate memory only in proportion to their frame."""

import random
import tracemalloc

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from wire_strategies import message_classes, messages, version_id

from penstock.protocol import primitives
from penstock.protocol.codec import DecodeError, decode, decode_prefix, encode
from penstock.protocol.messages.api_00_produce import ProduceRequest
from penstock.protocol.messages.api_03_metadata import MetadataRequest, MetadataRequestTopic
from penstock.protocol.messages.api_12_heartbeat import HeartbeatRequest
from penstock.protocol.messages.api_15_describe_groups import DescribeGroupsRequest
from penstock.protocol.messages.api_18_api_versions import ApiVersionsRequest
from penstock.protocol.messages.headers import RequestHeader
from penstock.protocol.schema import Message

pytestmark = pytest.mark.exhaustive

TOO_LONG_VARINT = b"\xff\xff\xff\xff\xff\x01"
HUGE_LENGTH = b"\xff\xff\xff\xff\x07"


def refuse(cls: type[Message], version: int, data: bytes, pattern: str) -> None:
    for buffer in (data, memoryview(data)):
        with pytest.raises(DecodeError, match=pattern):
            decode(cls, version, buffer)


def mutate(data: bytes, rng: random.Random) -> bytes:
    wire = bytearray(data or b"\0")
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(wire))
        match rng.randrange(5):
            case 0:
                wire[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 1:
                del wire[at : at + rng.randint(1, 4)]
            case 2:
                wire[at:at] = rng.choice((TOO_LONG_VARINT, HUGE_LENGTH, b"\xff\xff\xff\xff", rng.randbytes(3)))
            case 3:
                wire[at : at + 4] = b"\x7f\xff\xff\xff"
            case _:
                wire[at : at + 2] = b"\xff\xfe"
        wire = wire or bytearray(1)
    return bytes(wire)


def only_decode_errors(cls: type[Message], version: int, data: bytes) -> None:
    for buffer in (data, memoryview(data)):
        try:
            message, end = decode_prefix(cls, version, buffer, 0)
        except DecodeError:
            continue
        assert end <= len(data)
        assert isinstance(message, cls)


@pytest.mark.parametrize("cls", list(message_classes()), ids=version_id)
def test_decoding_a_mutated_frame_returns_a_message_or_raises_decode_error(cls: type[Message]) -> None:
    @settings(
        max_examples=3,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(message=messages(cls, cls.MAX_VERSION), seed=st.integers(0, 2**32))
    def run(message: Message, seed: int) -> None:
        rng = random.Random(seed)
        wire = encode(message, cls.MAX_VERSION)
        for _ in range(10):
            only_decode_errors(cls, cls.MAX_VERSION, mutate(wire, rng))
        only_decode_errors(cls, cls.MIN_VERSION, wire)

    run()


@pytest.mark.parametrize("cls", list(message_classes()), ids=version_id)
def test_truncated_frame_is_refused(cls: type[Message]) -> None:
    wire = encode(cls(), cls.MAX_VERSION)
    for size in range(len(wire)):
        with pytest.raises(DecodeError):
            decode(cls, cls.MAX_VERSION, wire[:size])


def test_decoding_random_bytes_returns_a_message_or_raises_decode_error() -> None:
    rng = random.Random(7)
    for cls in message_classes():
        for _ in range(5):
            only_decode_errors(cls, cls.MAX_VERSION, rng.randbytes(rng.randint(0, 60)))


def test_negative_length_of_a_field_that_is_not_nullable_is_refused() -> None:
    refuse(HeartbeatRequest, 0, b"\xff\xff", "length -1")
    refuse(HeartbeatRequest, 4, b"\x00", "must not be null")
    refuse(DescribeGroupsRequest, 0, b"\xff\xff\xff\xff", "length -1")


def test_a_length_below_minus_one_is_refused_even_where_null_is_allowed() -> None:
    refuse(MetadataRequest, 1, b"\xff\xff\xff\xfe", "length -2")


def test_string_length_past_the_end_of_the_frame_is_refused() -> None:
    refuse(HeartbeatRequest, 0, b"\x00\x05ab", "early|past the end")
    refuse(ApiVersionsRequest, 3, b"\x02a\x09a\x00", "early|past the end")


def test_string_length_past_the_end_of_the_frame_is_refused_in_the_last_field() -> None:
    header = b"\x00\x12\x00\x00\x00\x00\x00\x01"
    refuse(RequestHeader, 1, header + b"\x00\x09abc", "past the end")


def test_record_set_length_past_the_end_of_the_frame_is_refused() -> None:
    produce = b"\xff\xff\x00\x01\x00\x00\x00\x64\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x00"
    refuse(ProduceRequest, 3, produce + b"\x00\x00\x00\x10abc", "past the end")
    refuse(ProduceRequest, 3, produce + b"\xff\xff\xff\xfe", "length -2")


def test_an_over_long_varint_is_refused() -> None:
    refuse(HeartbeatRequest, 4, TOO_LONG_VARINT + bytes(20), "too long")
    refuse(HeartbeatRequest, 4, b"\x02g\x00\x00\x00\x00\x02m\x00" + TOO_LONG_VARINT, "too long")


def test_a_string_longer_than_kafka_allows_is_refused() -> None:
    refuse(HeartbeatRequest, 4, primitives.write_uvarint(0x8001) + bytes(0x9000), "longer than 32767")


def test_a_string_that_is_not_utf8_is_refused() -> None:
    refuse(HeartbeatRequest, 0, b"\x00\x02\xff\xfe\x00\x00\x00\x00\x00\x00", "UTF-8")


def test_an_array_larger_than_its_frame_is_refused_before_it_is_read() -> None:
    refuse(DescribeGroupsRequest, 0, b"\x7f\xff\xff\xff" + bytes(50), "more elements")
    refuse(DescribeGroupsRequest, 5, HUGE_LENGTH + bytes(50), "more elements")


def test_more_tags_than_the_frame_can_hold_are_refused() -> None:
    refuse(HeartbeatRequest, 4, b"\x02g\x00\x00\x00\x00\x02m\x00" + HUGE_LENGTH, "more elements")


def test_tagged_field_whose_content_is_shorter_than_its_declared_size_is_refused() -> None:
    from penstock.protocol.messages.api_01_fetch import FetchRequest

    wire = bytearray(encode(FetchRequest(cluster_id="abc"), 12))
    assert wire[-6:] == b"\x01\x00\x04\x04abc"[-6:]
    wire[-5] = 3
    refuse(FetchRequest, 12, bytes(wire) + b"\0", "is shorter than its size")


def test_decode_refuses_a_frame_with_bytes_after_the_message_and_decode_prefix_accepts_it() -> None:
    wire = encode(HeartbeatRequest(group_id="g"), 4) + b"rest"
    refuse(HeartbeatRequest, 4, wire, "ends 4 bytes before the end of its frame")
    assert decode_prefix(HeartbeatRequest, 4, wire, 0)[1] == len(wire) - 4


def test_decoding_a_message_version_that_does_not_exist_is_refused() -> None:
    refuse(HeartbeatRequest, 99, b"", "no version 99")
    refuse(ProduceRequest, 2, b"", "no version 2")


def test_large_frame_with_more_elements_than_the_limit_is_refused() -> None:
    element = encode(MetadataRequest(topics=[MetadataRequestTopic(name="")]), 9)[1:-4]
    count = primitives.MAX_ELEMENTS + 1
    wire = primitives.write_uvarint(count + 1) + element * count + bytes(4)
    tracemalloc.start()
    try:
        refuse(MetadataRequest, 9, wire, "more elements")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(wire)
