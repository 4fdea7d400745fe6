"""Archives a topic's records, to keep them for longer than the topic does; a query can read archive and topic together.

An archive can be at any address that Spark can write to. There are two kinds. An archive of records has a directory of
Parquet files for each partition; a stream writes these files, and any tool can read them. An archive of segments has
the log's own bytes (`segment_archive`). With both kinds, readers get committed records only. A reader reads the archive
first, and then continues in the topic at the next offset. It reads each record once, and raises an error if retention
deleted records before they were archived.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.pipelines.running import Pace
from penstock.pipelines.segment_reading import archived_rows, whole
from penstock.pipelines.segments import Catalog, catalog
from penstock.pipelines.stores import place_for
from penstock.pipelines.topics import Topic, partitions_of, read_batch, read_stream

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_COMMITTED = {"kafka.isolation.level": "read_committed", "includeHeaders": "true"}


def start_archive(
    spark: Any, topic: Topic, path: str, *, checkpoint: str | None = None, pace: Pace | None = None
) -> Any:
    """Starts a query that archives a topic's records as Parquet files, and returns the query."""
    pace = pace or Pace()
    records = read_stream(spark, topic, **_COMMITTED, **pace.limits).select(*COLUMNS)
    writer = records.writeStream.format("parquet").queryName(f"archive {topic.name} to {path}")
    writer = writer.partitionBy("partition")
    writer = writer.option("checkpointLocation", checkpoint or f"{path.rstrip('/')}.checkpoint")
    return writer.trigger(**pace.trigger).start(path)


def read_with_archive(spark: Any, topic: Topic, path: str) -> Any:
    """Returns a DataFrame of all archived records, and of the later records in the topic.

    The archive can be of either kind: records or segments.
    """
    found = _segments(spark, topic.name, path)
    if found is None:
        archived, ends = _records(spark, path)
    else:
        lossy = topic.options.get("failOnDataLoss", "true").lower() == "false"
        pieces = [(index, [part]) for index, parts in whole(found, lossy=lossy).items() for part in parts]
        archived = archived_rows(spark, place_for(spark, path), topic.name, pieces)
        ends = {index: end for index in found.parts if (end := found.end(index)) is not None}
    starts = {str(index): ends.get(index, -2) for index in range(partitions_of(topic))}
    live = read_batch(spark, topic, **_COMMITTED, startingOffsets=json.dumps({topic.name: starts}))
    return archived.select(*COLUMNS).unionByName(live.select(*COLUMNS))


def read_archive(spark: Any, name: str, path: str) -> Any:
    """Returns a DataFrame of the archived records alone, without the later records in the topic.

    The archive can be of either kind: records or segments. The rows of a partition are in the order of their offsets,
    because a single task reads the whole partition.
    """
    found = _segments(spark, name, path)
    if found is None:
        archived, _ = _records(spark, path)
        return archived.select(*COLUMNS).repartition("partition").sortWithinPartitions("partition", "offset")
    stretches = [(index, parts) for index, parts in whole(found).items() if parts]
    return archived_rows(spark, place_for(spark, path), name, stretches).select(*COLUMNS)


def _segments(spark: Any, name: str, path: str) -> Catalog | None:
    place = place_for(spark, path)
    return catalog(place.open(), name) if place.known else None


def _records(spark: Any, path: str) -> tuple[Any, dict[int, int]]:
    from pyspark.sql import functions as f

    archived = spark.read.parquet(path).withColumn("partition", f.col("partition").cast("int"))
    last = archived.groupBy("partition").agg(f.max("offset").alias("offset")).collect()
    return archived, {row["partition"]: row["offset"] + 1 for row in last}
