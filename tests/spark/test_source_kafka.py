"""The source reads Apache Kafka, by fetch and from its files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from penstock.client.producer import ProducerSettings
from penstock.client.sync import Client
from penstock.spark.batch import BatchReader
from penstock.spark.options import parse_options
from penstock.spark.schema import source_schema
from penstock.spark.stream import StreamReader
from tools import kafka

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def bootstrap(kafka_jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with kafka.KafkaCluster(data=tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster.bootstrap


def rows(options: dict[str, str]) -> list[tuple[Any, ...]]:
    reader = BatchReader(parse_options(options), source_schema(options))
    tasks = reader.partitions()
    batches = [batch for task in tasks for batch in reader.read(task)]
    table = pa.Table.from_batches(batches)
    return sorted((row["partition"], row["offset"], row["key"], row["value"]) for row in table.to_pylist())


def test_source_reads_the_same_records_from_apache_kafka_by_fetch_and_from_its_log_files(bootstrap: str) -> None:
    with Client(bootstrap) as client:
        client.create_topic("t", 2, 1)
        for codec in range(5):
            with client.producer(ProducerSettings(compression=codec)) as producer:
                producer.send_many("t", [(b"k%d" % i, b"%d" % codec * 50, (), None) for i in range(300)])
        with client.producer(ProducerSettings(transactional_id="x")) as producer:
            for number in range(4):
                producer.begin()
                producer.send_many("t", [(b"t", b"%d" % number, (), None)] * 10, partition=0)
                producer.flush()
                if number % 2:
                    producer.abort()
                else:
                    producer.commit()
    where = {"kafka.bootstrap.servers": bootstrap, "subscribe": "t"}
    wire = rows(where | {"read.mode": "wire"})
    assert len(wire) == 5 * 300 + 40
    assert rows(where | {"read.mode": "files", "minPartitions": "5"}) == wire
    committed = {"kafka.isolation.level": "read_committed"}
    seen = rows(where | committed | {"read.mode": "wire"})
    assert [value for _, _, key, value in seen if key == b"t"] == [b"0"] * 10 + [b"2"] * 10
    assert rows(where | committed | {"read.mode": "files"}) == seen
    stream = StreamReader(where | {"startingOffsets": "earliest", "commit.group": "g"}, source_schema(where))
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    found = sum(batch.num_rows for task in stream.partitions(start, end) for batch in stream.read(task))
    assert found == len(wire)
    stream.commit(end)
    stream.stop()
