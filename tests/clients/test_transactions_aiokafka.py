"""Tests transactions with aiokafka."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import ProducerFenced

NewTopicName = Callable[..., str]


@pytest.fixture
def name() -> str:
    return f"x-{secrets.token_hex(6)}"


async def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    await consumer.start()
    found: list[bytes] = []
    try:
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.seek_to_beginning()
        async with asyncio.timeout(120):
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    found += [record.value for record in records]
    finally:
        await consumer.stop()
    return found


def test_aiokafka_reads_committed_records_and_offsets_but_no_aborted_records(
    bootstrap: str, topic: NewTopicName, name: str
) -> None:
    async def scenario() -> None:
        written = topic()
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait(written, b"first", partition=0)
            await producer.begin_transaction()
            await producer.send_and_wait(written, b"never", partition=0)
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait(written, b"second", partition=0)
                await producer.send_offsets_to_transaction({TopicPartition(written, 0): 7}, name)
        finally:
            await producer.stop()
        assert await read(bootstrap, written, 2) == [b"first", b"second"]
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=name, enable_auto_commit=False)
        await consumer.start()
        try:
            consumer.assign([TopicPartition(written, 0)])
            assert await consumer.committed(TopicPartition(written, 0)) == 7
        finally:
            await consumer.stop()

    asyncio.run(scenario())


def test_newer_aiokafka_producer_fences_the_older_producer_with_the_same_transactional_id(
    bootstrap: str, topic: NewTopicName, name: str
) -> None:
    async def scenario() -> None:
        written = topic()
        zombie = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        successor = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await zombie.start()
        try:
            await zombie.begin_transaction()
            await zombie.send_and_wait(written, b"zombie", partition=0)
            await successor.start()
            with pytest.raises(ProducerFenced):
                await zombie.commit_transaction()
            async with successor.transaction():
                await successor.send_and_wait(written, b"successor", partition=0)
        finally:
            await zombie.stop()
            await successor.stop()
        assert await read(bootstrap, written, 1) == [b"successor"]

    asyncio.run(scenario())
