"""What is in topics: sizes, keys, skew, fields, duplicates and gaps, found by Spark in three passes over their records.

Estimates where exact answers would need a shuffle of every key: distinct keys within a few percent. Gaps are offsets
between the first and the last that hold no record: compaction and transactions leave them, so they are only told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.pipelines.topics import Topic, partitions_of, read_batch, read_ends

#: Keys and fields that are named in a report.
MOST = 20
#: Values that fields are looked for in.
SAMPLE = 1000
#: How often every record is read, for who wants to know how far a report is.
PASSES = 3
#: Of one task: a large partition has many, so that all cores have some and progress is seen.
TASK_RECORDS = 500_000


@dataclass(frozen=True, slots=True)
class PartitionReport:
    partition: int
    records: int
    bytes: int
    first: int
    last: int
    oldest: str
    newest: str
    keys: int
    without_value: int

    @property
    def gaps(self) -> int:
        return self.last - self.first + 1 - self.records


@dataclass(frozen=True, slots=True)
class TopicReport:
    topic: str
    partitions: tuple[PartitionReport, ...]
    top_keys: tuple[tuple[str, int], ...]
    duplicates: int
    """Records that have another one's key and value, beyond the first of each."""
    fields: str
    """Of JSON values; empty if they are none."""

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.partitions)

    @property
    def skew(self) -> float:
        """The biggest partition against the mean: 1 is even."""
        if not self.records:
            return 1.0
        return max(each.records for each in self.partitions) * len(self.partitions) / self.records


def examine(spark: Any, topics: Sequence[Topic]) -> list[TopicReport]:
    return [_examine(spark, topic) for topic in topics]


def _examine(spark: Any, topic: Topic) -> TopicReport:
    from pyspark.sql import functions as f

    committed = {"kafka.isolation.level": "read_committed", "maxRecordsPerPartition": str(TASK_RECORDS)}
    records = read_batch(spark, topic, **committed)
    size = f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0))
    found = {
        row["partition"]: row
        for row in records.groupBy("partition")
        .agg(
            f.count("*").alias("records"),
            f.sum(size).alias("bytes"),
            f.min("offset").alias("first"),
            f.max("offset").alias("last"),
            f.min("timestamp").cast("string").alias("oldest"),
            f.max("timestamp").cast("string").alias("newest"),
            f.approx_count_distinct("key").alias("keys"),
            f.sum(f.col("value").isNull().cast("long")).alias("without_value"),
        )
        .collect()
    }
    partitions = tuple(
        PartitionReport(**found[index].asDict())
        if index in found
        else PartitionReport(index, 0, 0, 0, -1, "", "", 0, 0)
        for index in range(partitions_of(topic))
    )
    keyed = records.where("key IS NOT NULL").groupBy(f.col("key").cast("string").alias("key")).count()
    top = tuple((row["key"], row["count"]) for row in keyed.orderBy(f.desc("count"), "key").limit(MOST).collect())
    same = records.groupBy("key", f.xxhash64("value"), f.length("value")).count().where("count > 1")
    [[duplicates]] = same.select(f.coalesce(f.sum(f.col("count") - 1), f.lit(0))).collect()
    sample = read_ends(spark, topic, SAMPLE)
    [[fields]] = sample.select(f.schema_of_variant_agg(f.try_parse_json(f.col("value").cast("string")))).collect()
    shown = fields if fields and fields.startswith("OBJECT") else ""
    return TopicReport(topic.name, partitions, top, int(duplicates), shown)
