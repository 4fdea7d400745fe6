"""Keeps a table up to date with a topic.

`append` writes a row for each record. `upsert` keeps the newest row for each key; a record with a null value deletes
the row. The columns are the value's fields, `_key`, and the origin of the record: `_topic`, `_partition`,
`_offset`, `_timestamp`. A batch that Spark repeats after a crash is written once: Delta stores the last batch of each
query, and Parquet files are valid once Spark's own log lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.pipelines.json_names import OWN, column_of
from penstock.pipelines.json_types import Struct, Type, widened
from penstock.pipelines.parquet_files import LOG as PARQUET_LOG
from penstock.pipelines.parquet_files import compact as compact_files
from penstock.pipelines.running import Pace, run
from penstock.pipelines.topics import Topic, read_ends, read_stream
from penstock.pipelines.upsert import rows, upsert
from penstock.pipelines.values import columns_of, evolving, spark_type, with_rows
from penstock.spark.errors import SourceError

FORMATS = ("delta", "parquet")
MODES = ("append", "upsert")
DELTA_LOG = "_delta_log"
#: Parquet tables are compacted less often by this factor, because their query has to stop for it.
STANDSTILL = 10
#: Number of values that are searched for new fields when a Parquet table's query starts.
SAMPLE = 1000


@dataclass(frozen=True, slots=True)
class TableJob:
    topic: Topic
    path: str
    format: str = "delta"
    mode: str = "append"
    keys: tuple[str, ...] = ()
    """Fields of the value that are the key of `upsert`; the record's key if empty."""
    partition_by: tuple[str, ...] = ()
    value_format: str = "json"
    value_schema: str | None = None
    checkpoint: str | None = None
    """The checkpoint's directory; beside the table by default."""
    optimize_every: int = 20
    """Batches between merges of small files; 0: never. A Parquet table also needs at least this many files."""
    pace: Pace = field(default_factory=Pace)

    @property
    def checkpoint_location(self) -> str:
        return self.checkpoint or f"{self.path.rstrip('/')}.checkpoint"

    def check(self) -> None:
        if self.format not in FORMATS or self.mode not in MODES:
            raise SourceError(
                f"The table's format or mode is unknown: use format {' or '.join(FORMATS)}, and mode "
                f"{' or '.join(MODES)}."
            )
        if self.mode == "upsert" and self.format != "delta":
            raise SourceError("Parquet tables can't replace rows: use a Delta table for upserts.")
        decoding = [name for name in self.topic.options if name.lower().startswith("value.")]
        if self.finds_columns and decoding:
            raise SourceError(
                f"Option {decoding[0]} needs --value-schema: without a schema, columns are inferred from the values, "
                "and values that do not fit are in the column _bad."
            )

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Returns the columns by which the table is partitioned: the columns of the fields in `partition_by`."""
        if not self.finds_columns:
            return self.partition_by
        return tuple(name if name in OWN else column_of(name, top=True) for name in self.partition_by)

    @property
    def finds_columns(self) -> bool:
        """Returns True if the table's columns are inferred from its JSON values."""
        return self.value_format == "json" and self.value_schema is None


def start_table(spark: Any, job: TableJob) -> Any:
    """Checks the job, starts its Spark query and returns the query. Raises SourceError."""
    job.check()
    check_place(spark, job)
    options = dict(job.pace.limits)
    if not job.finds_columns and job.value_format != "binary":
        options["value.format"] = job.value_format
        if job.value_schema is not None:
            options["value.schema"] = _understood(job.value_schema, job.value_format)
    records = read_stream(spark, job.topic, **options)
    if job.format == "parquet":
        if job.finds_columns:
            records = with_rows(records, _found_columns(spark, job), job.partition_columns)
        records = rows(records)
    writer = records.writeStream.queryName(f"table {job.topic.name} to {job.path}").trigger(**job.pace.trigger)
    writer = writer.option("checkpointLocation", job.checkpoint_location)
    if job.format == "delta":
        return writer.foreachBatch(_batch_writer(job)).start()
    if job.partition_columns:
        writer = writer.partitionBy(*job.partition_columns)
    return writer.format("parquet").start(job.path)


def _found_columns(spark: Any, job: TableJob) -> Struct:
    """Returns the columns of a Parquet table, with new columns for the first and newest values in the topic."""
    from pyspark.errors import AnalysisException
    from pyspark.sql.types import StructType

    try:
        there = spark.read.option("mergeSchema", "true").parquet(job.path).schema
    except AnalysisException:  # there is no table yet
        there = StructType([])
    # Spark infers the types of partition columns from the names of directories.
    known = StructType([field for field in there.fields if field.name not in job.partition_columns])
    found = columns_of(read_ends(spark, job.topic, SAMPLE), known, job.partition_columns)
    if not found.columns:
        raise SourceError(f"Topic {job.topic.name} has no JSON objects to infer columns from: give --value-schema.")
    return found


def check_place(spark: Any, job: TableJob) -> None:
    """Raises SourceError if the path already has a table of the other format.

    A new table there would continue from the checkpoint of the existing table, and would lack all records before it.
    """
    from pyspark.errors import AnalysisException

    other, mark = ("parquet", PARQUET_LOG) if job.format == "delta" else ("delta", DELTA_LOG)
    try:
        marks = spark.read.format("binaryFile").load(f"{job.path.rstrip('/')}/{mark}")
        marks.schema  # noqa: B018 (reading the schema checks the path, also through Spark Connect)
    except AnalysisException:
        return
    raise SourceError(
        f"{job.path} is a {other.capitalize()} table: use --format {other}, or another directory for a new table."
    )


