"""Tests the Avro decoder: it returns the same values as fastavro, shows logical types as text, and has limits."""

from __future__ import annotations

import base64
import io
import json
import math
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.avro import compile_schema, decode
from penstock.formats.limits import DEPTH_MAX, EXACT_MAX, FormatError, Room

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
DOUBLE = st.floats()
FLOAT = st.floats(width=32)
Pair = tuple[Any, Any]
"""A schema and a value of it."""


def decoded(schema: Any, data: bytes, room: Room | None = None) -> Any:
    return decode(compile_schema(json.dumps(schema)), data, 0, room or Room())


def encoded(schema: Any, value: Any) -> bytes:
    fastavro = pytest.importorskip("fastavro")
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def plain() -> st.SearchStrategy[Pair]:
    return st.one_of(
        st.tuples(st.just("null"), st.none()),
        st.tuples(st.just("boolean"), st.booleans()),
        st.tuples(st.just("int"), INT),
        st.tuples(st.just("long"), LONG),
        st.tuples(st.just("float"), FLOAT),
        st.tuples(st.just("double"), DOUBLE),
        st.tuples(st.just("bytes"), st.binary(max_size=20)),
        st.tuples(st.just("string"), st.text(max_size=20)),
    )


def _records(schema: Any) -> int:
    """Returns the number of record types in a schema. The next outer record has this number in its unique name."""
    return json.dumps(schema).count('"record"')


@st.composite
def containers(draw: st.DrawFn, inner: st.SearchStrategy[Pair]) -> Pair:
    schema, value = draw(inner)
    match draw(st.sampled_from(("array", "map", "record", "union"))):
        case "array":
            return {"type": "array", "items": schema}, [value] * draw(st.integers(0, 3))
        case "map":
            names = draw(st.lists(st.text(max_size=5), max_size=3, unique=True))
            return {"type": "map", "values": schema}, dict.fromkeys(names, value)
        case "record":
            fields = [{"name": f"f{number}", "type": schema if not number else "long"} for number in range(3)]
            record = {"type": "record", "name": f"r{_records(schema)}", "fields": fields}
            return record, {"f0": value, "f1": 1, "f2": draw(LONG)}
        case _:
            if isinstance(schema, list) or schema == "null":
                return schema, value
            return (["null", schema], value) if draw(st.booleans()) else ([schema, "null"], value)


def expected(value: Any) -> Any:
    """Converts a value of fastavro to the form that Penstock shows: base64 for bytes, text for large numbers."""
    match value:
        case bool() | None | str():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case int():
            return value if abs(value) <= EXACT_MAX else str(value)
        case float():
            return value if math.isfinite(value) else {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
        case list():
            return [expected(each) for each in value]
    return {name: expected(each) for name, each in value.items()}


@given(st.recursive(plain(), containers, max_leaves=4))
def test_decoder_returns_the_same_avro_values_as_the_fastavro_library(pair: Pair) -> None:
    fastavro = pytest.importorskip("fastavro")
    schema, value = pair
    data = encoded(schema, value)
    parsed = fastavro.parse_schema(schema)
    assert decoded(schema, data) == expected(fastavro.schemaless_reader(io.BytesIO(data), parsed, parsed))


@given(st.recursive(plain(), containers, max_leaves=4), st.binary(max_size=64))
def test_decoding_any_bytes_as_avro_returns_json_or_raises_format_error(pair: Pair, data: bytes) -> None:
    try:
        found = decoded(pair[0], data)
    except FormatError:
        return
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("schema", "value", "shown"),
    [
        ({"type": "int", "logicalType": "date"}, date(2026, 1, 31), "2026-01-31"),
        ({"type": "int", "logicalType": "time-millis"}, time(12, 0, 1, 5000), "12:00:01.005"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            datetime(2026, 1, 31, 12, tzinfo=UTC),
            "2026-01-31T12:00:00.000Z",
        ),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            "1969-12-31T23:59:59.999999Z",
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-micros"},
            datetime(2026, 1, 31),
            "2026-01-31T00:00:00.000000",
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("-12.50"), "-12.50"),
        (
            {"type": "fixed", "name": "f", "size": 8, "logicalType": "decimal", "precision": 9, "scale": 3},
            Decimal("0.001"),
            "0.001",
        ),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "fixed", "name": "x", "size": 2}, b"\xff\x00", "/wA="),
    ],
)
def test_avro_logical_types_and_named_types_are_shown_as_text(schema: Any, value: Any, shown: str) -> None:
    assert decoded(schema, encoded(schema, value)) == shown


