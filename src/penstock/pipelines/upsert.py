"""Turns records into rows of a table, and into changes of a table that has one row per key.

- A row's key is the record's key, or some fields of its value. Each key has a row with its newest record.
- A record with a null value deletes the row of its key. If fields of the value are the row's key, a null value has no
  such fields: then the record deletes every row that earlier records with the same record key wrote.
- A record without a key, or whose value has none of the key fields, becomes a separate row that no record replaces.
- A record whose value does not fit the columns has this value as text in the column `_bad`. It also becomes a separate
  row, unless all its key fields fit their columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.pipelines.json_names import BAD, column_of
from penstock.pipelines.topics import PLACE, PLACES
from penstock.spark.errors import SourceError

KEY, GONE = "_key", "_gone"
#: The origin of a record, by which a row without a key is found when its batch is repeated.
_HERE = ("_topic", "_partition", "_offset")
#: Temporary columns. The column of a field never has a space in its name.
_ROW, _LONE, _UNTIL = "the row", "a lone row", "deleted until"


def rows(records: Any, *more: Any) -> Any:
    """Returns records as rows of a table. The columns in `more` are added to the rows. Raises SourceError."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    found = records.schema["value"].dataType
    fields = [field.name for field in found.fields] if isinstance(found, StructType) else []
    clash = sorted({KEY, *PLACES} & set(fields))
    if clash:
        raise SourceError(
            f"The value schema has fields named {', '.join(clash)}, which are columns of every table: omit or rename "
            "them."
        )
    values = [f.col(f"value.`{name}`").alias(name) for name in fields] or [f.col("value")]
    bad = [f.col(name).alias(f"_{name}") for name in ("bad_value", "bad_reason") if name in records.columns]
    places = [f.col(name).alias(f"_{name}") for name in PLACE]
    return records.select(f.col("key").cast("string").alias(KEY), *values, *bad, *places, *more)


@dataclass(frozen=True, slots=True)
class Changes:
    kept: Any
    """Rows to insert; each replaces the row of the same key."""
    same: str
    """The SQL condition under which row `new`, of `kept` or `ended`, replaces row `old` of the table."""
    ended: Any
    """The keys whose newest record has a null value; their rows are deleted."""
    deleted: Any | None
    """Record keys, with the offset up to which their rows are deleted; None if records' keys are the table's keys."""


def changes_of(table: Any, fields: Sequence[str]) -> Changes:
    """Returns the changes that a batch of rows makes to a table. Raises SourceError.

    Column `_gone` of a row is True if the record's value is null.
    """
    from pyspark.sql import functions as f

    keys = _Keys(table.schema, _key_columns(table, fields) if fields else [KEY], BAD in table.columns and bool(fields))
    named = [f.col(f"`{name}`") for name in keys.names]
    has_key = f.expr(keys.are_there())
    lone = f.when(~has_key, f.struct(*_HERE)).alias(_LONE)
    # The records of a record key are in one partition, in order; equal fields of values may be in any partition.
    order = ("_timestamp", "_partition", "_offset") if fields else ("_offset",)
    newest = f.max_by(f.struct(*(f.col(f"`{name}`") for name in table.columns)), f.struct(*order)).alias(_ROW)
    rows_of = table.where(~f.col(GONE)) if fields else table.where(has_key | ~f.col(GONE))
    found = rows_of.groupBy(*named, lone).agg(newest).select(f"`{_ROW}`.*")
    here = " AND ".join(f"old.{name} = new.{name}" for name in _HERE)
    both = f"{keys.are_there('old.')} AND {keys.are_there('new.')}"
    same = f"{keys.match()} AND (({both}) OR ({here}))"
    if not fields:
        return Changes(found.where(~f.col(GONE)).drop(GONE), same, found.where(f.col(GONE)), None)
    deleted = table.where(f.col(GONE) & f.col(KEY).isNotNull()).groupBy(KEY, "_topic", "_partition")
    deleted = deleted.agg(f.max("_offset").alias("_offset"))
    found = found.drop(GONE)
    until = deleted.withColumnRenamed("_offset", _UNTIL)
    found = found.join(until, [KEY, "_topic", "_partition"], "left").select(
        *(f.col(f"`{name}`") for name in found.columns),
        f.coalesce(f.col(f"`{_UNTIL}`") > f.col("_offset"), f.lit(False)).alias(GONE),
    )
    return Changes(found.where(~f.col(GONE)).drop(GONE), same, found.where(f.col(GONE) & has_key), deleted)


