"""Defines the columns of the source: the same columns as in Spark's own Kafka source.

There is one exception: if value.format is set, column `value` is a struct.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark.errors import SourceError
from penstock.spark.options import BAD_REASON, BAD_VALUE, SourceOptions, parse_options

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def source_schema(options: Mapping[str, str]) -> StructType | str:
    parsed = parse_options(options, streaming=None)
    columns = _columns(parsed)
    if parsed.value.format != "binary":
        from penstock.spark.value_types import value_type

        found = value_type(parsed)
        if isinstance(found, str):
            columns_ddl = {name: kind.simpleString() for name, kind in columns.items()} | {"value": found}
            return ", ".join(f"`{name}` {kind}" for name, kind in columns_ddl.items())
        columns["value"] = found
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def _columns(options: SourceOptions) -> dict[str, DataType]:
    """Returns all columns in order. The type of a decoded value column is not known yet."""
    columns: dict[str, DataType] = {
        "key": BinaryType(),
        "value": BinaryType(),
        "topic": StringType(),
        "partition": IntegerType(),
        "offset": LongType(),
        "timestamp": TimestampType(),
        "timestampType": IntegerType(),
    }
    if options.include_headers:
        columns["headers"] = ArrayType(_HEADER)
    if options.value.format != "binary" and options.value.bad == "column":
        columns |= {BAD_VALUE: BinaryType(), BAD_REASON: StringType()}
    return columns


def check_schema(schema: StructType, options: SourceOptions) -> None:
    """Raises SourceError if the user's schema is wrong.

    A schema may omit columns, but may not add columns or change types.
    """
    columns = _columns(options)
    for field in schema.fields:
        known = columns.get(field.name)
        if known is None:
            names = ", ".join(columns)
            raise SourceError(f"The schema has a column {field.name!r}, which topics don't have: choose from {names}.")
        if field.name == "value" and options.value.format != "binary":
            continue
        if field.dataType != known:
            asked, there = field.dataType.simpleString(), known.simpleString()
            raise SourceError(
                f"The schema gives column {field.name!r} the type {asked}, but its type is {there}: "
                "cast the column after the read."
            )
