"""Tests transactions with confluent-kafka, whose librdkafka adds partitions itself (transaction version 1)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

NewTopicName = Callable[..., str]

QUIET = {"log_level": 0}
LIMIT_S = 120.0


@pytest.fixture
def name() -> str:
    return f"x-{secrets.token_hex(6)}"


def producer(bootstrap: str, transactional_id: str, **settings: object) -> Producer:
    started = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, **QUIET, **settings})
    started.init_transactions(LIMIT_S)
    return started


@contextmanager
def consumer(bootstrap: str, group: str, isolation: str = "read_committed") -> Iterator[Consumer]:
    reading = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    try:
        yield reading
    finally:
        reading.close()


def read(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """Returns the values of all records of partition 0, in order."""
    found: list[bytes] = []
    with consumer(bootstrap, f"reader-{secrets.token_hex(4)}", isolation) as reading:
        reading.assign([TopicPartition(topic, 0, 0)])
        while (message := reading.poll(LIMIT_S)) is not None:
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                return found
            found.append(message.value() or b"")
    raise AssertionError("the consumer did not reach the end of the partition in time")


def refused(wanted: type[KafkaException] | int, action: Callable[[], object]) -> KafkaError:
    with pytest.raises(KafkaException) as problem:
        action()
    error = problem.value.args[0]
    assert isinstance(error, KafkaError)
    assert error.code() == wanted
    return error


def test_confluent_reads_committed_records_but_no_aborted_records(
    bootstrap: str, topic: NewTopicName, name: str
) -> None:
    written = topic()
    writing = producer(bootstrap, name)
    for round_, commit in enumerate([True, False, True, False, True]):
        writing.begin_transaction()
        for index in range(3):
            writing.produce(written, b"%d-%d" % (round_, index), partition=0)
        if commit:
            writing.commit_transaction(LIMIT_S)
        else:
            writing.flush(LIMIT_S)
            writing.abort_transaction(LIMIT_S)
    committed = [b"%d-%d" % (round_, index) for round_ in (0, 2, 4) for index in range(3)]
    assert read(bootstrap, written) == committed
    assert len(read(bootstrap, written, "read_uncommitted")) == 15


def test_newer_confluent_producer_fences_the_older_producer_and_aborts_its_transaction(
    bootstrap: str, topic: NewTopicName, name: str
) -> None:
    written = topic()
    zombie = producer(bootstrap, name)
    zombie.begin_transaction()
    zombie.produce(written, b"zombie", partition=0)
    zombie.flush(LIMIT_S)
    successor = producer(bootstrap, name)
    error = refused(KafkaError._FENCED, lambda: zombie.commit_transaction(LIMIT_S))
    assert error.fatal()
    successor.begin_transaction()
    successor.produce(written, b"successor", partition=0)
    successor.commit_transaction(LIMIT_S)
    assert read(bootstrap, written) == [b"successor"]


def test_offsets_that_confluent_sends_in_a_transaction_take_effect_when_the_transaction_commits(
    bootstrap: str, topic: NewTopicName, name: str
) -> None:
    source = topic()
    writing = producer(bootstrap, name)
    with consumer(bootstrap, name) as reading:
        partition = TopicPartition(source, 0, 42)
        writing.begin_transaction()
        writing.send_offsets_to_transaction([partition], reading.consumer_group_metadata(), LIMIT_S)
        admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        asked = [ConsumerGroupTopicPartitions(name, [TopicPartition(source, 0)])]
        unstable = admin.list_consumer_group_offsets(asked, require_stable=True)[name].result(LIMIT_S)
        [open_] = unstable.topic_partitions or []
        assert open_.error is not None
        assert open_.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT
        writing.abort_transaction(LIMIT_S)
        assert reading.committed([TopicPartition(source, 0)], LIMIT_S)[0].offset < 0
        writing.begin_transaction()
        writing.send_offsets_to_transaction([partition], reading.consumer_group_metadata(), LIMIT_S)
        writing.commit_transaction(LIMIT_S)
        assert reading.committed([TopicPartition(source, 0)], LIMIT_S)[0].offset == 42


def test_transaction_over_many_partitions_is_committed_or_aborted_in_all_of_them(
    bootstrap: str, topic: NewTopicName, name: str
) -> None:
    topics = [topic(partitions=60) for _ in range(4)]
    writing = producer(bootstrap, name)
    for commit in (True, False):
        writing.begin_transaction()
        for each in topics:
            for index in range(60):
                writing.produce(each, b"yes" if commit else b"no", partition=index)
        if commit:
            writing.commit_transaction(LIMIT_S)
        else:
            writing.flush(LIMIT_S)
            writing.abort_transaction(LIMIT_S)
    assert [read(bootstrap, each) for each in topics] == [[b"yes"]] * 4
    # all markers are written, so the next transaction may begin at once
    writing.begin_transaction()
    writing.produce(topics[0], b"next", partition=0)
    writing.commit_transaction(LIMIT_S)
    assert read(bootstrap, topics[0]) == [b"yes", b"next"]


def test_transaction_that_exceeds_its_timeout_is_aborted(bootstrap: str, topic: NewTopicName, name: str) -> None:
    written = topic()
    slow = producer(bootstrap, name, **{"transaction.timeout.ms": 1000})
    slow.begin_transaction()
    slow.produce(written, b"slow", partition=0)
    slow.flush(LIMIT_S)
    quick = producer(bootstrap, f"{name}-quick")
    quick.begin_transaction()
    quick.produce(written, b"quick", partition=0)
    quick.commit_transaction(LIMIT_S)
    with consumer(
        bootstrap, name
    ) as reading:  # the slow transaction holds the last stable offset back until it is aborted
        reading.assign([TopicPartition(written, 0, 0)])
        while (message := reading.poll(LIMIT_S)) is not None and message.error() is not None:
            pass
    assert message is not None
    assert message.value() == b"quick"
    with pytest.raises(KafkaException):
        slow.commit_transaction(LIMIT_S)