class _Keys:
    """Holds the key columns of a table, and builds SQL conditions on them."""

    def __init__(self, schema: Any, names: Sequence[str], may_be_bad: bool) -> None:
        from pyspark.sql.types import ArrayType, StructType

        self.names = names
        self._nested = {name for name in names if isinstance(schema[name].dataType, StructType | ArrayType)}
        self._may_be_bad = may_be_bad

    def are_there(self, side: str = "") -> str:
        """Returns an SQL condition that is true for a row with a key: at least one key column is not null.

        A row with a value in `_bad` may lack a part of its key. It has a key only if all key columns are set, and only
        if no key column is a struct or an array.
        """
        some = " OR ".join(f"{side}`{name}` IS NOT NULL" for name in self.names) or "false"
        if not self._may_be_bad:
            return f"({some})"
        whole = "false" if self._nested else " AND ".join(f"{side}`{name}` IS NOT NULL" for name in self.names)
        return f"(({some}) AND ({side}{BAD} IS NULL OR ({whole or 'false'})))"

    def match(self) -> str:
        return " AND ".join(f"old.`{name}` <=> new.`{name}`" for name in self.names) or "true"


def _key_columns(table: Any, fields: Sequence[str]) -> list[str]:
    """Returns the columns of the key fields. Raises SourceError if a key field has no column.

    Returns an empty list if the batch has only null and bad values: the columns may then be missing, and no row of the
    batch replaces another row.
    """
    from pyspark.sql import functions as f

    keys = [column_of(name, top=True) for name in fields]
    missing = [name for name, column in zip(fields, keys) if column not in table.columns]
    if not missing:
        return keys
    whole = table.where(~f.col(GONE) & f.col(BAD).isNull()) if BAD in table.columns else table
    if whole.isEmpty():
        return []
    there = ", ".join(name for name in table.columns if not name.startswith("_"))
    raise SourceError(f"Values have no field {', '.join(missing)} to upsert by: choose from {there or 'none'}.")


def _holds(spark: Any, path: str, schema: Any) -> bool:
    """Returns True if the table exists and has all columns of `schema`, with the same types."""
    from delta.tables import DeltaTable

    if not DeltaTable.isDeltaTable(spark, path):
        return False
    there = {each.name: each.dataType.simpleString() for each in DeltaTable.forPath(spark, path).toDF().schema.fields}
    return {each.name: each.dataType.simpleString() for each in schema.fields}.items() <= there.items()


def upsert(spark: Any, path: str, records: Any, fields: Sequence[str], partition_by: Sequence[str]) -> None:
    """Merges a batch into a Delta table. Merging the same batch again changes nothing."""
    from delta.tables import DeltaTable
    from pyspark.sql import functions as f

    gone = f.col("value").isNull()
    if "bad_value" in records.columns:
        gone &= f.col("bad_value").isNull()
    table = rows(records, gone.alias(GONE)).persist()
    try:
        changes = changes_of(table, fields)
        if not _holds(spark, path, changes.kept.schema):  # columns are added first: a merge compares keys before that
            writer = changes.kept.limit(0).write.format("delta").mode("append").option("mergeSchema", "true")
            (writer.partitionBy(*partition_by) if partition_by else writer).save(path)
        target = DeltaTable.forPath(spark, path).alias("old")
        if changes.deleted is not None and not changes.deleted.isEmpty():
            earlier = " AND ".join(f"old.{name} = new.{name}" for name in (KEY, "_topic", "_partition"))
            earlier += " AND old._offset < new._offset"
            target.merge(changes.deleted.alias("new"), earlier).whenMatchedDelete().execute()
        if not changes.ended.isEmpty():
            target.merge(changes.ended.alias("new"), changes.same).whenMatchedDelete().execute()
        merge = target.merge(changes.kept.alias("new"), changes.same).withSchemaEvolution()
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    finally:
        table.unpersist()
