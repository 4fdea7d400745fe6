"""Decodes values in Avro's binary encoding, with or without the five-byte prefix of schema registry clients."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.formats.framing import REGISTRY_PREFIX
from penstock.spark.errors import SourceError
from penstock.spark.options import ValueOptions

MAX_DEPTH = 32

_PLAIN: dict[str, DataType] = {
    "null": StringType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
    "fixed": BinaryType(),
}
_LOGICAL: dict[str, DataType] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "local-timestamp-millis": TimestampNTZType(),
    "local-timestamp-micros": TimestampNTZType(),
    "uuid": StringType(),
}


def avro_type(value: ValueOptions) -> DataType:
    found = _type(_schema(value), 0, {})
    if not isinstance(found, StructType):
        raise SourceError('Option value.schema is not an Avro record schema: give a schema with "type": "record".')
    return found


def _schema(value: ValueOptions) -> Any:
    try:
        return json.loads(value.schema or "")
    except ValueError as error:
        raise SourceError(f"Option value.schema is not an Avro schema in JSON: {error}.") from None


def _type(schema: Any, depth: int, named: dict[str, Any]) -> DataType:
    if depth > MAX_DEPTH:
        raise SourceError("The Avro schema is recursive, but a table's columns can't be recursive: use another schema.")
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) != 1:
            raise SourceError(
                "The Avro schema has a union of several types, which no column type can hold: "
                "use a union of null and one type."
            )
        return _type(kinds[0], depth + 1, named)
    if isinstance(schema, str):
        if schema in named:
            return _type(named[schema], depth + 1, named)
        if schema not in _PLAIN:
            raise SourceError(
                f"The Avro schema has the unknown type {schema!r}: define this type, or correct its name."
            )
        return _PLAIN[schema]
    kind = schema.get("type")
    if "name" in schema and kind in ("record", "enum", "fixed"):
        named[schema["name"]] = schema
        if schema.get("namespace"):
            named[f"{schema['namespace']}.{schema['name']}"] = schema
    match kind:
        case "record":
            fields = [StructField(each["name"], _type(each["type"], depth + 1, named)) for each in schema["fields"]]
            return StructType(fields)
        case "array":
            return ArrayType(_type(schema["items"], depth + 1, named))
        case "map":
            return MapType(StringType(), _type(schema["values"], depth + 1, named))
    if schema.get("logicalType") == "decimal":
        return DecimalType(schema["precision"], schema.get("scale", 0))
    logical = _LOGICAL.get(schema.get("logicalType", ""))
    return logical if logical is not None else _type(kind, depth + 1, named)


def avro_decoder(value: ValueOptions, wanted: Any) -> Callable[[Any], Any]:
    try:
        from fastavro import parse_schema, schemaless_reader
    except ImportError:
        raise SourceError("Avro values need package fastavro: run `pip install 'penstock[formats]'`.") from None
    schema = parse_schema(_schema(value))
    skip = REGISTRY_PREFIX if value.confluent else 0

    def decode(values: Any) -> Any:
        found = []
        for each in values.to_pylist():
            stream = io.BytesIO(each)
            stream.seek(skip)
            found.append(schemaless_reader(stream, schema, schema))
            if stream.tell() != len(each):
                raise ValueError(f"{len(each) - stream.tell()} bytes follow the Avro record in the value")
        return pa.array(found, wanted)

    return decode
