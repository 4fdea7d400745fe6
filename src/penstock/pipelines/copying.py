"""Copies a topic to another topic: with other partitions, with other keys, or unchanged, as a mirror.

A mirror copies a topic of another cluster. One task reads a source partition in order, and all records of a key are in
one partition. So a copy with the same keys keeps the order of each key. With new keys, the records of a batch are first
grouped by key and sorted by time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.pipelines.running import Pace
from penstock.pipelines.topics import Topic, counted_partitions, create_like, partitions_of, read_batch, read_stream
from penstock.spark.errors import SourceError
from penstock.spark.ranges import Offsets

#: Name of the header of a mirrored record that holds the record's offset in the source topic.
SOURCE_OFFSET = "mirror.offset"


@dataclass(frozen=True, slots=True)
class CopyJob:
    source: Topic
    target: Topic
    checkpoint: str
    partitions: int | None = None
    """Number of partitions if the target is created; None: as many as the source has."""
    key: str | None = None
    """An SQL expression for the new key, over key and value (as strings), topic, partition, offset and timestamp."""
    exactly_once: bool = True
    pace: Pace = field(default_factory=Pace)


def start_repartition(spark: Any, job: CopyJob) -> Any:
    if (job.source.bootstrap, job.source.name) == (job.target.bootstrap, job.target.name):
        raise SourceError("A topic can't be copied into itself: give the target another name.")
    wanted = job.partitions or partitions_of(job.source)
    records = _rekeyed(_records(spark, job), job.key)  # checks the job before the target is created
    if not create_like(job.target, wanted) and job.partitions is not None:
        there = partitions_of(job.target)
        if there != wanted:
            raise SourceError(
                f"Topic {job.target.name!r} has {counted_partitions(there)} already, not {wanted}: give the target "
                "another name, or omit the number of partitions."
            )
    return _start(job, records, "repartition")


def start_mirror(spark: Any, job: CopyJob) -> Any:
    """Starts a query that copies each partition to the partition with the same number. Returns the query.

    Each copied record has its source offset in a header.
    """
    count = partitions_of(job.source)
    create_like(job.target, count)
    there = partitions_of(job.target)
    if there < count:
        raise SourceError(
            f"Topic {job.target.name!r} has {counted_partitions(there)}, but its source has {count}: run "
            f"`penstock topic alter {job.target.name} --partitions {count}` first."
        )
    from pyspark.sql import functions as f

    header = f.struct(f.lit(SOURCE_OFFSET).alias("key"), f.col("offset").cast("string").cast("binary").alias("value"))
    headers = f.concat(f.coalesce("headers", f.expr("array()")), f.array(header))
    records = _records(spark, job).withColumn("headers", headers)
    return _start(job, records.select("key", "value", "headers", "partition", "timestamp"), "mirror")


def translate(spark: Any, mirrored: Topic, committed: Mapping[int, int]) -> Offsets:
    """Converts committed offsets of the source topic to the matching offsets of the mirrored topic."""
    from pyspark.sql import functions as f

    headers = f.filter("headers", lambda each: each["key"] == SOURCE_OFFSET)
    origin = f.get(headers, f.lit(0))["value"].cast("string").cast("long")
    rows = read_batch(spark, mirrored, includeHeaders="true").select("partition", "offset", origin.alias("origin"))
    wanted = spark.createDataFrame(sorted(committed.items()), "partition int, committed long")
    first = f.min(f.when(f.col("origin") >= f.col("committed"), f.col("offset")))
    found = rows.join(wanted, "partition").groupBy("partition").agg(f.coalesce(first, f.max("offset") + 1).alias("at"))
    return {(mirrored.name, row["partition"]): row["at"] for row in found.collect()}


def _records(spark: Any, job: CopyJob) -> Any:
    more = {"includeHeaders": "true", "kafka.isolation.level": "read_committed", **job.pace.limits}
    return read_stream(spark, job.source, **more)


def _rekeyed(records: Any, key: str | None) -> Any:
    columns = ("key", "value", "headers", "timestamp")
    if key is None:
        return records.select(*columns)
    from pyspark.sql import functions as f

    # Key and value are bytes in a record, and strings in the user's expression.
    text = records.select(
        f.col("key").cast("string").alias("key"),
        f.col("value").cast("string").alias("value"),
        "topic",
        "partition",
        "offset",
        "timestamp",
        "headers",
        f.col("value").alias("raw"),
    )
    rekeyed = text.withColumn("key", f.expr(key).cast("string")).withColumn("value", f.col("raw"))
    together = rekeyed.select("key", "value", "headers", "timestamp", "partition", "offset").repartition("key")
    return together.mapInArrow(_by_time, together.schema).select(*columns)


def _by_time(batches: Iterator[Any]) -> Iterator[Any]:
    """Sorts a task's rows of one micro-batch by time, because Spark can't sort a stream."""
    import pyarrow as pa

    found = list(batches)
    if found:
        order = [("timestamp", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
        yield from pa.Table.from_batches(found).sort_by(order).to_batches()


def _start(job: CopyJob, records: Any, what: str) -> Any:
    options = {"kafka.bootstrap.servers": job.target.bootstrap, "topic": job.target.name, **job.target.options}
    options["exactlyOnce"] = str(job.exactly_once).lower()
    writer = records.writeStream.format("penstock").options(**options)
    writer = writer.queryName(f"{what} {job.source.name} to {job.target.name}").option(
        "checkpointLocation", job.checkpoint
    )
    return writer.trigger(**job.pace.trigger).start()
