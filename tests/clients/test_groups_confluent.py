"""Tests consumer groups with stock confluent-kafka (librdkafka)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions

NewTopicName = Callable[..., str]
LIMIT_S = 120.0


@pytest.fixture
def group() -> str:
    return f"g-{secrets.token_hex(6)}"


def produce(bootstrap: str, topic: str, count: int, start: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for index in range(start, start + count):
        producer.produce(topic, key=str(index), value=str(index))
    assert producer.flush(LIMIT_S) == 0


@contextmanager
def consuming(bootstrap: str, topic: str, group: str, count: int = 1, **settings: Any) -> Iterator[list[Consumer]]:
    consumers = []
    try:
        for _ in range(count):
            consumer = Consumer(
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": group,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "heartbeat.interval.ms": 200,
                    "topic.metadata.refresh.interval.ms": 500,
                    **settings,
                }
            )
            consumer.subscribe([topic])
            consumers.append(consumer)
        yield consumers
    finally:
        for consumer in consumers:
            consumer.close()


def poll_until(consumers: list[Consumer], done: Callable[[], bool]) -> list[str]:
    """Polls the consumers until `done` returns True, and returns the records that they read."""
    values: list[str] = []
    deadline = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < deadline, "the group did not get there in time"
        for consumer in consumers:
            message = consumer.poll(0.02)
            if message is not None:
                assert message.error() is None, message.error()
                values.append(message.value().decode())
    return values


def read(consumers: list[Consumer], count: int) -> list[str]:
    values: list[str] = []
    deadline = time.monotonic() + LIMIT_S
    while len(values) < count:
        assert time.monotonic() < deadline, f"only {len(values)} of {count} records came"
        for consumer in consumers:
            message = consumer.poll(0.02)
            if message is not None:
                assert message.error() is None, message.error()
                values.append(message.value().decode())
    return values


def shares(consumers: list[Consumer]) -> list[set[int]]:
    return [{each.partition for each in consumer.assignment()} for consumer in consumers]


def spread(consumers: list[Consumer], partitions: int) -> bool:
    """Returns True if every partition has one owner and the members' partition counts differ by at most one."""
    owned = shares(consumers)
    sizes = [len(share) for share in owned]
    return sum(sizes) == partitions == len(set().union(*owned)) and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_confluent_group_members_share_the_partitions_and_read_each_record_once(
    bootstrap: str, topic: NewTopicName, group: str, strategy: str
) -> None:
    name = topic(partitions=6)
    settings = {"partition.assignment.strategy": strategy}
    with consuming(bootstrap, name, group, 3, **settings) as consumers:
        poll_until(consumers, lambda: spread(consumers, 6))
        produce(bootstrap, name, 300)
        assert sorted(read(consumers, 300), key=int) == [str(index) for index in range(300)]


def test_partitions_of_a_leaving_confluent_group_member_are_reassigned(
    bootstrap: str, topic: NewTopicName, group: str
) -> None:
    name = topic(partitions=4)
    with consuming(bootstrap, name, group, 2) as consumers:
        poll_until(consumers, lambda: spread(consumers, 4))
        consumers.pop().close()
        poll_until(consumers, lambda: spread(consumers, 4))


@pytest.mark.slow
def test_confluent_group_member_without_heartbeats_loses_its_partitions_after_the_session_timeout(
    bootstrap: str, topic: NewTopicName, group: str
) -> None:
    name = topic(partitions=2)
    settings = {"session.timeout.ms": 6000, "max.poll.interval.ms": 6000}
    with consuming(bootstrap, name, group, 2, **settings) as consumers:
        poll_until(consumers, lambda: spread(consumers, 2))
        survivor = consumers[0]  # the other member no longer polls
        poll_until([survivor], lambda: len(survivor.assignment()) == 2)


def test_restarted_confluent_group_continues_at_its_committed_offsets(
    bootstrap: str, topic: NewTopicName, group: str
) -> None:
    name = topic(partitions=1)
    produce(bootstrap, name, 20)
    with consuming(bootstrap, name, group) as consumers:
        first = read(consumers, 10)
        consumers[0].commit(offsets=[TopicPartition(name, 0, 10, "ten")], asynchronous=False)
        [committed] = consumers[0].committed([TopicPartition(name, 0)], timeout=LIMIT_S)
        assert (committed.offset, committed.metadata) == (10, "ten")
    with consuming(bootstrap, name, group) as consumers:
        assert first + read(consumers, 10) == [str(index) for index in range(20)]


