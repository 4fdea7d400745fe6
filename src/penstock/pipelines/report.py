"""Examines topics: Spark finds sizes, keys, skew, fields, duplicates and gaps in three passes over the records.

Distinct keys are estimated within a few percent, because an exact number would need a shuffle of all keys. Gaps are
offsets without a record between the first and the last record. They are normal: compaction and transactions leave gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.pipelines.topics import Topic, partitions_of, read_batch, read_ends

#: Number of keys that a report lists at most.
MOST = 20
#: Number of values that are searched for fields.
SAMPLE = 1000
#: Passes over all records, for the display of progress.
PASSES = 3
#: Records per task: a large partition becomes many tasks, so that all cores are used and progress is visible.
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
    """Number of records with the same key and value as an earlier record."""
    fields: str
    """Fields of JSON values; empty if the values are not JSON objects."""

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.partitions)

    @property
    def skew(self) -> float:
        """Returns the record count of the largest partition divided by the mean count; 1 if all counts are equal."""
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
