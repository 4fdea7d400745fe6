"""Tests consumer groups with stock aiokafka."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

NewTopicName = Callable[..., str]


@pytest.fixture
def group() -> str:
    return f"g-{secrets.token_hex(6)}"


def member(bootstrap: str, topic: str, group: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
        session_timeout_ms=6000,
    )


async def spread(consumers: list[AIOKafkaConsumer], shares: list[int]) -> None:
    async with asyncio.timeout(120):
        while sorted(len(consumer.assignment()) for consumer in consumers) != shares:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def read(consumers: list[AIOKafkaConsumer], count: int) -> list[bytes]:
    values: list[bytes] = []
    async with asyncio.timeout(120):
        while len(values) < count:
            for consumer in consumers:
                for records in (await consumer.getmany(timeout_ms=50)).values():
                    values += [record.value for record in records]
    return values


def test_aiokafka_group_reads_each_record_once_while_members_join_and_leave(
    bootstrap: str, topic: NewTopicName, group: str
) -> None:
    async def scenario() -> None:
        name = topic(partitions=4)
        consumers = [member(bootstrap, name, group) for _ in range(3)]
        try:
            for consumer in consumers:
                await consumer.start()
            await spread(consumers, [1, 1, 2])
            async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
                for index in range(100):
                    await producer.send(name, b"%d" % index, partition=index % 4)
            values = await read(consumers, 100)
            assert sorted(values, key=int) == [b"%d" % index for index in range(100)]
            for consumer in consumers:
                await consumer.commit()
            await consumers.pop().stop()
            await spread(consumers, [2, 2])
            committed = [await consumers[0].committed(TopicPartition(name, index)) for index in range(4)]
            assert committed == [25, 25, 25, 25]
        finally:
            for consumer in consumers:
                await consumer.stop()

    asyncio.run(scenario())