def test_confluent_group_members_read_partitions_added_later(bootstrap: str, topic: NewTopicName, group: str) -> None:
    name = topic(partitions=2)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    with consuming(bootstrap, name, group, 2) as consumers:
        poll_until(consumers, lambda: spread(consumers, 2))
        admin.create_partitions([NewPartitions(name, 6)])[name].result(timeout=LIMIT_S)
        poll_until(consumers, lambda: spread(consumers, 6))
        produce(bootstrap, name, 60)
        assert sorted(read(consumers, 60), key=int) == [str(index) for index in range(60)]


def test_restarted_static_confluent_member_gets_its_partitions_back_without_a_rebalance(
    bootstrap: str, topic: NewTopicName, group: str
) -> None:
    name = topic(partitions=4)
    rebalances: list[str] = []

    def member(instance: str) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.instance.id": instance,
                "heartbeat.interval.ms": 200,
            }
        )
        consumer.subscribe([name], on_revoke=lambda *_: rebalances.append(instance))
        return consumer

    first, second = member("a"), member("b")
    try:
        poll_until([first, second], lambda: spread([first, second], 4))
        before = shares([second])
        rebalances.clear()
        second.close()
        rebalances.clear()
        second = member("b")
        poll_until([first, second], lambda: len(second.assignment()) == 2)
        assert shares([second]) == before
        assert rebalances == []
    finally:
        first.close()
        second.close()


def test_second_confluent_member_with_the_same_instance_id_fences_the_first_member(
    bootstrap: str, topic: NewTopicName, group: str
) -> None:
    name = topic(partitions=2)
    failures: list[Any] = []
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.instance.id": "same",
        "heartbeat.interval.ms": 200,
        "error_cb": failures.append,
    }
    first, second = Consumer(settings), Consumer({**settings, "error_cb": lambda _: None})
    try:
        first.subscribe([name])
        poll_until([first], lambda: len(first.assignment()) == 2)
        second.subscribe([name])
        deadline = time.monotonic() + LIMIT_S
        while not failures:
            assert time.monotonic() < deadline
            message = first.poll(0.05)
            if message is not None and message.error() is not None:
                failures.append(message.error())
            second.poll(0.05)
        assert "fenced" in str(failures[0]).lower()
    finally:
        first.close()
        second.close()


def test_confluent_admin_client_describes_and_resets_and_deletes_groups(
    bootstrap: str, topic: NewTopicName, group: str
) -> None:
    name = topic(partitions=2)
    produce(bootstrap, name, 10)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    with consuming(bootstrap, name, group, 2, **{"client.id": "me"}) as consumers:
        poll_until(consumers, lambda: spread(consumers, 2))
        described = admin.describe_consumer_groups([group], request_timeout=LIMIT_S)[group].result()
        assert described.state == ConsumerGroupState.STABLE
        assert described.partition_assignor == "range"
        assert {member.client_id for member in described.members} == {"me"}
        assigned = [each.partition for member in described.members for each in member.assignment.topic_partitions]
        assert sorted(assigned) == [0, 1]
        listed = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result()
        assert group in [each.group_id for each in listed.valid]
        with pytest.raises(KafkaException, match=r"NON_EMPTY|not empty"):
            admin.delete_consumer_groups([group])[group].result()
    wanted = [TopicPartition(name, 0, 3), TopicPartition(name, 1, 4)]
    altered = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])
    assert all(each.error is None for each in altered[group].result().topic_partitions)
    offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
    assert {each.partition: each.offset for each in offsets.topic_partitions} == {0: 3, 1: 4}
    assert admin.delete_consumer_groups([group])[group].result() is None
    with pytest.raises(KafkaException, match=r"GROUP_ID_NOT_FOUND|does not exist"):
        admin.delete_consumer_groups([group])[group].result()


@pytest.mark.slow
def test_every_record_is_read_while_thirty_confluent_members_join_and_leave(
    bootstrap: str, topic: NewTopicName, group: str
) -> None:
    name = topic(partitions=30)
    settings = {"partition.assignment.strategy": "cooperative-sticky", "enable.auto.commit": True}
    with consuming(bootstrap, name, group, 10, **settings) as consumers:
        produce(bootstrap, name, 300)
        seen = set(poll_until(consumers, lambda: spread(consumers, 30)))
        with consuming(bootstrap, name, group, 20, **settings) as more:
            seen |= set(poll_until(consumers + more, lambda: spread(consumers + more, 30)))
        produce(bootstrap, name, 300, start=300)
        seen |= set(poll_until(consumers, lambda: spread(consumers, 30)))
        deadline = time.monotonic() + LIMIT_S
        while len(seen) < 600:
            assert time.monotonic() < deadline, f"{600 - len(seen)} records were never read"
            seen |= set(read(consumers, 1))
