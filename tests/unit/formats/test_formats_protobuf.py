"""Tests the Protobuf decoder: it returns the same fields as package protobuf, needs no schema, and has limits."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.descriptors import find_message, link, message_at, parse_set
from penstock.formats.limits import DEPTH_MAX, FormatError, Room
from penstock.formats.protobuf import decode
from penstock.formats.protobuf_wire import decode_raw

pytestmark = pytest.mark.exhaustive

descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
json_format = pytest.importorskip("google.protobuf.json_format")
message_factory = pytest.importorskip("google.protobuf.message_factory")

#: Names of fields by the number of their type, which is also the number of the field.
SCALARS = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    12: "bytes",
    13: "uint32",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}


def file_of_orders() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.dependency.append("google/protobuf/duration.proto")
    file.dependency.append("google/protobuf/wrappers.proto")
    file.enum_type.add(name="State").value.extend(
        [
            descriptor_pb2.EnumValueDescriptorProto(name=name, number=number)
            for number, name in enumerate(("NEW", "PAID"))
        ]
    )
    order = file.message_type.add(name="Order")
    for number, name in SCALARS.items():
        order.field.add(name=name, number=number, type=number, label=1)
        if number not in (9, 12):
            order.field.add(name=f"{name}s", number=number + 100, type=number, label=3)
    order.field.add(name="state", number=30, type=14, label=1, type_name=".shop.State")
    order.field.add(name="inner", number=31, type=11, label=1, type_name=".shop.Order")
    order.field.add(name="parts", number=32, type=11, label=3, type_name=".shop.Order")
    order.field.add(name="texts", number=33, type=9, label=3)
    order.field.add(name="at", number=35, type=11, label=1, type_name=".google.protobuf.Timestamp")
    order.field.add(name="took", number=36, type=11, label=1, type_name=".google.protobuf.Duration")
    order.field.add(name="note", number=37, type=11, label=1, type_name=".google.protobuf.StringValue")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=5, label=1)
    order.field.add(name="counts", number=34, type=11, label=3, type_name=".shop.Order.CountsEntry")
    file.message_type.add(name="Empty")
    return file


FILE = link([file_of_orders().SerializeToString()])
ORDER = find_message(FILE, "shop.Order")
Order = message_factory.GetMessageClass(ORDER)

NUMBERS: dict[int, st.SearchStrategy[Any]] = {
    1: st.floats(allow_nan=False),
    2: st.floats(width=32, allow_nan=False),
    8: st.booleans(),
    9: st.text(max_size=10),
    12: st.binary(max_size=10),
    **dict.fromkeys((3, 16, 18), st.integers(-(2**63), 2**63 - 1)),
    **dict.fromkeys((4, 6), st.integers(0, 2**64 - 1)),
    **dict.fromkeys((5, 15, 17), st.integers(-(2**31), 2**31 - 1)),
    **dict.fromkeys((7, 13), st.integers(0, 2**32 - 1)),
}


@st.composite
def orders(draw: st.DrawFn, depth: int = 2) -> Any:
    order = Order()
    for number, name in SCALARS.items():
        if draw(st.booleans()):
            setattr(order, name, draw(NUMBERS[number]))
        if number not in (9, 12):
            getattr(order, f"{name}s").extend(draw(st.lists(NUMBERS[number], max_size=3)))
    order.state = draw(st.integers(0, 2))
    order.texts.extend(draw(st.lists(st.text(max_size=4), max_size=2)))
    for key in draw(st.lists(st.text(max_size=3), max_size=2)):
        order.counts[key] = draw(st.integers(-5, 5))
    if depth and draw(st.booleans()):
        order.inner.CopyFrom(draw(orders(depth - 1)))
        order.parts.add().CopyFrom(order.inner)
    return order


def comparable(value: Any) -> Any:
    """Returns the value with all integers as text, because the two decoders write integers differently."""
    match value:
        case list():
            return [comparable(each) for each in value]
        case dict():
            return {name: comparable(each) for name, each in value.items()}
        case bool() | None:
            return value
        case int():
            return str(value)
    return value


@given(orders())
def test_decoder_returns_the_same_protobuf_values_as_googles_protobuf_library(order: Any) -> None:
    theirs = json_format.MessageToDict(order, preserving_proto_field_name=True)
    ours = decode(ORDER, order.SerializeToString(), 0, Room(values=10**6, text=10**7))
    assert comparable(ours) == comparable(_floats_of(order, theirs))


def _floats_of(order: Any, shown: dict[str, Any]) -> dict[str, Any]:
    """Returns the decoded fields with the exact floats of the message, because MessageToDict rounds 32-bit floats."""
    found = dict(shown)
    for name in ("float", "floats", "double", "doubles"):
        if name in found:
            value = getattr(order, name)
            found[name] = [_json(each) for each in value] if name.endswith("s") else _json(value)
    if "inner" in found:
        found["inner"] = _floats_of(order.inner, found["inner"])
    if "parts" in found:
        found["parts"] = [_floats_of(*pair) for pair in zip(order.parts, found["parts"])]
    return found


def _json(number: float) -> float | str:
    return {float("inf"): "Infinity", float("-inf"): "-Infinity"}.get(number, number)


@given(st.binary(max_size=100))
def test_decoding_any_bytes_as_protobuf_returns_json_or_raises_format_error(data: bytes) -> None:
    for read in (lambda: decode(ORDER, data, 0, Room()), lambda: decode_raw(data, 0, Room())):
        try:
            found = read()
        except FormatError:
            continue
        json.dumps(found, allow_nan=False)


def test_protobuf_timestamps_durations_and_maps_are_decoded_to_plain_json_values() -> None:
    order = Order()
    order.at.seconds, order.at.nanos = 1_769_860_800, 5
    order.took.seconds, order.took.nanos = -1, -500_000_000
    order.note.value = ""
    order.counts[""] = 0
    data = order.SerializeToString() + b"\xf8\x07\x2a"  # field 127, a varint 42
    assert decode(ORDER, data, 0, Room()) == {
        "at": "2026-01-31T12:00:00.000000005Z",
        "took": "-1.500000000s",
        "note": "",
        "counts": {"": 0},
        "127": 42,
    }


def test_protobuf_message_field_that_occurs_twice_is_merged_into_one_message() -> None:
    first, second = Order(), Order()
    first.inner.int32, second.inner.string = 1, "x"
    data = first.SerializeToString() + second.SerializeToString()
    assert decode(ORDER, data, 0, Room()) == {"inner": {"int32": 1, "string": "x"}}


def test_protobuf_message_without_a_schema_is_shown_with_its_field_numbers_as_names() -> None:
    order = Order()
    order.int32 = 150
    order.string = "héllo"
    order.bytes = b"\xff"
    order.texts.extend(["a", "b"])
    order.inner.uint32 = 7
    assert decode_raw(order.SerializeToString(), 0, Room()) == {
        "5": 150,
        "9": "héllo",
        "12": base64.b64encode(b"\xff").decode(),
        "31": {"13": 7},
        "33": ["a", "b"],
    }


def test_protobuf_group_is_shown_with_its_fields_and_a_group_without_an_end_is_refused() -> None:
    assert decode_raw(b"\x0b\x10\x01\x0c", 0, Room()) == {"1": {"2": 1}}
    for data, reason in ((b"\x0b\x10\x01", "does not end"), (b"\x0c", "not open"), (b"\x0b\x14", "not open")):
        with pytest.raises(FormatError, match=reason):
            decode_raw(data, 0, Room())


def test_protobuf_message_that_is_nested_too_deeply_is_refused() -> None:
    data = b""
    order = Order()
    for _ in range(DEPTH_MAX):
        outer = Order()
        outer.inner.CopyFrom(order)
        order = outer
    data = order.SerializeToString()
    decode(ORDER, data, 0, Room())
    outer = Order()
    outer.inner.ParseFromString(data)
    with pytest.raises(FormatError, match="deeper"):
        decode(ORDER, outer.SerializeToString(), 0, Room())
    with pytest.raises(FormatError, match="deeper"):
        decode_raw(b"\x0b" * 100_000, 0, Room())


def test_protobuf_message_with_too_many_fields_is_refused() -> None:
    packed = Order()
    packed.int32s.extend([0] * 20_000)
    for data in (b"\x08\x01" * 20_000, packed.SerializeToString(), b"\x82\x02\x00" * 20_000):
        with pytest.raises(FormatError, match="too many values"):
            decode(ORDER, data, 0, Room())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x00\x01", "no valid field begins at byte 0"),
        (b"\x0f", "no valid field begins at byte 0"),
        (b"\x08", "ends inside a number"),
        (b"\x08" + b"\xff" * 11, "too long"),
        (b"\x0a\x05ab", "reach past the end"),
        (b"\x09abc", "reach past the end"),
        (b"\xda\x06\x03abc", "3 bytes after its last number"),
    ],
)
def test_malformed_protobuf_message_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        decode(ORDER, data, 0, Room())


def test_protobuf_message_types_are_found_by_their_name_and_by_their_position_in_the_schema_file() -> None:
    assert message_at(FILE, (0,)) is not None
    assert message_at(FILE, (1,)).full_name == "shop.Empty"
    assert message_at(FILE, (0, 0)).full_name == "shop.Order.CountsEntry"
    for path in ((2,), (1, 0), (-1,)):
        with pytest.raises(FormatError, match="no message type at"):
            message_at(FILE, path)
    with pytest.raises(FormatError, match=r"no message type 'shop\.Nobody'"):
        find_message(FILE, "shop.Nobody")


def test_protobuf_descriptor_that_is_malformed_or_lacks_an_import_is_refused() -> None:
    for data, reason in ((b"\xff", "not a descriptor set"), (b"", "without files")):
        with pytest.raises(FormatError, match=reason):
            parse_set(data)
    lacking = descriptor_pb2.FileDescriptorProto(name="a.proto", dependency=["b.proto"])
    for file in (lacking.SerializeToString(), b"\xff"):
        with pytest.raises(FormatError, match="can't be linked"):
            link([file])
