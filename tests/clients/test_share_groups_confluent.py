"""Tests librdkafka's share consumer: implicit and explicit acknowledgements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

confluent_kafka = pytest.importorskip("confluent_kafka")
if not hasattr(confluent_kafka, "ShareConsumer"):
    pytest.skip("this confluent-kafka has no share consumer", allow_module_level=True)

NewTopicName = Callable[..., str]


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, f"v{number}".encode())
    assert producer.flush(60) == 0


def configure(bootstrap: str, group: str) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)


def share_consumer(bootstrap: str, group: str, **config: Any) -> Any:
    return confluent_kafka.ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, **config})


def test_librdkafkas_share_consumer_gets_every_record_once(bootstrap: str, topic: NewTopicName) -> None:
    name, group = topic(2), "rdkafka-implicit"
    configure(bootstrap, group)
    produce(bootstrap, name, 100)
    consumer = share_consumer(bootstrap, group)
    consumer.subscribe([name])
    seen: list[bytes] = []
    while len(seen) < 100:
        seen += [message.value() for message in consumer.poll(60) if message.error() is None]
    consumer.commit_sync(60)
    consumer.close()
    assert sorted(seen) == sorted(f"v{number}".encode() for number in range(100))


def test_librdkafkas_share_consumer_releases_and_rejects_records(bootstrap: str, topic: NewTopicName) -> None:
    name, group = topic(1), "rdkafka-explicit"
    configure(bootstrap, group)
    produce(bootstrap, name, 3)
    kinds = confluent_kafka.AcknowledgeType
    consumer = share_consumer(bootstrap, group, **{"share.acknowledgement.mode": "explicit"})
    consumer.subscribe([name])
    answers = {b"v0": kinds.ACCEPT, b"v1": kinds.RELEASE, b"v2": kinds.REJECT}
    seen: list[bytes] = []
    while len(seen) < 4:
        messages = [message for message in consumer.poll(60) if message.error() is None]
        for message in messages:
            again = message.value() in seen
            seen.append(message.value())
            consumer.acknowledge(message, kinds.ACCEPT if again else answers[message.value()])
        outcome = consumer.commit_sync(60)
        assert not any(outcome.values())
    consumer.close()
    assert sorted(seen) == [b"v0", b"v1", b"v1", b"v2"]
