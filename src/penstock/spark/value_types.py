"""Finds the type of the value column: from the options, from an Avro or Protobuf schema, or from the first records."""

from __future__ import annotations

import json
from difflib import get_close_matches

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, StringType, StructType

from penstock.spark.errors import SourceError
from penstock.spark.infer import sample_values
from penstock.spark.options import SourceOptions, ValueOptions
from penstock.spark.values import DEAD_LETTER_PREFIX, read_csv, read_json

#: Types that a column may have in a `value.schema` in DDL, apart from nested types.
_DDL_TYPES = (
    *("BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG", "FLOAT", "REAL", "DOUBLE"),
    *("DECIMAL", "DEC", "NUMERIC", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "INTERVAL"),
    *("STRING", "BINARY", "VARIANT", "VOID"),
)


def value_type(options: SourceOptions) -> DataType | str:
    """Returns the type of the value column, as a Spark type or as DDL text.

    This is the type that the user gave, or else a type inferred from the first records.
    """
    value = options.value
    _check(value)
    if value.format == "string":
        return StringType()
    if value.format == "avro":
        from penstock.spark.avro import avro_type

        return avro_type(value)
    if value.format == "protobuf":
        from penstock.spark.protobuf import protobuf_type

        return protobuf_type(value)
    if value.schema is not None:
        return _spark_type(value.schema)
    sample = sample_values(options)
    if not len(sample):
        raise SourceError(f"No schema can be inferred from {options.wanted}, which has no records: give value.schema.")
    try:
        read = read_json(sample, None) if value.format == "json" else read_csv(sample, None, value.delimiter)
    except pa.ArrowInvalid as error:
        raise SourceError(f"No schema can be inferred from {options.wanted} ({error}): give value.schema.") from None
    return from_arrow_schema(read.schema)


def _check(value: ValueOptions) -> None:
    if value.bad not in ("column", "fail") and not value.bad.removeprefix(DEAD_LETTER_PREFIX):
        raise SourceError("Option value.bad names no topic: it takes column, fail or topic:NAME.")
    if value.bad not in ("column", "fail") and not value.bad.startswith(DEAD_LETTER_PREFIX):
        raise SourceError(f"Option value.bad is {value.bad!r}: it takes column, fail or topic:NAME.")
    if value.format == "avro" and value.schema is None:
        raise SourceError("Avro needs value.schema: the Avro schema as JSON.")
    if value.format == "protobuf" and (value.descriptor is None or value.message is None):
        raise SourceError(
            "Protobuf needs value.descriptor (a file that protoc --descriptor_set_out wrote) and value.message."
        )


def _spark_type(text: str) -> DataType | str:
    """Parses a schema in Spark's JSON to a Spark type. Returns any other schema as DDL text. Raises SourceError.

    DDL stays text, because only Spark's JVM can parse it.
    """
    if not text.lstrip().startswith("{"):
        _check_ddl(text)
        return f"STRUCT<{text}>"
    try:
        return StructType.fromJson(json.loads(text))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SourceError(f"Option value.schema is not a schema in Spark's JSON: {reason}.") from None


def _check_ddl(text: str) -> None:
    """Checks the types in a DDL schema that has no nested types. Raises SourceError.

    Spark's own message about an unknown type names the wrong column.
    """
    if any(sign in text for sign in "<(`"):
        return
    for column in text.split(","):
        name, *kind = column.replace(":", " ").split() or [""]
        if not kind:
            raise SourceError(f"Option value.schema has no type for {name!r}: write it as `id LONG, name STRING`.")
        if kind[0].upper() not in _DDL_TYPES:
            close = get_close_matches(kind[0].upper(), _DDL_TYPES, n=1)
            hint = f" (is {close[0]} meant?)" if close else ""
            raise SourceError(f"Option value.schema gives {name!r} the type {kind[0]}, which Spark doesn't know{hint}.")
