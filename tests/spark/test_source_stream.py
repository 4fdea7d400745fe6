"""`spark.readStream.format("penstock")` on a real session."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from penstock.spark.progress import watch
from penstock.testing import Broker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
PATIENCE_S = 240


def send(broker: Broker, topic: str, numbers: range, partition: int | None = None) -> None:
    with broker.client() as client, client.producer() as producer:
        producer.send_many(topic, [(None, b"%d" % number, (), None) for number in numbers], partition=partition)


def stream(spark: Any, broker: Broker, topic: str, **options: str) -> Any:
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").options(**options).load()


def run_once(frame: Any, place: Path) -> Any:
    """Copies all present records to a table. With its checkpoint, each record is copied once."""
    query = (
        frame.selectExpr("CAST(value AS STRING) AS number", "partition", "offset")
        .writeStream.format("parquet")
        .option("path", str(place / "table"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)
    assert query.exception() is None
    return query


def test_stream_reads_every_record_once_across_restarts_and_new_partitions(
    spark: Any, spark_broker: Broker, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(1)
    watcher = watch(spark)
    send(spark_broker, topic, range(500))
    frame = stream(spark, spark_broker, topic, maxOffsetsPerTrigger="300", **{"commit.group": "spark-test"})
    query = run_once(frame, tmp_path)
    batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert batches == [300, 200]
    with spark_broker.client() as client:
        client.create_partitions(topic, 2)
    send(spark_broker, topic, range(500, 700), partition=1)
    query = run_once(frame, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(int(row.number) for row in rows) == list(range(700))
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    last = json.loads(offsets[-1].read_text().splitlines()[-1])
    assert last[topic] == {"0": 500, "1": 200}
    assert [value for key, value in last.items() if key.startswith(f"{topic} id=")] == [{}]
    spark.streams.removeListener(watcher)
    state = watcher.queries[str(query.id)]
    assert (state.lag, state.total_rows) == (0, 700)


@pytest.mark.slow
def test_running_stream_continues_after_a_restart_of_its_broker(spark: Any, tmp_path: Path) -> None:
    with Broker(data=tmp_path / "data", topics={"t": 2}) as mortal:
        send(mortal, "t", range(300))
        query = (
            stream(spark, mortal, "t")
            .selectExpr("CAST(value AS STRING) AS number")
            .writeStream.format("memory")
            .queryName("survivor")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        query.processAllAvailable()
        mortal.kill()
        mortal.start()
        send(mortal, "t", range(300, 500))
        query.processAllAvailable()
        rows = spark.sql("SELECT number FROM survivor").collect()
        query.stop()
    assert sorted(int(row.number) for row in rows) == list(range(500))


@pytest.mark.slow
def test_stream_whose_next_records_were_deleted_stops_with_an_error_of_one_sentence(
    spark: Any, spark_broker: Broker, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(1)
    send(spark_broker, topic, range(10))
    run_once(stream(spark, spark_broker, topic), tmp_path)
    send(spark_broker, topic, range(10, 30))
    with spark_broker.client() as client:
        client.delete_records({(topic, 0): 20})
    with pytest.raises(Exception, match=rf"{topic}-0 begins at 20 now, but 10 is the next offset to read"):
        run_once(stream(spark, spark_broker, topic), tmp_path)
    run_once(stream(spark, spark_broker, topic, failOnDataLoss="false"), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(int(row.number) for row in rows) == [*range(10), *range(20, 30)]


@pytest.mark.parametrize(
    ("schema", "options", "sentence"),
    [
        (None, {"endingOffsets": "latest"}, "Ending offsets are for batch reads"),
        ("value STRING", {}, "The schema gives column 'value' the type string, but its type is binary"),
    ],
)
def test_wrong_options_of_a_stream_are_reported_in_one_sentence(
    spark: Any,
    spark_broker: Broker,
    new_topic: Callable[..., str],
    tmp_path: Path,
    schema: str | None,
    options: dict[str, str],
    sentence: str,
) -> None:
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", spark_broker.bootstrap)
    reader = reader if schema is None else reader.schema(schema)
    frame = reader.option("subscribe", new_topic(1)).options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match=re.escape(f"SourceError: {sentence}")) as refused:
        writer.start().awaitTermination(PATIENCE_S)
    assert "UnboundLocalError" not in str(refused.value)
