"""Converts JSON values to columns of a table with Spark: `json_types` chooses the columns, `json_rows` makes the rows.

The columns of a Spark query can't change while it runs. So a query for a Delta table reads values as bytes, and each
batch adds columns to the table if its values need more columns. Spark's own sink writes Parquet tables and can't add
columns. So a Parquet table gets its columns when its query starts, from the topic's first and newest values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.pipelines.json_names import BAD, OWN, folded
from penstock.pipelines.json_rows import Rows, seen_in
from penstock.pipelines.json_types import STRING, DecimalOf, ListOf, Other, Scalar, Seen, Struct, Type, grown


@dataclass(frozen=True, slots=True)
class Evolved:
    """Holds the rows of a batch, and the table's columns before and after the batch.

    A batch adds or widens columns if its values need it.
    """

    records: Any
    """Rows with a struct `value`, null for a null value. Spark caches them until `unpersist`."""
    before: Struct
    after: Struct


def evolving(batch: Any, known: Any | None, fixed: Iterable[str] = ()) -> Evolved:
    """Converts a batch of JSON values, given as bytes, to rows. Adds or widens columns if the values need it.

    `known` is the table's schema, a StructType; None if there is no table.
    """
    from pyspark.sql import functions as f

    before = struct_of(known) if known is not None else Struct()
    kept = frozenset(fixed)
    if before.columns:
        records = with_rows(batch, before, kept).persist()
        bad = f.col(f"value.{BAD}")
        lost = records.where(bad.isNotNull()).select(bad.cast("binary").alias("value"))
        after = grown(before, _seen(lost), widens=True, fixed=kept)
        if after == before:
            return Evolved(records, before, after)
        records.unpersist()
    else:
        after = _with_fixed(grown(before, _seen(batch.select("value")), widens=True, fixed=kept), kept)
    return Evolved(with_rows(batch, after, kept).persist(), before, after)


def _with_fixed(columns: Struct, fixed: Iterable[str]) -> Struct:
    """Returns the columns, with a STRING column added for each partition column in `fixed` that is missing."""
    there = {folded(name) for name, _ in columns.columns}
    missing = [name for name in sorted(fixed) if folded(name) not in there and name not in OWN]
    return Struct((*columns.columns, *((name, STRING) for name in missing)))


def columns_of(records: Any, known: Any, fixed: Iterable[str] = ()) -> Struct:
    """Returns the columns of the StructType `known`, extended so that they hold the JSON values of `records`."""
    return grown(struct_of(known), _seen(records.select("value")), widens=False, fixed=frozenset(fixed))


def with_rows(records: Any, columns: Struct, fixed: Iterable[str] = ()) -> Any:
    """Converts the JSON value of each record to a struct with these columns and `_bad`. Works for streams, too."""
    from pyspark.sql.types import StringType, StructField, StructType

    found = StructType([*spark_type(columns).fields, StructField(BAD, StringType())])
    fields = [StructField("value", found) if each.name == "value" else each for each in records.schema.fields]
    return records.mapInArrow(_converter(columns, found, frozenset(fixed)), StructType(fields))


def _converter(columns: Struct, found: Any, fixed: frozenset[str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def convert(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_type

        rows = Rows(columns, fixed)
        kind = to_arrow_type(found, timezone="UTC")
        for batch in batches:
            values = batch.column("value").to_pylist()
            made = pa.array([None if value is None else rows.row(value) for value in values], kind)
            arrays = [made if name == "value" else batch.column(name) for name in batch.schema.names]
            yield pa.RecordBatch.from_arrays(arrays, batch.schema.names)

    return convert


def _seen(values: Any) -> Seen:
    """Counts the types of all JSON values in a DataFrame with one column of bytes.

    Tasks return only their counts, not the values.
    """

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        texts = (value for batch in batches for value in batch.column(0).to_pylist() if value is not None)
        yield pa.RecordBatch.from_arrays([pa.array([json.dumps(seen_in(texts).to_json())])], ["seen"])

    seen = Seen()
    for [told] in values.mapInArrow(look, "seen STRING").collect():
        seen.merge(Seen.from_json(json.loads(told)))
    return seen


# --- conversion to and from Spark's types


def struct_of(schema: Any) -> Struct:
    """Returns the table's columns without those that Penstock adds, such as `_key`."""
    own = {folded(name) for name in OWN}
    return Struct(tuple((each.name, _type_of(each.dataType)) for each in schema.fields if folded(each.name) not in own))


def _type_of(kind: Any) -> Type:
    from pyspark.sql.types import ArrayType, DecimalType, StringType, StructType

    match kind:
        case StructType():
            return Struct(tuple((each.name, _type_of(each.dataType)) for each in kind.fields))
        case ArrayType():
            return ListOf(_type_of(kind.elementType))
        case DecimalType():
            return DecimalOf(kind.precision, kind.scale)
        case _ if kind.simpleString() in _SCALARS and (not isinstance(kind, StringType) or kind == StringType()):
            return Scalar(kind.simpleString())
        case _:
            return Other(kind.json())


def spark_type(kind: Type) -> Any:
    from pyspark.sql import types

    match kind:
        case Struct(columns):
            return types.StructType([types.StructField(name, spark_type(each)) for name, each in columns])
        case ListOf(element):
            return types.ArrayType(spark_type(element))
        case DecimalOf(precision, scale):
            return types.DecimalType(precision, scale)
        case Scalar(name):
            return getattr(types, _SCALARS[name])()
        case Other(text):
            return types._parse_datatype_json_string(text)


_SCALARS = {
    "boolean": "BooleanType",
    "tinyint": "ByteType",
    "smallint": "ShortType",
    "int": "IntegerType",
    "bigint": "LongType",
    "float": "FloatType",
    "double": "DoubleType",
    "string": "StringType",
    "date": "DateType",
    "timestamp": "TimestampType",
}
