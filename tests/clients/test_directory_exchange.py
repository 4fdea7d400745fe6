"""One data directory used in turn: created by Apache Kafka, continued by Penstock, and taken over by Kafka again."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tools import kafka

pytestmark = [pytest.mark.java, pytest.mark.slow]


@contextmanager
def penstock_on(directory: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "penstock.cli.main", "up", "--port", "0", "--data", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        if found := re.match(r"ready (\S+)", line):
            break
    else:
        pytest.fail(f"the broker did not start: {''.join(said)}")
    try:
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


def create(bootstrap: str, name: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1, config=configs)])[name].result(timeout=120)


def produce(bootstrap: str, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "zstd"})
    outcomes: list[object] = []
    for value in values:
        producer.produce(
            topic, value.encode(), key=b"k", partition=0, on_delivery=lambda error, _: outcomes.append(error)
        )
    assert producer.flush(30) == 0
    assert outcomes == [None] * len(values)


def consume(bootstrap: str, topic: str, count: int) -> list[str]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        values: list[str] = []
        while len(values) < count:
            messages = consumer.consume(count - len(values), timeout=120)
            assert messages, f"only {values} of {count} records came"
            for message in messages:
                assert message.error() is None
                values.append((message.value() or b"").decode())
        return values
    finally:
        consumer.close()


def commit(bootstrap: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "enable.auto.commit": False})
    while True:
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
            break
        except KafkaException as problem:  # the coordinator is not available at once after its topic is created
            if problem.args[0].code() not in (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS):
                raise
    consumer.close()


def committed(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=120)
    consumer.close()
    return int(found.offset)


def config_of(bootstrap: str, topic: str, name: str) -> str:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = admin.describe_configs([resource])[resource].result(timeout=120)
    return str(described[name].value)


def test_kafka_and_penstock_use_the_same_data_directory_one_after_the_other(kafka_jars: None, tmp_path: Path) -> None:
    cluster = kafka.KafkaCluster(data=tmp_path, heap=("-Xmx512M", "-Xms256M"))
    with cluster:
        create(cluster.bootstrap, "kafkas", **{"retention.ms": "123456789"})
        produce(cluster.bootstrap, "kafkas", "a", "b", "c")
        commit(cluster.bootstrap, "kafkas", 2)
    with penstock_on(cluster.members[0].log_dir) as bootstrap:
        assert consume(bootstrap, "kafkas", 3) == ["a", "b", "c"]
        assert config_of(bootstrap, "kafkas", "retention.ms") == "123456789"
        assert committed(bootstrap, "kafkas") == 2
        commit(bootstrap, "kafkas", 3)
        produce(bootstrap, "kafkas", "d", "e")
        create(bootstrap, "penstocks", **{"cleanup.policy": "compact"})
        produce(bootstrap, "penstocks", "x")
    cluster.start()
    try:
        assert consume(cluster.bootstrap, "kafkas", 5) == ["a", "b", "c", "d", "e"]
        assert consume(cluster.bootstrap, "penstocks", 1) == ["x"]
        assert committed(cluster.bootstrap, "kafkas") == 3
        assert config_of(cluster.bootstrap, "penstocks", "cleanup.policy") == "compact"
    finally:
        cluster.stop()
