"""Every message in every version comes back from its bytes as it was."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from penstock.protocol.codec import decode, decode_prefix, encode, encode_parts
from penstock.protocol.schema import Message
from wire_strategies import every_version, messages, version_id

QUICK = settings(
    max_examples=3,
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


@pytest.mark.parametrize(("cls", "version"), every_version(), ids=version_id)
def test_a_message_survives_a_round_trip(cls: type[Message], version: int) -> None:
    @QUICK
    @given(message=messages(cls, version))
    def run(message: Message) -> None:
        round_trip(cls, version, message)

    run()


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "version"), every_version(), ids=version_id)
def test_many_messages_survive_a_round_trip(cls: type[Message], version: int) -> None:
    @settings(QUICK, max_examples=100)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        round_trip(cls, version, data.draw(messages(cls, version)))

    run()
