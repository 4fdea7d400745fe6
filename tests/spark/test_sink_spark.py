"""The sink on a Spark session, in batch and as a stream; Penstock's own consumer checks the topics."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sink_driver import committed_rows

from penstock.client.partitioner import partition_for_key
from penstock.testing import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NewTopic = Callable[..., str]


def rows_of(spark: Any, count: int, **columns: str) -> Any:
    return spark.range(0, count, 1, 3).selectExpr(
        *(f"{expression} AS {name}" for name, expression in {"value": "string(id)", **columns}.items())
    )


def write(frame: Any, broker: Broker, **options: Any) -> None:
    frame.write.format("penstock").mode("append").option("kafka.bootstrap.servers", broker.bootstrap).options(
        **options
    ).save()


@pytest.mark.parametrize("exactly_once", ["true", "false"])
def test_batch_query_writes_every_row_once_to_the_topic(
    spark: Any, spark_broker: Broker, new_topic: NewTopic, exactly_once: str
) -> None:
    topic = new_topic(3)
    write(rows_of(spark, 5000, key="concat('k', id % 10)"), spark_broker, topic=topic, exactlyOnce=exactly_once)
    expected = sorted((f"k{index % 10}", str(index)) for index in range(5000))
    assert sorted(committed_rows(spark_broker, topic)) == expected
    for partition in range(3):
        for record in spark_broker.records(topic, partition):
            if record.key is not None:
                assert partition_for_key(record.key, 3) == partition


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_sink_writes_rows_with_every_compression_codec(
    spark: Any, spark_broker: Broker, new_topic: NewTopic, codec: str
) -> None:
    topic = new_topic()
    write(rows_of(spark, 100), spark_broker, **{"topic": topic, "kafka.compression.type": codec})
    assert len(spark_broker.records(topic)) == 100


def test_sink_columns_set_topic_and_partition_and_headers_of_a_record(
    spark: Any, spark_broker: Broker, new_topic: NewTopic
) -> None:
    one, two = new_topic(2), new_topic(2)
    frame = rows_of(
        spark,
        10,
        topic=f"if(id % 2 = 0, '{one}', '{two}')",
        partition="int(1)",
        headers="array(struct('h' AS key, binary('x') AS value))",
    )
    write(frame, spark_broker)
    for topic, odd in ((one, 0), (two, 1)):
        assert spark_broker.records(topic, 0) == []
        records = spark_broker.records(topic, 1)
        assert sorted(int(record.value or b"") for record in records) == list(range(odd, 10, 2))
        assert {record.headers for record in records} == {(("h", b"x"),)}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"topic": "nowhere-to-be-found", "autoCreateTopics": "false"},
            "There is no topic 'nowhere-to-be-found'",
        ),
        ({"topik": "t"}, "(is topic meant?)"),
        ({}, "give option topic"),
    ],
)
def test_sink_reports_wrong_options_and_missing_topics_without_a_traceback(
    spark: Any, spark_broker: Broker, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(Exception, match=re.escape(sentence)) as refused:
        write(rows_of(spark, 1), spark_broker, **options)
    assert "Traceback" not in str(refused.value)


@pytest.mark.parametrize("exactly_once", ["true", "false"])
def test_restarted_stream_to_the_sink_continues_where_it_stopped(
    spark: Any, spark_broker: Broker, new_topic: NewTopic, tmp_path: Path, exactly_once: str
) -> None:
    topic = new_topic(2)
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    for part in range(2):
        rows_of(spark, 100, value=f"concat('{part}-', id)").write.mode("append").parquet(str(source))
        query = (
            spark.readStream.schema("value string")
            .parquet(str(source))
            .writeStream.format("penstock")
            .option("kafka.bootstrap.servers", spark_broker.bootstrap)
            .option("topic", topic)
            .option("exactlyOnce", exactly_once)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    expected = sorted(("", f"{part}-{index}") for part in range(2) for index in range(100))
    assert sorted(committed_rows(spark_broker, topic)) == expected


def test_stream_in_complete_mode_writes_the_whole_result_with_every_batch(
    spark: Any, spark_broker: Broker, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, source = new_topic(1), tmp_path / "in"
    for part in range(2):
        rows_of(spark, 10, value="string(id % 2)").write.mode("append").parquet(str(source))
        counts = spark.readStream.schema("value string").parquet(str(source)).groupBy("value").count()
        query = (
            counts.selectExpr("value AS key", "string(count) AS value", "count AS others")
            .writeStream.format("penstock")
            .outputMode("complete")
            .option("kafka.bootstrap.servers", spark_broker.bootstrap)
            .options(topic=topic, extraColumns="ignore", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert len(committed_rows(spark_broker, topic)) == 2 * (part + 1)
    assert sorted(committed_rows(spark_broker, topic)) == [("0", "10"), ("0", "5"), ("1", "10"), ("1", "5")]
