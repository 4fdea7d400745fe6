"""A topic as a table that is kept current.

`append`: a row for each record. `upsert`: a row for each key, the newest; a record without a value deletes its row.
Rows have the value's fields as columns, `_key`, and where the record was: `_topic`, `_partition`, `_offset`,
`_timestamp`. A batch that Spark repeats after a crash is written once: Delta remembers the last batch of each query,
and Parquet files count when Spark's own log names them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.pipelines.parquet_files import compact as compact_files
from penstock.pipelines.running import Pace, run
from penstock.pipelines.topics import PLACE, PLACES, Topic, read_ends, read_stream
from penstock.pipelines.values import columns_of, evolving
from penstock.spark.errors import SourceError

FORMATS = ("delta", "parquet")
MODES = ("append", "upsert")
#: A query that writes Parquet has to stop for a compaction, and so does it this much less often.
STANDSTILL = 10
#: Values that new fields are looked for in, when a Parquet table's query starts.
SAMPLE = 1000


@dataclass(frozen=True, slots=True)
class TableJob:
    topic: Topic
    path: str
    format: str = "delta"
    mode: str = "append"
    keys: tuple[str, ...] = ()
    """What `upsert` goes by; the record's key if empty."""
    partition_by: tuple[str, ...] = ()
    value_format: str = "json"
    value_schema: str | None = None
    checkpoint: str | None = None
    """Beside the table unless given."""
    optimize_every: int = 20
    """Batches after which small files are put together, and of a Parquet table, how many there have to be; 0: never."""
    pace: Pace = field(default_factory=Pace)

    @property
    def checkpoint_location(self) -> str:
        return self.checkpoint or f"{self.path.rstrip('/')}.checkpoint"

    def check(self) -> None:
        if self.format not in FORMATS or self.mode not in MODES:
            raise SourceError(f"A table's format is {' or '.join(FORMATS)}, and its mode {' or '.join(MODES)}.")
        if self.mode == "upsert" and self.format != "delta":
            raise SourceError("Rows of Parquet files can't be replaced: use a Delta table for upserts.")


def start_table(spark: Any, job: TableJob) -> Any:
    """The running query. Raises SourceError for what can be known to be wrong."""
    job.check()
    evolves = job.format == "delta" and job.value_format == "json" and job.value_schema is None
    options = dict(job.pace.limits)
    if not evolves and job.value_format != "binary":
        options["value.format"] = job.value_format
        if job.value_schema is not None:
            options["value.schema"] = _understood(job.value_schema, job.value_format)
        elif job.value_format == "json":
            options |= _grown(spark, job)
    records = read_stream(spark, job.topic, **options)
    writer = records.writeStream if evolves or job.format == "delta" else rows(records).writeStream
    writer = writer.queryName(f"table {job.topic.name} to {job.path}").option(
        "checkpointLocation", job.checkpoint_location
    )
    writer = writer.trigger(**job.pace.trigger)
    if job.format == "delta":
        return writer.foreachBatch(_batch_writer(job, evolves)).start()
    if job.partition_by:
        writer = writer.partitionBy(*job.partition_by)
    return writer.format("parquet").start(job.path)


def _grown(spark: Any, job: TableJob) -> dict[str, str]:
    """The columns that a Parquet table has, and those that its first and newest values have besides."""
    from pyspark.errors import AnalysisException
    from pyspark.sql.types import StructType

    try:
        there = spark.read.option("mergeSchema", "true").parquet(job.path).schema
    except AnalysisException:  # none yet
        there = StructType([])
    # What a table is partitioned by has the type that directories' names look like.
    known = StructType([field for field in there.fields if field.name not in job.partition_by])
    found = columns_of(read_ends(spark, job.topic, SAMPLE), known)
    return {"value.schema": found.json()} if found.fields else {}


def keep_current(spark: Any, job: TableJob, *, until: Callable[[], bool] = lambda: False) -> None:
    """Runs the query, and puts a Parquet table's small files together when it has ended, or every so many batches.

    A Delta table is looked after by the query itself. A query that writes Parquet has to stand still meanwhile, so one
    that follows is stopped and goes on from its checkpoint.
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
    """Of a query's batches since it began."""

    def __init__(self, job: TableJob, until: Callable[[], bool]) -> None:
        self._job = job
        self._until = until
        self._query: Any = None
        self._first: int | None = None

    def start(self, spark: Any) -> Any:
        self._query = start_table(spark, self._job)
        return self._query

    def is_due(self) -> bool:
        """Whether it is to stop: for good, or for a while."""
        if self._until():
            return True
        done = self._query.lastProgress if self._job.pace.follow else None
        if done is None or not done["numInputRows"]:
            return False
        if self._first is None:
            self._first = int(done["batchId"])
        return int(done["batchId"]) - self._first + 1 >= self._job.optimize_every * STANDSTILL


