"""Data is lost at the source of a real Spark query: either all rows are written, or the query reports the loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from sink_driver import committed_rows

from penstock.testing import Broker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

NewTopic = Callable[..., str]
PATIENCE_S = 240


def send(broker: Broker, topic: str, *values: str) -> None:
    with broker.client() as client, client.producer() as producer:
        producer.send_many(topic, [(None, value.encode(), (), None) for value in values])


def test_batch_with_a_recorded_commit_decision_is_written_even_if_its_source_records_are_deleted(
    spark: Any, spark_broker: Broker, spark_steps: Path, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, target = new_topic(), new_topic()

    def run() -> Exception | None:
        frame = (
            spark.readStream.format("penstock")
            .option("kafka.bootstrap.servers", spark_broker.bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", "false")
            .load()
        )
        query = (
            frame.select("value")
            .writeStream.format("penstock")
            .option("kafka.bootstrap.servers", spark_broker.bootstrap)
            .option("topic", target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(PATIENCE_S)
        except Exception as error:
            return error
        return None

    send(spark_broker, source, "first", "second")
    (spark_steps / "driver-decided").write_text("")
    assert run() is not None, "the driver's commit was killed"
    with spark_broker.client() as client:
        client.delete_records({(source, 0): 2})
    send(spark_broker, source, "third")
    assert run() is None
    assert [value for _, value in committed_rows(spark_broker, target)] == ["first", "second", "third"]


@pytest.mark.parametrize("count", [2, 7], ids=["shorter", "grown past the old end"])
def test_recreated_topic_stops_an_available_now_query(
    spark: Any, spark_broker: Broker, new_topic: NewTopic, tmp_path: Path, count: int
) -> None:
    topic = new_topic()

    def run() -> None:
        frame = spark.readStream.format("penstock").option("kafka.bootstrap.servers", spark_broker.bootstrap)
        frame = frame.option("subscribe", topic).option("startingOffsets", "earliest").load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        assert query.start().awaitTermination(PATIENCE_S)

    send(spark_broker, topic, *"12345")
    run()
    with spark_broker.client() as client:
        client.delete_topics([topic])
    spark_broker.create_topic(topic, 1)
    send(spark_broker, topic, *"abcdefg"[:count])
    with pytest.raises(Exception, match=f"Topic {topic} was deleted and created again"):
        run()
