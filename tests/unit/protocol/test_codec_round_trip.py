"""Tests that every message in every version is the same after encoding and decoding."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from wire_strategies import message_classes, messages, version_id

from penstock.protocol.codec import decode, decode_prefix, encode, encode_parts
from penstock.protocol.schema import Message

pytestmark = pytest.mark.exhaustive

QUICK = settings(
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


def round_trip(cls: type[Message], version: int, message: Message) -> None:
    wire = encode(message, version)
    assert decode(cls, version, wire) == message
    assert decode(cls, version, memoryview(bytearray(wire))) == message
    assert b"".join(encode_parts(message, version)) == wire
    again, end = decode_prefix(cls, version, b"\x00\x00" + wire + b"\x01", 2)
    assert (again, end) == (message, len(wire) + 2)


def check_class(cls: type[Message], examples: int) -> None:
    for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):

        @settings(QUICK, max_examples=examples)
        @given(message=messages(cls, version))
        def run(message: Message) -> None:
            round_trip(cls, version, message)  # noqa: B023 - called before the loop goes on

        run()


@pytest.mark.parametrize("cls", list(message_classes()), ids=version_id)
def test_a_message_survives_a_round_trip_in_every_version(cls: type[Message]) -> None:
    check_class(cls, examples=2)


@pytest.mark.slow
@pytest.mark.parametrize("cls", list(message_classes()), ids=version_id)
def test_many_messages_survive_a_round_trip(cls: type[Message]) -> None:
    check_class(cls, examples=30)
