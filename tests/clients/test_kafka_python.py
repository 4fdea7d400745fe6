"""Tests kafka-python as a stock client of a Penstock broker."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError

NewTopicName = Callable[..., str]
# The client leaves its wake-up sockets to the garbage collector.
pytestmark = [pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"), pytest.mark.usefixtures("collected")]
TEN_MEGABYTES = 10 * 1024 * 1024


def produce(bootstrap: str, topic: str, records: list[dict[str, Any]], **settings: Any) -> list[Any]:
    producer = KafkaProducer(bootstrap_servers=bootstrap, **settings)
    try:
        futures = [producer.send(topic, **record) for record in records]
        producer.flush(30)
        return [future.get(30) for future in futures]
    finally:
        producer.close()


def consume(bootstrap: str, topic: str, count: int, offset: int | None = None, **settings: Any) -> list[Any]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=20_000, **settings)
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        if offset is None:
            consumer.seek_to_beginning(partition)
        else:
            consumer.seek(partition, offset)
        got = []
        for record in consumer:
            got.append(record)
            if len(got) == count:
                break
        return got
    finally:
        consumer.close()


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_kafka_python_consumes_the_records_that_it_produced(
    bootstrap: str, topic: NewTopicName, codec: str | None, acks: int | str
) -> None:
    name = topic()
    values = [b"%d %s" % (index, b"x" * 200) for index in range(100)]
    idempotence = {"enable_idempotence": False} if acks != "all" else {}
    produce(bootstrap, name, [{"value": value} for value in values], compression_type=codec, acks=acks, **idempotence)
    assert [record.value for record in consume(bootstrap, name, 100)] == values


def test_kafka_python_reads_null_keys_and_null_values_and_headers_as_they_were_sent(
    bootstrap: str, topic: NewTopicName
) -> None:
    name = topic()
    produce(
        bootstrap,
        name,
        [{"value": b"v", "headers": [("a", b"1"), ("a", b"2")]}, {"value": None, "key": b"tombstone"}],
    )
    first, second = consume(bootstrap, name, 2)
    assert (first.key, first.value, list(first.headers)) == (None, b"v", [("a", b"1"), ("a", b"2")])
    assert (second.key, second.value) == (b"tombstone", None)


def test_kafka_pythons_idempotent_producer_writes_each_record_once_and_in_order(
    bootstrap: str, topic: NewTopicName
) -> None:
    name = topic()
    values = [b"%d" % index for index in range(500)]
    produce(bootstrap, name, [{"value": value} for value in values], enable_idempotence=True, acks="all")
    assert [record.value for record in consume(bootstrap, name, 500)] == values


def test_kafka_python_sends_and_reads_a_message_of_ten_megabytes_if_the_limit_is_raised(
    bootstrap: str, topic: NewTopicName
) -> None:
    limit = TEN_MEGABYTES + 4096
    name = topic(**{"max.message.bytes": str(limit)})
    value = secrets.token_bytes(TEN_MEGABYTES)
    produce(bootstrap, name, [{"value": value}], max_request_size=limit)
    got = consume(bootstrap, name, 1, max_partition_fetch_bytes=limit)
    assert got[0].value == value


def test_kafka_python_gets_an_error_for_a_message_over_the_limit(bootstrap: str, topic: NewTopicName) -> None:
    name = topic(**{"max.message.bytes": "1000"})
    with pytest.raises(MessageSizeTooLargeError):
        produce(bootstrap, name, [{"value": b"x" * 5000}])


def test_kafka_python_reads_from_the_middle_of_a_topic_and_finds_offsets_by_time(
    bootstrap: str, topic: NewTopicName
) -> None:
    name = topic()
    records = [{"value": b"%d" % n, "timestamp_ms": 1_700_000_000_000 + n * 1000} for n in range(20)]
    produce(bootstrap, name, records)
    assert [record.offset for record in consume(bootstrap, name, 3, offset=7)] == [7, 8, 9]
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        partition = TopicPartition(name, 0)
        found = consumer.offsets_for_times({partition: 1_700_000_004_500})[partition]
        assert (found.offset, found.timestamp) == (5, 1_700_000_005_000)
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 20}
    finally:
        consumer.close()


@pytest.fixture
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def test_kafka_python_admin_client_creates_and_describes_and_deletes_topics(admin: KafkaAdminClient) -> None:
    name = f"t-{secrets.token_hex(6)}"
    admin.create_topics([NewTopic(name, 3, 1)])
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(name, 3, 1)])
    assert name in admin.list_topics()
    described = admin.describe_topics([name])
    assert len(described[0]["partitions"]) == 3
    assert admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    admin.delete_topics([name])
    assert name not in admin.list_topics()
