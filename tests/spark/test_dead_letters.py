"""Spark reads the dead-letter topic of a share group like any other topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from waiting import until

pytest.importorskip("pyspark")

from penstock.protocol.vocabulary import Acknowledge, ConfigOperation, ResourceType
from penstock.testing import Broker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_spark_reads_dead_letters_with_the_copied_record_and_its_origin(
    spark: Any, spark_broker: Broker, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    dead = f"dlq.{topic}"
    spark_broker.create_topic(dead, 1, errors_deadletterqueue_group_enable="true")
    group = f"group-of-{topic}"
    configs = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": dead,
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    with spark_broker.client() as client:
        client.alter_configs(
            ResourceType.GROUP, group, [(name, int(ConfigOperation.SET), text) for name, text in configs.items()]
        )
        with client.producer() as producer:
            for value in (b"good", b"bad"):
                producer.send(topic, value, key=b"k", partition=0)
        with client.share_consumer(group, [topic]) as consumer:
            taken = 0
            while taken < 2:
                for each in consumer.poll():
                    taken += 1
                    wrong = each.record.value == b"bad"
                    consumer.acknowledge(each, Acknowledge.REJECT if wrong else Acknowledge.ACCEPT)
            assert consumer.commit() == {(topic, 0): None}
            until(lambda: spark_broker.records(dead), "the rejected record gets no dead letter")
    options = {"kafka.bootstrap.servers": spark_broker.bootstrap, "subscribe": dead, "includeHeaders": "true"}
    [row] = spark.read.format("penstock").options(**options).load().collect()
    assert (bytes(row.key), bytes(row.value)) == (b"k", b"bad")
    origin = {header.key: bytes(header.value).decode() for header in row.headers}
    assert origin["__dlq.errors.topic"] == topic
    assert origin["__dlq.errors.offset"] == "1"
    assert origin["__dlq.errors.group"] == group
