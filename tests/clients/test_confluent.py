"""Tests librdkafka, through confluent-kafka, as a stock client of a Penstock broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

NewTopicName = Callable[..., str]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
TEN_MEGABYTES = 10 * 1024 * 1024


def produce(bootstrap: str, topic: str, records: list[dict[str, Any]], **settings: Any) -> list[Message]:
    delivered: list[Message] = []
    problems: list[Any] = []

    def on_delivery(error: Any, message: Message) -> None:
        if error:
            problems.append(error)
        else:
            delivered.append(message)

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "on_delivery": on_delivery, **settings})
    for record in records:
        producer.produce(topic, **record)
    assert producer.flush(30) == 0
    assert not problems, problems
    return delivered


def consume(
    bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = OFFSET_BEGINNING, **settings: Any
) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, **settings})
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        got: list[Message] = []
        deadline = time.monotonic() + 30
        while len(got) < count and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None:
                assert message.error() is None, message.error()
                got.append(message)
        return got
    finally:
        consumer.close()


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("codec", CODECS)
def test_confluent_client_consumes_the_records_that_it_produced(
    bootstrap: str, topic: NewTopicName, codec: str, acks: str
) -> None:
    name = topic()
    values = [b"%d %s" % (index, b"x" * 200) for index in range(100)]
    produce(bootstrap, name, [{"value": value} for value in values], **{"compression.type": codec, "acks": acks})
    assert [message.value() for message in consume(bootstrap, name, 100)] == values


def test_offsets_of_records_that_confluent_produces_count_up_from_zero(bootstrap: str, topic: NewTopicName) -> None:
    delivered = produce(bootstrap, topic(), [{"value": b"v"} for _ in range(50)])
    assert sorted(message.offset() for message in delivered) == list(range(50))


def test_confluent_idempotent_producer_writes_each_record_once_and_in_order(
    bootstrap: str, topic: NewTopicName
) -> None:
    name = topic()
    values = [b"%d" % index for index in range(2000)]
    produce(bootstrap, name, [{"value": value} for value in values], **{"enable.idempotence": True, "linger.ms": 1})
    assert [message.value() for message in consume(bootstrap, name, 2000)] == values


def test_confluent_reads_null_keys_and_null_values_and_headers_as_they_were_sent(
    bootstrap: str, topic: NewTopicName
) -> None:
    name = topic()
    headers = [("a", b"1"), ("a", b"2"), ("none", None), ("empty", b"")]
    produce(
        bootstrap,
        name,
        [
            {"value": b"v", "key": None, "headers": headers},
            {"value": None, "key": b"tombstone"},
            {"value": b"", "key": b""},
        ],
    )
    first, second, third = consume(bootstrap, name, 3)
    assert (first.key(), first.value(), first.headers()) == (None, b"v", headers)
    assert (second.key(), second.value(), second.headers()) == (b"tombstone", None, None)
    assert (third.key(), third.value()) == (b"", b"")


def test_confluent_sends_and_reads_a_message_of_ten_megabytes_if_the_limit_is_raised(
    bootstrap: str, topic: NewTopicName
) -> None:
    limit = TEN_MEGABYTES + 4096
    name = topic(**{"max.message.bytes": str(limit)})
    value = bytes(range(256)) * (TEN_MEGABYTES // 256)
    produce(bootstrap, name, [{"value": value}], **{"message.max.bytes": limit})
    settings = {"fetch.message.max.bytes": limit, "receive.message.max.bytes": 2 * limit, "fetch.max.bytes": limit}
    assert consume(bootstrap, name, 1, **settings)[0].value() == value


def test_confluent_gets_an_error_for_a_message_over_the_limit(bootstrap: str, topic: NewTopicName) -> None:
    name = topic(**{"max.message.bytes": "1000"})
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(name, b"x" * 5000, on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert [error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_consumer_that_starts_at_an_offset_gets_the_record_at_that_offset_first(
    bootstrap: str, topic: NewTopicName
) -> None:
    name = topic()
    produce(bootstrap, name, [{"value": b"%d" % index} for index in range(100)], **{"linger.ms": 5})
    got = consume(bootstrap, name, 5, offset=42)
    assert [(message.offset(), message.value()) for message in got[:5]] == [(n, b"%d" % n) for n in range(42, 47)]


def test_confluent_finds_offsets_by_time(bootstrap: str, topic: NewTopicName) -> None:
    name = topic()
    for index in range(10):
        produce(bootstrap, name, [{"value": b"v", "timestamp": 1_700_000_000_000 + index * 1000}])
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        asked = [TopicPartition(name, 0, when) for when in (1_700_000_004_500,)]
        assert consumer.offsets_for_times(asked, timeout=120)[0].offset == 5
        beyond = consumer.offsets_for_times([TopicPartition(name, 0, 1_800_000_000_000)], timeout=120)
        assert beyond[0].offset in (-1, 10)
        assert consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=120) == (0, 10)
    finally:
        consumer.close()


def test_records_with_the_same_key_go_to_one_partition_and_keep_their_order(
    bootstrap: str, topic: NewTopicName
) -> None:
    name = topic(partitions=6)
    records = [{"key": b"key-%d" % (index % 10), "value": b"%d" % index} for index in range(200)]
    delivered = produce(bootstrap, name, records)
    home: dict[bytes, set[int]] = {}
    for message in delivered:
        home.setdefault(message.key() or b"", set()).add(message.partition() or 0)
    assert all(len(partitions) == 1 for partitions in home.values())
    assert len({partition for partitions in home.values() for partition in partitions}) > 1


def test_confluent_consumer_gets_an_event_at_the_end_of_a_partition(bootstrap: str, topic: NewTopicName) -> None:
    name = topic()
    produce(bootstrap, name, [{"value": b"v"}])
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
        first, second = consumer.poll(20), consumer.poll(20)
        assert first is not None
        assert first.value() == b"v"
        assert second is not None
        assert second.error() is not None
        assert second.error().code() == KafkaError._PARTITION_EOF
    finally:
        consumer.close()


# --- admin --------------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def test_confluent_admin_client_creates_and_lists_and_extends_and_deletes_topics(
    admin: AdminClient, topic: NewTopicName
) -> None:
    name = topic(partitions=2)
    assert len(admin.list_topics(name, timeout=120).topics[name].partitions) == 2
    admin.create_partitions([NewPartitions(name, 5)])[name].result(20)
    assert len(admin.list_topics(name, timeout=120).topics[name].partitions) == 5
    admin.delete_topics([name])[name].result(20)
    assert name not in admin.list_topics(timeout=120).topics


def test_creating_an_existing_topic_with_confluent_fails(admin: AdminClient, topic: NewTopicName) -> None:
    name = topic()
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(20)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS


def test_confluent_admin_client_describes_and_changes_configs(admin: AdminClient, topic: NewTopicName) -> None:
    name = topic(**{"retention.ms": "60000"})
    resource = ConfigResource(ResourceType.TOPIC, name)
    described = admin.describe_configs([resource])[resource].result(20)
    assert described["retention.ms"].value == "60000"
    assert described["cleanup.policy"].value == "delete"
    change = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    altered = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change])
    admin.incremental_alter_configs([altered])[altered].result(20)
    assert admin.describe_configs([resource])[resource].result(20)["cleanup.policy"].value == "compact"


def test_confluent_admin_client_describes_the_cluster(admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(20)
    assert len(cluster.nodes) >= 1
    assert cluster.cluster_id


def test_confluent_admin_client_lists_offsets(admin: AdminClient, bootstrap: str, topic: NewTopicName) -> None:
    name = topic()
    produce(bootstrap, name, [{"value": b"v", "timestamp": 1000 + index} for index in (0, 9, 5)])
    partition = TopicPartition(name, 0)
    for spec, expected in ((OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 3), (OffsetSpec.max_timestamp(), 1)):
        assert admin.list_offsets({partition: spec})[partition].result(20).offset == expected


def test_confluent_admin_client_deletes_records_up_to_an_offset(
    admin: AdminClient, bootstrap: str, topic: NewTopicName
) -> None:
    name = topic()
    produce(bootstrap, name, [{"value": b"%d" % index} for index in range(10)])
    partition = TopicPartition(name, 0, 4)
    assert admin.delete_records([partition])[partition].result().low_watermark == 4
    assert consume(bootstrap, name, 1)[0].offset() == 4