def test_avro_number_that_is_no_valid_date_or_time_is_shown_as_a_plain_number() -> None:
    zigzag_max = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    assert decoded({"type": "long", "logicalType": "timestamp-millis"}, zigzag_max) == str(2**63 - 1)
    assert decoded({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f") == 2**31 - 1
    assert decoded({"type": "int", "logicalType": "time-millis"}, b"\x01") == -1


def test_avro_duration_is_decoded_to_numbers_and_avro_uuid_to_text() -> None:
    duration = {"type": "fixed", "name": "d", "size": 12, "logicalType": "duration"}
    assert decoded(duration, struct.pack("<III", 1, 2, 3)) == {"months": 1, "days": 2, "milliseconds": 3}
    identity = {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}
    assert decoded(identity, bytes(range(16))) == "00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_short_avro_type_name_is_found_in_the_namespace_of_its_record_and_in_referenced_schemas() -> None:
    money = '{"type": "fixed", "name": "Cents", "namespace": "shop", "size": 1}'
    order = {
        "type": "record",
        "name": "shop.Order",
        "fields": [{"name": "a", "type": "Cents"}, {"name": "b", "type": ["null", "Order"]}],
    }
    reader = compile_schema(json.dumps(order), [money])
    assert decode(reader, b"\x00\x02\x01\x00", 0, Room()) == {"a": "AA==", "b": {"a": "AQ==", "b": None}}


def test_avro_array_that_declares_too_many_nulls_is_refused() -> None:
    endless = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    with pytest.raises(FormatError, match="too many values"):
        decoded({"type": "array", "items": "null"}, endless + b"\0")


def test_recursive_avro_record_is_decoded_down_to_the_depth_limit_and_refused_below_it() -> None:
    chain = {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]}
    assert decoded(chain, b"\x02\x00") == {"next": {"next": None}}
    with pytest.raises(FormatError, match="deeper"):
        decoded(chain, b"\x02" * 100_000 + b"\0")
    decoded(chain, b"\x02" * (DEPTH_MAX - 1) + b"\0")


def test_strings_and_field_names_count_towards_the_text_limit_of_a_decoded_avro_value() -> None:
    with pytest.raises(FormatError, match="too much text"):
        decoded("string", b"\x14" + b"x" * 10, Room(text=9))
    record = {"type": "record", "name": "R", "fields": [{"name": "long_name", "type": "null"}]}
    with pytest.raises(FormatError, match="too much text"):
        decoded(record, b"", Room(text=5))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("nonsense", "no type 'nonsense'"),
        ({"type": "record", "name": "R"}, "no list of fields"),
        ({"type": "record", "fields": []}, "without a name"),
        ({"type": "enum", "name": "E"}, "no list of symbols"),
        ({"type": "fixed", "name": "F", "size": -1}, "no size"),
        (7, "where a type is expected"),
        ({"type": {"type": "array"}}, "where a type is expected"),
    ],
)
def test_invalid_avro_schema_is_refused_with_the_reason(schema: Any, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        compile_schema(json.dumps(schema))


def test_avro_schema_that_is_not_json_or_is_nested_too_deeply_is_refused() -> None:
    for text in ("{", "[" * 100_000, json.dumps({"type": "array", "items": "int"})[:-1]):
        with pytest.raises(FormatError, match="not JSON"):
            compile_schema(text)
    deep: Any = "int"
    for _ in range(DEPTH_MAX + 1):
        deep = {"type": "array", "items": deep}
    with pytest.raises(FormatError, match="deeper"):
        compile_schema(json.dumps(deep))


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        ("long", b"", "ends inside a number"),
        ("long", b"\xff" * 11, "too long"),
        ("string", b"\x08ab", "reach past the end"),
        ("bytes", b"\x01", "reach past the end"),
        ("int", b"\x02\x02", "1 bytes follow"),
        (["null"], b"\x02", "has no type with index 1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "has no symbol 1"),
    ],
)
def test_avro_data_that_does_not_fit_its_schema_is_refused_with_the_reason(
    schema: Any, data: bytes, reason: str
) -> None:
    with pytest.raises(FormatError, match=reason):
        decoded(schema, data)
