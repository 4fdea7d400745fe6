"""Values as columns: with a schema that is given, or, for JSON, with the one that each batch turns out to have.

Spark fixes the columns of a query when it starts. A Delta table that is to grow with its topic gets plain values and
finds their columns batch by batch: those that the table has keep their types, those that are new are added. A Parquet
table, which Spark's own sink writes, finds them whenever its query starts.
"""

from __future__ import annotations

from typing import Any

BAD = "_bad"
"""Holds a value that does not fit the columns; null for all others."""


def evolving(batch: Any, known: Any | None) -> Any:
    """A batch of plain JSON values with a struct `value`; `known` is the StructType of the table's columns, if any."""
    from pyspark.sql import functions as f

    text = batch.withColumn("value", f.col("value").cast("string"))
    schema = _with_bad(columns_of(text, known))
    return text.withColumn(
        "value", f.from_json("value", schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD})
    )


def columns_of(records: Any, known: Any | None) -> Any:
    """The StructType of what is known, and of what else the JSON values of some records have."""
    return _merged(_found(records), known)


def _found(text: Any) -> Any:
    """The fields that all values of a batch have between them; None if no value is an object."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType, _parse_datatype_string

    [[found]] = text.select(f.schema_of_variant_agg(f.try_parse_json(f.col("value").cast("string")))).collect()
    if found is None or not found.startswith("OBJECT<"):
        return None
    schema = _parse_datatype_string(found.replace("OBJECT<", "STRUCT<").replace("VOID", "STRING"))
    return schema if isinstance(schema, StructType) else None


def _merged(found: Any, known: Any) -> Any:
    from pyspark.sql.types import StructType

    fields = {field.name: field for field in known.fields if not field.name.startswith("_")} if known else {}
    for field in found.fields if found else ():
        fields.setdefault(field.name, field)
    return StructType(list(fields.values()))


def _with_bad(schema: Any) -> Any:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([*schema.fields, StructField(BAD, StringType())])
