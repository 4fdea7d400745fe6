"""Tests aiokafka as a stock client of a Penstock broker."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import MessageSizeTooLargeError

NewTopicName = Callable[..., str]
TEN_MEGABYTES = 10 * 1024 * 1024


async def produce(bootstrap: str, topic: str, records: list[dict[str, Any]], **settings: Any) -> list[Any]:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, **settings) as producer:
        futures = [await producer.send(topic, **record) for record in records]
        return [await future for future in futures]


async def consume(bootstrap: str, topic: str, count: int, offset: int | None = None, **settings: Any) -> list[Any]:
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, **settings) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        if offset is None:
            await consumer.seek_to_beginning(partition)
        else:
            consumer.seek(partition, offset)
        async with asyncio.timeout(120):
            return [await consumer.getone() for _ in range(count)]


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_aiokafka_consumes_the_records_that_it_produced(
    bootstrap: str, topic: NewTopicName, codec: str | None, acks: int | str
) -> None:
    async def scenario() -> None:
        name = topic()
        values = [b"%d %s" % (index, b"x" * 200) for index in range(100)]
        await produce(bootstrap, name, [{"value": v} for v in values], compression_type=codec, acks=acks)
        assert [record.value for record in await consume(bootstrap, name, 100)] == values

    asyncio.run(scenario())


def test_aiokafka_reads_null_keys_and_null_values_and_headers_as_they_were_sent(
    bootstrap: str, topic: NewTopicName
) -> None:
    async def scenario() -> None:
        name = topic()
        headers = [("a", b"1"), ("a", b"2")]
        await produce(bootstrap, name, [{"value": b"v", "headers": headers}, {"value": None, "key": b"tombstone"}])
        first, second = await consume(bootstrap, name, 2)
        assert (first.key, first.value, list(first.headers)) == (None, b"v", headers)
        assert (second.key, second.value) == (b"tombstone", None)

    asyncio.run(scenario())


def test_aiokafkas_idempotent_producer_writes_each_record_once_and_in_order(
    bootstrap: str, topic: NewTopicName
) -> None:
    async def scenario() -> None:
        name = topic()
        values = [b"%d" % index for index in range(500)]
        await produce(bootstrap, name, [{"value": value} for value in values], enable_idempotence=True)
        assert [record.value for record in await consume(bootstrap, name, 500)] == values

    asyncio.run(scenario())


def test_aiokafka_sends_and_reads_a_message_of_ten_megabytes_if_the_limit_is_raised(
    bootstrap: str, topic: NewTopicName
) -> None:
    async def scenario() -> None:
        limit = TEN_MEGABYTES + 4096
        name = topic(**{"max.message.bytes": str(limit)})
        value = secrets.token_bytes(TEN_MEGABYTES)
        await produce(bootstrap, name, [{"value": value}], max_request_size=limit)
        got = await consume(bootstrap, name, 1, max_partition_fetch_bytes=limit)
        assert got[0].value == value

    asyncio.run(scenario())


def test_aiokafka_gets_an_error_for_a_message_over_the_limit(bootstrap: str, topic: NewTopicName) -> None:
    async def scenario() -> None:
        name = topic(**{"max.message.bytes": "1000"})
        with pytest.raises(MessageSizeTooLargeError):
            await produce(bootstrap, name, [{"value": b"x" * 5000}])

    asyncio.run(scenario())


def test_aiokafka_reads_from_the_middle_of_a_topic_and_finds_offsets_by_time(
    bootstrap: str, topic: NewTopicName
) -> None:
    async def scenario() -> None:
        name = topic()
        records = [{"value": b"%d" % n, "timestamp_ms": 1_700_000_000_000 + n * 1000} for n in range(20)]
        await produce(bootstrap, name, records)
        assert [record.offset for record in await consume(bootstrap, name, 3, offset=7)] == [7, 8, 9]
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            partition = TopicPartition(name, 0)
            found = (await consumer.offsets_for_times({partition: 1_700_000_004_500}))[partition]
            assert (found.offset, found.timestamp) == (5, 1_700_000_005_000)
            assert await consumer.end_offsets([partition]) == {partition: 20}

    asyncio.run(scenario())


def test_aiokafka_admin_client_creates_and_lists_and_deletes_topics(bootstrap: str) -> None:
    async def scenario() -> None:
        name = f"t-{secrets.token_hex(6)}"
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(name, 3, 1)])
            assert name in await admin.list_topics()
            described = await admin.describe_topics([name])
            assert len(described[0]["partitions"]) == 3
            await admin.delete_topics([name])
            assert name not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(scenario())
