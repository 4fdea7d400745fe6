"""A table back into a topic: all of it, as it was at a time, or with what was recorded up to a time.

Rows of tables that `table` wrote become the records that they were: key, value, timestamp, and the order that they had
in their partition. Of other tables a column is the key, and the rest becomes a JSON value.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.pipelines.archive import read_archive
from penstock.pipelines.json_names import OWN, columns_by_field
from penstock.pipelines.topics import Topic, bounds, counted_partitions, create_like, exists, partitions_of
from penstock.spark.errors import SourceError

DEFAULT_PARTITIONS = -1  # the broker's num.partitions


@dataclass(frozen=True, slots=True)
class BackfillJob:
    path: str
    topic: Topic
    format: str = "delta"
    """Or parquet, or archive: what `archive` wrote, of either kind."""
    archived: str | None = None
    """The topic that an archive is of; the target's name if None."""
    key: str | None = None
    """A column; `_key` if the table has it."""
    until: str | None = None
    """Only records with a timestamp up to this one (of `_timestamp`)."""
    as_of: str | None = None
    """A Delta table's version, or the time at which it was as it is wanted."""
    where: str | None = None
    same_partitions: bool = False
    partitions: int | None = None
    """Of the topic if it is made; else as many as the records need with `same_partitions`, or the broker's number."""
    exactly_once: bool = True


class Backfill:
    """A job that is ready to run: what is wrong with it has been told."""

    def __init__(self, spark: Any, job: BackfillJob) -> None:
        """Raises SourceError."""
        self._job = job
        self._records = records(_table(spark, job), job)
        self._create_topic()  # behind that: no topic is made for what can't be done
        self._before = self._last = _end_of(job.topic)

    def _create_topic(self) -> None:
        """If it is not there: with the partitions that are asked for, or that the records need."""
        job = self._job
        if exists(job.topic):
            there = partitions_of(job.topic)
            if job.partitions not in (None, there):
                raise SourceError(
                    f"{job.topic.name!r} has {counted_partitions(there)} already, not {job.partitions}: name "
                    "another topic, or leave the number out."
                )
        else:
            wanted = job.partitions or (self._partitions() if job.same_partitions else DEFAULT_PARTITIONS)
            create_like(job.topic, wanted)

    def _partitions(self) -> int:
        """As many as the highest partition of a record needs."""
        from pyspark.sql import functions as f

        [row] = self._records.agg(f.max("partition")).collect()
        return int(row[0] or 0) + 1

    def total(self) -> int:
        """How many records there are to write. Tables know, unless only some of their rows are wanted."""
        return int(self._records.count())

    def written(self) -> int:
        """So far, as the topic has it: with what others write to it, and the marks that transactions end with."""
        with suppress(SourceError):  # the job itself says that the broker has gone
            self._last = _end_of(self._job.topic)
        return self._last - self._before

    def run(self) -> int:
        """How many records were written. Raises SourceError."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        job = self._job
        seen = Observation()
        counted = self._records.observe(seen, f.count(f.lit(1)).alias("rows"))
        options = {"kafka.bootstrap.servers": job.topic.bootstrap, "topic": job.topic.name, **job.topic.options}
        options["exactlyOnce"] = str(job.exactly_once).lower()
        counted.write.format("penstock").mode("append").options(**options).save()
        return int(seen.get["rows"])


def backfill(spark: Any, job: BackfillJob) -> int:
    """How many records were written. Raises SourceError."""
    return Backfill(spark, job).run()


def _end_of(topic: Topic) -> int:
    return sum(end for _, end in bounds(topic).values())


def _table(spark: Any, job: BackfillJob) -> Any:
    if job.format == "archive":
        if job.as_of is not None:
            raise SourceError("An archive is what it was when it was written: leave --as-of out, or use --until.")
        if job.key is not None:
            raise SourceError("Records of an archive have their keys: leave --key out.")
        return read_archive(spark, job.archived or job.topic.name, job.path)
    reader = spark.read.format(job.format)
    if job.as_of is not None:
        if job.format != "delta":
            raise SourceError("Only Delta tables remember what they were: leave --as-of out, or use --until.")
        reader = reader.option("versionAsOf" if job.as_of.isdigit() else "timestampAsOf", job.as_of)
    elif job.format == "parquet":
        reader = reader.option("mergeSchema", "true")
    return reader.load(job.path)


def records(table: Any, job: BackfillJob) -> Any:
    """A table's rows as records, each key's in order."""
    from pyspark.sql import functions as f

    if job.format == "archive":
        return _archived(table, job)
    there = set(table.columns)
    key = job.key or ("_key" if "_key" in there else None)
    if key is not None and key not in there:
        raise SourceError(f"The table has no column {key!r} for keys: it has {', '.join(table.columns)}.")
    for wanted, why in (("_timestamp", job.until), ("_partition", job.same_partitions)):
        if why and wanted not in there:
            raise SourceError(f"The table has no column {wanted!r}: `penstock pipeline table` writes tables with it.")
    if job.until is not None:
        table = table.where(f.col("_timestamp") <= f.to_timestamp(f.lit(job.until)))
    if job.where is not None:
        table = table.where(job.where)
    if {"_partition", "_offset"} <= there:
        table = table.repartition("_partition").sortWithinPartitions("_partition", "_offset")
    elif key is not None:
        table = table.repartition(key)
    columns = [_value(table).alias("value")]
    if key is not None:
        columns.append(f.col(key).cast("string").alias("key"))
    if "_timestamp" in there:
        columns.append(f.col("_timestamp").alias("timestamp"))
    if job.same_partitions:
        columns.append(f.col("_partition").cast("int").alias("partition"))
    return table.select(*columns)


def _archived(table: Any, job: BackfillJob) -> Any:
    """Records as they were."""
    from pyspark.sql import functions as f

    if job.until is not None:
        table = table.where(f.col("timestamp") <= f.to_timestamp(f.lit(job.until)))
    if job.where is not None:
        table = table.where(job.where)
    partition = ["partition"] if job.same_partitions else []
    return table.select("key", "value", "headers", "timestamp", *partition)


def _value(table: Any) -> Any:
    from pyspark.sql import functions as f

    own = [name for name in table.columns if name not in OWN]
    bad = [f.col(name).cast("string") for name in ("_bad", "_bad_value") if name in table.columns]
    if own == ["value"]:
        return f.coalesce(f.col("value").cast("string"), *bad)
    if not own:
        raise SourceError("The table has no columns to make values of.")
    # A record without a value became a row without fields.
    empty = f.lit(True)
    for name in own:
        empty &= f.col(f"`{name}`").isNull()
    value = f.struct(*(f.col(f"`{name}`") for name in own)).cast(
        _renamed(table.select(*(f"`{name}`" for name in own)).schema)
    )
    return f.coalesce(*bad, f.when(~empty, f.to_json(value)))


def _renamed(kind: Any) -> Any:
    """A type with the names that fields had before they were columns."""
    from pyspark.sql.types import ArrayType, StructField, StructType

    match kind:
        case StructType():
            names = {column: field for field, column in columns_by_field(kind.names).items()}
            return StructType([StructField(names[each.name], _renamed(each.dataType)) for each in kind.fields])
        case ArrayType():
            return ArrayType(_renamed(kind.elementType))
        case _:
            return kind
