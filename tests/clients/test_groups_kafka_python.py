"""Tests consumer groups with stock kafka-python."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

NewTopicName = Callable[..., str]
LIMIT_S = 120.0


@pytest.fixture
def group() -> str:
    return f"g-{secrets.token_hex(6)}"


def member(bootstrap: str, topic: str, group: str) -> KafkaConsumer:
    return KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
        session_timeout_ms=6000,
    )


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for index in range(count):
        producer.send(topic, value=b"%d" % index, partition=index % 4)
    producer.flush(LIMIT_S)
    producer.close()


def poll_until(consumers: list[KafkaConsumer], done: Callable[[list[bytes]], bool]) -> list[bytes]:
    """Polls all consumers at the same time, because kafka-python 3.0.12 loses an assignment that arrives when its poll
    times out."""
    values: list[bytes] = []
    deadline = time.monotonic() + LIMIT_S
    with ThreadPoolExecutor(len(consumers)) as threads:
        while not done(values):
            assert time.monotonic() < deadline, "the group did not get there in time"
            for polled in threads.map(lambda consumer: consumer.poll(timeout_ms=1000), consumers):
                for records in polled.values():
                    values += [record.value for record in records]
    return values


def test_new_kafka_python_member_continues_at_the_committed_offsets_of_two_earlier_members(
    bootstrap: str, topic: NewTopicName, group: str
) -> None:
    name = topic(partitions=4)
    consumers = [member(bootstrap, name, group) for _ in range(2)]
    try:
        poll_until(consumers, lambda _: [len(each.assignment()) for each in consumers] == [2, 2])
        produce(bootstrap, name, 100)
        values = poll_until(consumers, lambda got: len(got) >= 100)
        assert sorted(values, key=int) == [b"%d" % index for index in range(100)]
        for consumer in consumers:
            consumer.commit()
    finally:
        for consumer in consumers:
            consumer.close()
    late = member(bootstrap, name, group)
    try:
        poll_until([late], lambda _: len(late.assignment()) == 4)
        assert sum(late.committed(TopicPartition(name, index)) for index in range(4)) == 100
        assert late.poll(timeout_ms=300) == {}
    finally:
        late.close()


def test_kafka_python_commits_offsets_without_joining_a_group(bootstrap: str, topic: NewTopicName, group: str) -> None:
    name = topic(partitions=1)
    simple = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    try:
        simple.assign([TopicPartition(name, 0)])
        simple.commit({TopicPartition(name, 0): OffsetAndMetadata(42, "answer", -1)})
        assert simple.committed(TopicPartition(name, 0)) == 42
    finally:
        simple.close()
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        [described] = admin.describe_groups([group]).values()
        assert described["group_state"] == "Empty"
        offsets = admin.list_group_offsets(group)[group]
        assert offsets[TopicPartition(name, 0)].metadata == "answer"
    finally:
        admin.close()