def _understood(schema: str, value_format: str) -> str:
    """The schema; raises SourceError if it is none. Spark would say so of a longer one that it made of it."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if value_format in ("json", "csv") and not schema.lstrip().startswith("{"):
        try:
            StructType.fromDDL(schema)
        except PySparkException as problem:
            from penstock.pipelines.running import reason

            raise SourceError(
                f"{schema!r} is no schema such as 'id BIGINT, name STRING': {reason(problem)}"
            ) from problem
    return schema


def rows(records: Any, *more: Any) -> Any:
    """Records as rows of a table; `more` are columns of the records to add."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    found = records.schema["value"].dataType
    fields = [field.name for field in found.fields] if isinstance(found, StructType) else []
    clash = sorted({"_key", *PLACES} & set(fields))
    if clash:
        raise SourceError(f"Values have fields named {', '.join(clash)}, which a table has for records' places.")
    values = [f.col(f"value.`{name}`").alias(name) for name in fields] or [f.col("value")]
    bad = [f.col(name).alias(f"_{name}") for name in ("bad_value", "bad_reason") if name in records.columns]
    places = [f.col(name).alias(f"_{name}") for name in PLACE]
    return records.select(f.col("key").cast("string").alias("_key"), *values, *bad, *places, *more)


def _batch_writer(job: TableJob, evolves: bool) -> Callable[[Any, int], None]:
    def write(batch: Any, batch_id: int) -> None:
        spark = batch.sparkSession
        batch.persist()  # its columns are looked for first, and records are read from brokers once
        try:
            if batch.isEmpty():
                return
            records = evolving(batch, _columns(spark, job.path)) if evolves else batch
            if job.mode == "append":
                _append(spark, job, rows(records), batch_id)
            else:
                upsert(spark, job, records)
        finally:
            batch.unpersist()
        if job.optimize_every and (batch_id + 1) % job.optimize_every == 0:
            compact(spark, job.path)

    return write


def _columns(spark: Any, path: str) -> Any:
    from delta.tables import DeltaTable

    return DeltaTable.forPath(spark, path).toDF().schema if DeltaTable.isDeltaTable(spark, path) else None


def _append(spark: Any, job: TableJob, batch: Any, batch_id: int) -> None:
    # The query's own id, which a new checkpoint has anew: the path alone would make a fresh query's first batches old.
    writer = batch.write.format("delta").mode("append").option("mergeSchema", "true")
    writer = writer.option("txnAppId", query_id(spark, job.checkpoint_location)).option("txnVersion", batch_id)
    (writer.partitionBy(*job.partition_by) if job.partition_by else writer).save(job.path)


def query_id(spark: Any, checkpoint: str) -> str:
    import json

    return str(json.loads(spark.read.text(f"{checkpoint}/metadata").first()[0])["id"])


def upsert(spark: Any, job: TableJob, records: Any) -> None:
    """The newest row of each key in a batch, into the table. To do it twice changes nothing."""
    from delta.tables import DeltaTable
    from pyspark.sql import functions as f

    gone = f.col("value").isNull()
    if "bad_value" in records.columns:
        gone &= f.col("bad_value").isNull()
    table = rows(records, gone.alias("_gone"))
    keys = list(job.keys) or ["_key"]
    missing = [name for name in keys if name not in table.columns]
    if missing:
        there = ", ".join(name for name in table.columns if not name.startswith("_"))
        raise SourceError(f"Values have no field {', '.join(missing)} to upsert by: they have {there or 'none'}.")
    # A key's records are in one partition, in order; fields of values may come by any partition.
    order = ("_timestamp", "_partition", "_offset") if job.keys else ("_offset",)
    newest = f.max_by(f.struct(*table.columns), f.struct(*order)).alias("row")
    changes = table.groupBy(*keys).agg(newest).select("row.*").persist()
    try:
        kept = changes.where("NOT _gone").drop("_gone")
        if not DeltaTable.isDeltaTable(spark, job.path):
            writer = kept.limit(0).write.format("delta")
            (writer.partitionBy(*job.partition_by) if job.partition_by else writer).save(job.path)
        target = DeltaTable.forPath(spark, job.path).alias("old")
        same = " AND ".join(f"old.`{name}` <=> new.`{name}`" for name in keys)
        deletions = changes.where("_gone").select(*keys)
        if not deletions.isEmpty():
            target.merge(deletions.alias("new"), same).whenMatchedDelete().execute()
        merge = target.merge(kept.alias("new"), same).withSchemaEvolution()
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    finally:
        changes.unpersist()


def compact(spark: Any, path: str) -> None:
    """Small files of a Delta table become big ones; readers don't notice."""
    from delta.tables import DeltaTable

    DeltaTable.forPath(spark, path).optimize().executeCompaction()
