from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from penstock.spark.errors import SourceError
from penstock.spark.options import parse_options
from penstock.spark.planner import ReadTask
from penstock.spark.schema import source_schema
from penstock.spark.tasks import read_task
from penstock.spark.value_types import value_type
from penstock.spark.values import ValueDecoder
from penstock.testing import Broker

WHERE = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
PERSON = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {"name": "name", "type": "string", "nullable": True, "metadata": {}},
        ],
    }
)
BAD = [("bad_value", pa.binary()), ("bad_reason", pa.string())]


def decoded(values: list[bytes | None], **options: str) -> list[tuple[Any, bytes | None, str | None]]:
    parsed = parse_options(WHERE | {name.replace("_", "."): text for name, text in options.items()})
    kind = value_type(parsed)
    assert isinstance(kind, DataType)
    schema = pa.schema([("value", to_arrow_type(kind, timezone="UTC")), *BAD])
    decoder = ValueDecoder(parsed, schema)
    given: dict[str, Any] = {"value": pa.array(values, pa.binary()), "offset": pa.array(range(len(values)))}
    columns = decoder.decode(given, None)  # type: ignore[arg-type]
    batch = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    batch.validate(full=True)
    return [(row["value"], row["bad_value"], row["bad_reason"]) for row in batch.to_pylist()]


def goods(found: list[tuple[Any, bytes | None, str | None]]) -> list[Any]:
    return [value for value, bad, _ in found if bad is None]


def bads(found: list[tuple[Any, bytes | None, str | None]]) -> list[bytes]:
    assert all((bad is None) == (reason is None) for _, bad, reason in found)
    return [bad for _, bad, _ in found if bad is not None]


def test_json_values_are_decoded_and_invalid_json_goes_to_the_column_of_bad_values() -> None:
    wrong = [b"nope", b"", b"[1]", b'{"id":"text"}', b'{"id":1}{"id":2}', b'{"id":{}', b'{"name":"}', b"\xff{}"]
    right = [b'{"id":1,"name":"a"}', b"{}", b' {"id":2,\n "more":[{}]} ', None]
    mixed = [value for pair in zip(right * 2, wrong, strict=True) for value in pair]
    found = decoded(mixed, value_format="json", value_schema=PERSON)
    assert bads(found) == wrong
    once = [{"id": 1, "name": "a"}, {"id": None, "name": None}, {"id": 2, "name": None}, None]
    assert goods(found) == once * 2


def test_thousands_of_json_values_are_decoded_in_order() -> None:
    values: list[bytes | None] = [b'{"id":%d}' % number if number % 997 else b"bad" for number in range(5000)]
    found = decoded(values, value_format="json", value_schema=PERSON)
    assert [value and value["id"] for value, _, _ in found] == [n if n % 997 else None for n in range(5000)]
    assert len(bads(found)) == 6


def test_csv_values_are_decoded_to_columns() -> None:
    found = decoded(
        [b"1;x", b"2;", b"x;y", b"3", b'4;"a;b"', b'5;"open', b"", b"6;a\n7;b", None],
        value_format="csv",
        value_schema=PERSON,
        value_csv_delimiter=";",
    )
    assert goods(found) == [{"id": 1, "name": "x"}, {"id": 2, "name": None}, {"id": 4, "name": "a;b"}, None]
    assert bads(found) == [b"x;y", b"3", b'5;"open', b"", b"6;a\n7;b"]


def test_values_that_are_not_utf8_are_bad_if_option_value_format_is_string() -> None:
    found = decoded([b"abc", b"\xff", None, b""], value_format="string")
    assert goods(found) == ["abc", None, ""]
    assert bads(found) == [b"\xff"]


@pytest.mark.parametrize("prefix", [b"", b"\0\0\0\0\7"])
def test_avro_values_are_decoded_to_columns(prefix: bytes) -> None:
    fastavro = pytest.importorskip("fastavro")
    schema = {
        "type": "record",
        "name": "Person",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        ],
    }
    rows = [{"id": 1, "name": "a", "tags": ["x"], "kind": "B"}, {"id": 2, "name": None, "tags": [], "kind": "A"}]
    values: list[bytes | None] = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        values.append(prefix + out.getvalue())
    found = decoded(
        [*values, b"", None],
        value_format="avro",
        value_schema=json.dumps(schema),
        value_avro_confluent="true" if prefix else "false",
    )
    assert goods(found) == [*rows, None]
    assert bads(found) == [b""]


