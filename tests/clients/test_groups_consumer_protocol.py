"""Tests groups of the consumer protocol (KIP-848) with stock clients. Short heartbeat intervals keep the tests fast."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock.testing import Broker

LIMIT_S = 120.0
FAST = {
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "1500",
    "group.consumer.assignment.interval.ms": "0",
}


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker(config=FAST) as broker:
        yield broker


@pytest.fixture
def topic(node: Broker) -> str:
    name = f"t-{secrets.token_hex(4)}"
    node.create_topic(name, 6)
    return name


@contextmanager
def members(node: Broker, topic: str, count: int, **settings: Any) -> Iterator[list[Consumer]]:
    group = settings.pop("group", f"g-{topic}")
    consumers = []
    try:
        for _ in range(count):
            consumer = Consumer(
                {
                    "bootstrap.servers": node.bootstrap,
                    "group.id": group,
                    "group.protocol": "consumer",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    **settings,
                }
            )
            consumer.subscribe([topic])
            consumers.append(consumer)
        yield consumers
    finally:
        for consumer in consumers:
            consumer.close()


def poll_until(consumers: list[Consumer], done: Callable[[list[str]], bool]) -> list[str]:
    values: list[str] = []
    deadline = time.monotonic() + LIMIT_S
    while not done(values):
        assert time.monotonic() < deadline, "the group did not get there in time"
        for consumer in consumers:
            message = consumer.poll(0.02)
            if message is not None:
                assert message.error() is None, message.error()
                values.append(message.value().decode())
    return values


def spread(consumers: list[Consumer], partitions: int) -> bool:
    owned = [{(each.topic, each.partition) for each in consumer.assignment()} for consumer in consumers]
    sizes = [len(share) for share in owned]
    return sum(sizes) == partitions == len(set().union(*owned)) and max(sizes) - min(sizes) <= 1


def produce(node: Broker, topic: str, count: int, start: int = 0) -> list[str]:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    values = [str(index) for index in range(start, start + count)]
    for value in values:
        producer.produce(topic, key=value, value=value)
    assert producer.flush(LIMIT_S) == 0
    return values


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_of_the_consumer_protocol_share_a_topic_and_read_each_record_once(
    node: Broker, topic: str, assignor: str
) -> None:
    with members(node, topic, 3, **{"group.remote.assignor": assignor}) as consumers:
        poll_until(consumers, lambda _: spread(consumers, 6))
        values = produce(node, topic, 100)
        assert sorted(poll_until(consumers, lambda got: len(got) >= 100), key=int) == values


def test_members_of_the_consumer_protocol_miss_no_record_while_members_join_and_leave(node: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    with members(node, topic, 2) as consumers:
        poll_until(consumers, lambda _: spread(consumers, 6))
        with members(node, topic, 3) as more:
            poll_until(consumers + more, lambda _: spread(consumers + more, 6))
            admin.create_partitions([NewPartitions(topic, 10)])[topic].result(timeout=LIMIT_S)
            poll_until(consumers + more, lambda _: spread(consumers + more, 10))
            values = produce(node, topic, 100)
            assert sorted(poll_until(consumers + more, lambda got: len(got) >= 100), key=int) == values
            for consumer in consumers + more:
                consumer.commit(asynchronous=False)
        poll_until(consumers, lambda _: spread(consumers, 10))
        late = produce(node, topic, 50, start=100)
        assert sorted(poll_until(consumers, lambda got: len(got) >= 50), key=int) == late


def test_stock_client_with_a_subscribed_pattern_reads_topics_created_later(node: Broker, topic: str) -> None:
    with members(node, f"^{topic}.*", 1) as consumers:
        poll_until(consumers, lambda _: spread(consumers, 6))
        node.create_topic(f"{topic}-more", 2)
        poll_until(consumers, lambda _: spread(consumers, 8))


def test_restarted_static_member_of_the_consumer_protocol_gets_its_partitions_back(node: Broker, topic: str) -> None:
    with members(node, topic, 1) as others:
        with members(node, topic, 1, **{"group.instance.id": "i"}) as first:
            poll_until(others + first, lambda _: spread(others + first, 6))
            before = {each.partition for each in first[0].assignment()}
        with members(node, topic, 1, **{"group.instance.id": "i"}) as second:
            poll_until(others + second, lambda _: len(second[0].assignment()) == 3)
            assert {each.partition for each in second[0].assignment()} == before


def test_consumer_protocol_group_continues_at_its_committed_offsets_after_a_broker_is_killed(topic: str) -> None:
    with Broker(config=FAST, topics={"kept": 3}) as broker, members(broker, "kept", 1) as consumers:
        first = produce(broker, "kept", 20)
        assert sorted(poll_until(consumers, lambda got: len(got) >= 20), key=int) == first
        consumers[0].commit(asynchronous=False)
        broker.kill()
        broker.start()
        late = produce(broker, "kept", 20, start=20)
        assert sorted(poll_until(consumers, lambda got: len(got) >= 20), key=int) == late


def test_offsets_of_a_consumer_protocol_group_can_be_reset_only_while_it_is_empty(node: Broker, topic: str) -> None:
    with members(node, topic, 1) as consumers:
        poll_until(consumers, lambda _: spread(consumers, 6))
        other = Consumer({"bootstrap.servers": node.bootstrap, "group.id": f"g-{topic}"})
        with pytest.raises(KafkaException):
            other.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        other.close()
    other = Consumer({"bootstrap.servers": node.bootstrap, "group.id": f"g-{topic}"})
    other.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    other.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_group_is_upgraded_to_the_consumer_protocol_and_downgraded_member_by_member(
    node: Broker, topic: str, strategy: str
) -> None:
    old = {
        "group.protocol": "classic",
        "partition.assignment.strategy": strategy,
        "heartbeat.interval.ms": 100,
        "session.timeout.ms": 6000,
    }
    seen: set[str] = set()

    def settle(consumers: list[Consumer], start: int) -> None:
        poll_until(consumers, lambda _: spread(consumers, 6))
        values = produce(node, topic, 30, start=start)
        seen.update(poll_until(consumers, lambda got: set(values) <= seen | set(got)))
        for consumer in consumers:
            consumer.commit(asynchronous=False)

    def admin_type() -> str:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        [found] = [each for each in admin.list_consumer_groups().result().valid if each.group_id == f"g-{topic}"]
        return str(found.type.name).lower()

    with members(node, topic, 2, **old) as classic:
        settle(classic, 0)
        assert admin_type() == "classic"
        with members(node, topic, 1) as new:
            settle(classic + new, 100)
            assert admin_type() == "consumer"
            classic.pop().close()
            settle(classic + new, 200)
            with members(node, topic, 1, **old) as back:
                settle(classic + new + back, 300)
                new.pop().close()
                settle(classic + back, 400)
                assert admin_type() == "classic"
    assert len(seen) == 150
