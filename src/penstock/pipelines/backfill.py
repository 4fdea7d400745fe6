"""Writes a table back to a topic: the whole table, an earlier version of it, or the records up to a time.

Rows of tables that module `table` wrote become the same records again, with their key, value and timestamp, in the same
order within a partition. For other tables, one column becomes the key, and the other columns become a JSON value.
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
    """delta, parquet, or archive; archive is an archive of records or of segments (module `archive`)."""
    archived: str | None = None
    """The name of the archived topic; the target's name if None."""
    key: str | None = None
    """The column with the keys; by default `_key`, if the table has it."""
    until: str | None = None
    """Only records with a `_timestamp` up to this time are written."""
    as_of: str | None = None
    """A version or a time: the state that the Delta table had then is written."""
    where: str | None = None
    same_partitions: bool = False
    partitions: int | None = None
    """Partitions of a topic that is created. None: with `same_partitions` as the records need, else num.partitions."""
    exactly_once: bool = True


class Backfill:
    """Runs a backfill: writes the rows of a table to a topic. The constructor checks the job."""

    def __init__(self, spark: Any, job: BackfillJob) -> None:
        """Checks the job and creates the topic. Raises SourceError."""
        self._job = job
        self._records = records(_table(spark, job), job)
        self._create_topic()  # after the checks above, so that a job that can't run creates no topic
        self._before = self._last = _end_of(job.topic)

    def _create_topic(self) -> None:
        """Creates the topic if it does not exist. Raises SourceError if it exists with another number of partitions."""
        job = self._job
        if exists(job.topic):
            there = partitions_of(job.topic)
            if job.partitions not in (None, there):
                raise SourceError(
                    f"Topic {job.topic.name!r} has {counted_partitions(there)} already, not {job.partitions}: name "
                    "another topic, or omit the number of partitions."
                )
        else:
            wanted = job.partitions or (self._partitions() if job.same_partitions else DEFAULT_PARTITIONS)
            create_like(job.topic, wanted)

    def _partitions(self) -> int:
        """Returns the highest partition number of the records plus one, so that each record can keep its partition."""
        from pyspark.sql import functions as f

        [row] = self._records.agg(f.max("partition")).collect()
        return int(row[0] or 0) + 1

    def total(self) -> int:
        """Returns the number of records to write.

        Spark knows this number without reading the data, unless the job selects rows by a condition.
        """
        return int(self._records.count())

    def written(self) -> int:
        """Returns by how many offsets the topic has grown since the job was created.

        Records of other producers and transaction markers count too.
        """
        with suppress(SourceError):  # the job itself reports an unreachable broker
            self._last = _end_of(self._job.topic)
        return self._last - self._before

    def run(self) -> int:
        """Writes the records and returns their number. Raises SourceError."""
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
    """Runs a job and returns the number of records written. Raises SourceError."""
    return Backfill(spark, job).run()


def _end_of(topic: Topic) -> int:
    return sum(end for _, end in bounds(topic).values())


def _table(spark: Any, job: BackfillJob) -> Any:
    if job.format == "archive":
        if job.as_of is not None:
            raise SourceError("An archive has no earlier versions: omit --as-of, or use --until.")
        if job.key is not None:
            raise SourceError("Records of an archive already have keys: omit --key.")
        return read_archive(spark, job.archived or job.topic.name, job.path)
    reader = spark.read.format(job.format)
    if job.as_of is not None:
        if job.format != "delta":
            raise SourceError("Only Delta tables have earlier versions: omit --as-of, or use --until.")
        reader = reader.option("versionAsOf" if job.as_of.isdigit() else "timestampAsOf", job.as_of)
    elif job.format == "parquet":
        reader = reader.option("mergeSchema", "true")
    return reader.load(job.path)


def records(table: Any, job: BackfillJob) -> Any:
    """Returns a table's rows as records. The records of each key are in order. Raises SourceError."""
    from pyspark.sql import functions as f

    if job.format == "archive":
        return _archived(table, job)
    there = set(table.columns)
    key = job.key or ("_key" if "_key" in there else None)
    if key is not None and key not in there:
        raise SourceError(f"The table has no column {key!r} for keys: choose from {', '.join(table.columns)}.")
    for wanted, why in (("_timestamp", job.until), ("_partition", job.same_partitions)):
        if why and wanted not in there:
            raise SourceError(
                f"The table has no column {wanted!r}, which only tables of `penstock pipeline table` have: "
                "omit the option that needs it."
            )
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
    """Returns the archived records that the job selects, with only the columns that the sink needs."""
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
        raise SourceError("The table has no columns for values: choose another key column.")
    # A record with a null value became a row in which all fields are null.
    empty = f.lit(True)
    for name in own:
        empty &= f.col(f"`{name}`").isNull()
    value = f.struct(*(f.col(f"`{name}`") for name in own)).cast(
        _renamed(table.select(*(f"`{name}`" for name in own)).schema)
    )
    return f.coalesce(*bad, f.when(~empty, f.to_json(value)))


def _renamed(kind: Any) -> Any:
    """Returns the Spark type with the JSON field names instead of the column names, also in nested types."""
    from pyspark.sql.types import ArrayType, StructField, StructType

    match kind:
        case StructType():
            names = {column: field for field, column in columns_by_field(kind.names).items()}
            return StructType([StructField(names[each.name], _renamed(each.dataType)) for each in kind.fields])
        case ArrayType():
            return ArrayType(_renamed(kind.elementType))
        case _:
            return kind