def test_protobuf_values_are_decoded_to_columns(tmp_path: Path) -> None:
    descriptors = pytest.importorskip("google.protobuf.descriptor_pb2")
    file = descriptors.FileDescriptorProto(name="person.proto", package="p", syntax="proto3")
    message = file.message_type.add(name="Person")
    message.field.add(name="id", number=1, type=3, label=1)
    message.field.add(name="names", number=2, type=9, label=3)
    path = tmp_path / "person.pb"
    path.write_bytes(descriptors.FileDescriptorSet(file=[file]).SerializeToString())
    found = decoded(
        [b"\x08\x05\x12\x01a\x12\x01b", b"\x08", None, b""],
        value_format="protobuf",
        value_descriptor=str(path),
        value_message="p.Person",
    )
    assert goods(found) == [{"id": 5, "names": ["a", "b"]}, None, {"id": 0, "names": []}]
    assert bads(found) == [b"\x08"]
    with pytest.raises(SourceError, match="no message"):
        decoded([], value_format="protobuf", value_descriptor=str(path), value_message="p.Nobody")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"value.format": "avro"}, "Avro needs value.schema"),
        ({"value.format": "protobuf"}, "Protobuf needs value.descriptor"),
        ({"value.format": "avro", "value.schema": "{"}, "not an Avro schema"),
        ({"value.format": "json", "value.schema": "{"}, "not a schema in Spark's JSON"),
        ({"value.format": "json", "value.schema": "id LOMG"}, r"gives 'id' the type LOMG.*\(is LONG meant\?\)"),
        ({"value.format": "json", "value.schema": "id LONG, name"}, "has no type for 'name'"),
        ({"value.format": "string", "value.bad": "elsewhere"}, "column, fail or topic:NAME"),
    ],
)
def test_source_refuses_invalid_value_schemas_and_missing_value_options(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        source_schema(WHERE | options)


def test_bad_value_fails_the_job_if_option_value_bad_is_fail() -> None:
    with pytest.raises(SourceError, match="The value at offset 1 is not valid json for this schema"):
        decoded([b"{}", b"x"], value_format="json", value_schema=PERSON, value_bad="fail")


def test_schema_in_ddl_is_passed_to_spark_unparsed() -> None:
    found = source_schema(WHERE | {"value.format": "json", "value.schema": "id LONG"})
    assert isinstance(found, str)
    assert "`value` STRUCT<id LONG>, `topic` string" in found


def test_source_infers_the_schema_of_values_and_sends_bad_records_to_the_topic_in_option_value_bad(
    penstock: Broker,
) -> None:
    penstock.create_topics({"t": 2, "dead": 1})
    with penstock.client() as client, client.producer() as producer:
        for partition in (0, 1):
            values = [b'{"id":1,"name":"a"}', b'{"id":2,"ok":true}']
            producer.send_many("t", [(b"k", value, (), 1000 + partition) for value in values], partition=partition)
    where = {"kafka.bootstrap.servers": penstock.bootstrap, "subscribe": "t", "value.format": "json"}
    found = source_schema(where | {"value.bad": "topic:dead"})
    assert isinstance(found, StructType)
    assert found["value"].dataType.simpleString() == "struct<id:bigint,name:string,ok:boolean>"
    assert "bad_value" not in found.fieldNames()
    with penstock.client() as client, client.producer() as producer:
        producer.send_many("t", [(b"k", b"broken", (("h", b"1"),), 5), (b"k", b"{}", (), 6)], partition=0)
    options = parse_options(where | {"value.bad": "topic:dead"})
    schema = pa.schema([("offset", pa.int64()), ("value", to_arrow_type(found["value"].dataType, timezone="UTC"))])
    rows = [row for batch in read_task(options, schema, ReadTask("t", 0, 0, 4)) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == [0, 1, 3]
    (letter,) = penstock.records("dead")
    assert (letter.key, letter.value, letter.timestamp) == (b"k", b"broken", 5)
    headers = dict(letter.headers)
    assert (headers["h"], headers["penstock.bad.offset"]) == (b"1", b"2")
    assert headers["penstock.bad.reason"]
