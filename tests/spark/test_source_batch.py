"""`spark.read.format("penstock")` on a real session. Few reads with many checks: a read starts Python workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from penstock.client.producer import ProducerSettings
from penstock.records.compression import Codec
from penstock.testing import Broker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def fill(
    broker: Broker, topic: str, count: int, *, start: int = 0, partition: int | None = None, codec: int = 0
) -> None:
    with broker.client() as client, client.producer(ProducerSettings(compression=codec, batch_bytes=2000)) as producer:
        records = [
            (
                f"k{i}".encode(),
                None if i % 50 == 49 else f"value-{i}".encode(),
                (("n", str(i).encode()),),
                1_000_000 + i,
            )
            for i in range(start, start + count)
        ]
        producer.send_many(topic, records, partition=partition)


def read(spark: Any, broker: Broker, **options: str) -> Any:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return spark.read.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap).options(**named).load()


def test_source_returns_the_same_rows_as_sparks_own_source(
    spark: Any, spark_broker: Broker, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    for codec in Codec:  # every codec in one topic
        fill(spark_broker, topic, 100, start=100 * codec, codec=int(codec))
    frame = read(spark, spark_broker, subscribe=topic, includeHeaders="true", minPartitions="4", read_mode="wire")
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    assert frame.rdd.getNumPartitions() >= 4
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    expected = {
        (partition, record.offset): record for partition in (0, 1) for record in spark_broker.records(topic, partition)
    }
    assert len(rows) == len(expected) == 500
    for row in rows:
        record = expected[row.partition, row.offset]
        assert (row.key, row.value, row.topic, row.ms, row.timestampType) == (
            record.key,
            record.value,
            topic,
            record.timestamp,
            0,
        )
        assert tuple((pair.key, pair.value) for pair in row.headers) == record.headers


@pytest.mark.slow
def test_batch_query_reads_only_the_records_within_its_filters_and_offsets(
    spark: Any, spark_broker: Broker, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    for partition in (0, 1):
        fill(spark_broker, topic, 200, partition=partition)
    offsets = json.dumps({topic: {"0": 10, "1": -2}})
    ends = json.dumps({topic: {"0": 150, "1": -1}})
    options = {"subscribe": topic, "startingOffsets": offsets, "endingOffsets": ends}
    wanted = "partition = 0 AND offset >= 20 AND offset < 30 AND timestamp >= timestamp_millis(1000025)"
    narrowed = read(spark, spark_broker, **options, push_filters="true").where(wanted)
    assert [row.offset for row in narrowed.select("offset").collect()] == [25, 26, 27, 28, 29]
    assert narrowed.rdd.getNumPartitions() == 1
    frame = read(spark, spark_broker, **options)
    assert frame.where("offset < 5").count() == 5
    counts = {row.partition: row["count"] for row in frame.groupBy("partition").count().collect()}
    assert counts == {0: 140, 1: 200}


def test_batch_query_reports_misspelt_options_and_missing_topics_in_one_sentence(
    spark: Any, spark_broker: Broker, new_topic: Callable[..., str]
) -> None:
    with pytest.raises(
        Exception, match=r"Option 'startingofsets' is unknown \(is startingOffsets meant\?\)"
    ) as refused:
        read(spark, spark_broker, subscribe="x", startingOfsets="earliest")
    assert "Traceback" not in str(refused.value)
    with pytest.raises(Exception, match=r"There is no topic 'nowhere': create it first") as refused:
        read(spark, spark_broker, subscribe="nowhere").count()
    assert "Traceback" not in str(refused.value)


def test_source_decodes_json_values_and_puts_bad_values_into_their_own_column(
    spark: Any, spark_broker: Broker, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    values = [b'{"id": 1, "name": "a"}', b"broken", None, b'{"id": 2, "name": "b", "more": [1]}']
    with spark_broker.client() as client, client.producer() as producer:
        producer.send_many(topic, [(None, value, (), None) for value in values])
    frame = read(
        spark,
        spark_broker,
        subscribe=topic,
        **{"value.format": "json", "value.schema": "id LONG, name STRING"},
    )
    rows = frame.selectExpr("offset", "value.id", "value.name", "bad_value", "bad_reason IS NOT NULL").collect()
    assert [tuple(row) for row in rows] == [
        (0, 1, "a", None, False),
        (1, None, None, b"broken", True),
        (2, None, None, None, False),
        (3, 2, "b", None, False),
    ]
