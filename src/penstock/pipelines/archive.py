"""Records kept for longer than their topic keeps them, and both read as one.

An archive is Parquet files of whole records, by partition, wherever Spark can write. It holds what is committed, and a
reader goes on in the topic right after it: no record twice, none left out, or an error if retention was faster.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.pipelines.running import Pace
from penstock.pipelines.topics import Topic, partitions_of, read_batch, read_stream

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_COMMITTED = {"kafka.isolation.level": "read_committed", "includeHeaders": "true"}


def start_archive(
    spark: Any, topic: Topic, path: str, *, checkpoint: str | None = None, pace: Pace | None = None
) -> Any:
    pace = pace or Pace()
    records = read_stream(spark, topic, **_COMMITTED, **pace.limits).select(*COLUMNS)
    writer = records.writeStream.format("parquet").queryName(f"archive {topic.name}").partitionBy("partition")
    writer = writer.option("checkpointLocation", checkpoint or f"{path.rstrip('/')}.checkpoint")
    return writer.trigger(**pace.trigger).start(path)


def read_with_archive(spark: Any, topic: Topic, path: str) -> Any:
    """One DataFrame: the archive, and what the topic has after it."""
    from pyspark.sql import functions as f

    archived = spark.read.parquet(path).withColumn("partition", f.col("partition").cast("int"))
    last = archived.groupBy("partition").agg(f.max("offset").alias("offset")).collect()
    ends = {row["partition"]: row["offset"] + 1 for row in last}
    starts = {str(index): ends.get(index, -2) for index in range(partitions_of(topic.bootstrap, topic.name))}
    live = read_batch(spark, topic, **_COMMITTED, startingOffsets=json.dumps({topic.name: starts}))
    return archived.select(*COLUMNS).unionByName(live.select(*COLUMNS))