def keep_current(spark: Any, job: TableJob, *, until: Callable[[], bool] = lambda: False) -> None:
    """Runs the query of a table, and merges small files of a Parquet table after the query has ended.

    No query may write to a Parquet table during a merge. A query with `follow` never ends, so it is stopped for a merge
    after a number of batches, and then continues from its checkpoint. The query of a Delta table merges files itself.
    """
    if job.format != "parquet" or not job.optimize_every or getattr(spark, "_jvm", None) is None:
        run(lambda: start_table(spark, job), until=until)
        return
    while True:
        count = _Count(job, until)
        run(partial(count.start, spark), until=count.is_due)
        compact_files(spark, job.path, least=job.optimize_every)
        if not job.pace.follow or until():
            return


class _Count:
    """Starts the query of a job, and counts the query's batches: a merge of files is due after a number of batches."""

    def __init__(self, job: TableJob, until: Callable[[], bool]) -> None:
        self._job = job
        self._until = until
        self._query: Any = None
        self._first: int | None = None

    def start(self, spark: Any) -> Any:
        self._query = start_table(spark, self._job)
        return self._query

    def is_due(self) -> bool:
        """Returns True if the query has to stop, because `until` returned True or a merge of files is due."""
        if self._until():
            return True
        done = self._query.lastProgress if self._job.pace.follow else None
        if done is None or not done["numInputRows"]:
            return False
        if self._first is None:
            self._first = int(done["batchId"])
        return int(done["batchId"]) - self._first + 1 >= self._job.optimize_every * STANDSTILL


def _understood(schema: str, value_format: str) -> str:
    """Returns the schema unchanged. Raises SourceError if the schema is invalid.

    Spark would report the error later, and would quote a longer schema that the user did not write.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if value_format in ("json", "csv") and not schema.lstrip().startswith("{"):
        try:
            StructType.fromDDL(schema)
        except PySparkException as problem:
            from penstock.pipelines.running import reason

            raise SourceError(
                f"{schema!r} is not a schema such as 'id BIGINT, name STRING': {reason(problem)}"
            ) from problem
    return schema


def _batch_writer(job: TableJob) -> Callable[[Any, int], None]:
    def write(batch: Any, batch_id: int) -> None:
        spark = batch.sparkSession
        batch.persist()  # two passes, for columns and rows, read records from the brokers once
        try:
            if batch.isEmpty():
                return
            if job.finds_columns:
                _write_evolving(spark, job, batch, batch_id)
            else:
                _write(spark, job, batch, batch_id)
        finally:
            batch.unpersist()
        if job.optimize_every and (batch_id + 1) % job.optimize_every == 0:
            compact(spark, job.path)

    return write


def _write_evolving(spark: Any, job: TableJob, batch: Any, batch_id: int) -> None:
    evolved = evolving(batch, _columns(spark, job.path), job.partition_columns)
    try:
        _widen(spark, job.path, list(widened(evolved.before, evolved.after)))
        _write(spark, job, evolved.records, batch_id)
    finally:
        evolved.records.unpersist()


def _write(spark: Any, job: TableJob, records: Any, batch_id: int) -> None:
    if job.mode == "append":
        _append(spark, job, rows(records), batch_id)
    else:
        upsert(spark, job.path, records, job.keys, job.partition_columns)


def _widen(spark: Any, path: str, changes: list[tuple[tuple[str, ...], Type]]) -> None:
    """Widens column types in the table's log. No data file is rewritten."""
    from delta.tables import DeltaTable

    if not changes:
        return
    location = DeltaTable.forPath(spark, path).detail().first()["location"].replace("`", "``")
    spark.sql(f"ALTER TABLE delta.`{location}` SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    for names, kind in changes:
        column = ".".join(f"`{name}`" for name in names)
        spark.sql(f"ALTER TABLE delta.`{location}` ALTER COLUMN {column} TYPE {spark_type(kind).simpleString()}")


def _columns(spark: Any, path: str) -> Any:
    from delta.tables import DeltaTable

    return DeltaTable.forPath(spark, path).toDF().schema if DeltaTable.isDeltaTable(spark, path) else None


def _append(spark: Any, job: TableJob, batch: Any, batch_id: int) -> None:
    # Delta skips a batch id that it has for this txnAppId. The query id is new with a new checkpoint, the path is not.
    writer = batch.write.format("delta").mode("append").option("mergeSchema", "true")
    writer = writer.option("txnAppId", query_id(spark, job.checkpoint_location)).option("txnVersion", batch_id)
    (writer.partitionBy(*job.partition_columns) if job.partition_columns else writer).save(job.path)


def query_id(spark: Any, checkpoint: str) -> str:
    import json

    return str(json.loads(spark.read.text(f"{checkpoint}/metadata").first()[0])["id"])


def compact(spark: Any, path: str) -> None:
    """Merges small files of a Delta table into large files. Readers see the same rows throughout."""
    from delta.tables import DeltaTable

    DeltaTable.forPath(spark, path).optimize().executeCompaction()
