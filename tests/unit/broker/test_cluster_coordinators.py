"""Tests coordinators on three real nodes: acknowledged changes survive the death of the coordinator's node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from penstock.client.client import AsyncClient
from penstock.client.connection import ConnectionSettings
from penstock.client.consumer import Consumer, ConsumerSettings
from penstock.client.producer import Producer, ProducerSettings
from penstock.node.clock import SystemClock
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_09_offset_fetch import OffsetFetchRequest
from penstock.protocol.messages.api_65_describe_transactions import DescribeTransactionsRequest
from penstock.protocol.vocabulary import GROUP_COORDINATOR, READ_COMMITTED, TRANSACTION_COORDINATOR
from penstock.testing.cluster import Cluster

TOPIC = "t"
PARTITIONS = 6
SETTINGS = ConnectionSettings(connect_timeout_s=5, request_timeout_s=10)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, topics={TOPIC: PARTITIONS}) as running:
        yield running


def client_of(cluster: Cluster) -> AsyncClient:
    return AsyncClient(cluster.bootstrap, settings=SETTINGS)


def run(scenario: Callable[[], object]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()  # type: ignore[misc]

    asyncio.run(bounded())


async def commit(client: AsyncClient, group: str, offset: int) -> None:
    async def attempt() -> None:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
        request = OffsetCommitRequest(group_id=group, topics=[topic])
        try:
            connection = await client.connection(await client.coordinator(group, GROUP_COORDINATOR))
            answer = await connection.request(request, version=8)
            code = ErrorCode(answer.topics[0].partitions[0].error_code)
            if code:
                raise KafkaError(code, "refused")
        except KafkaError:
            client.forget_coordinator(group)
            raise

    await client.retrying(attempt)


async def committed(client: AsyncClient, group: str) -> int:
    async def attempt() -> int:
        try:
            connection = await client.connection(await client.coordinator(group, GROUP_COORDINATOR))
            answer = await connection.request(OffsetFetchRequest(group_id=group, topics=None), version=7)
            if answer.error_code:
                raise KafkaError(ErrorCode(answer.error_code), "refused")
            return int(answer.topics[0].partitions[0].committed_offset)
        except KafkaError:
            client.forget_coordinator(group)
            raise

    return await client.retrying(attempt)


async def state_of(client: AsyncClient, transactional_id: str) -> str:
    async def attempt() -> str:
        try:
            node = await client.coordinator(transactional_id, TRANSACTION_COORDINATOR)
            request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
            [state] = (await client.request(request, node=node)).transaction_states
            if state.error_code:
                raise KafkaError(ErrorCode(state.error_code), "refused")
            return str(state.transaction_state)
        except KafkaError:
            client.forget_coordinator(transactional_id, TRANSACTION_COORDINATOR)
            raise

    return await client.retrying(attempt)


async def read_committed(client: AsyncClient, count: int) -> list[bytes | None]:
    """Reads committed records from all partitions until it has `count` records and no more records arrive."""
    values: list[bytes | None] = []
    settings = ConsumerSettings(isolation_level=READ_COMMITTED, max_wait_ms=50)
    async with Consumer(client, settings) as consumer:
        await consumer.assign({(TOPIC, index): 0 for index in range(PARTITIONS)})
        while len(values) < count:
            values += [record.value for each in await consumer.poll(5) for record in each.records()]
        values += [record.value for each in await consumer.poll(0.2) for record in each.records()]
    return values


def test_a_group_keeps_its_offsets_when_its_coordinators_node_dies(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with client_of(cluster) as client:
            for offset in range(1, 11):
                await commit(client, "g", offset)
            node = await client.coordinator("g", GROUP_COORDINATOR)
            await asyncio.to_thread(cluster.kill, node)
            assert await committed(client, "g") == 10
            assert await client.coordinator("g", GROUP_COORDINATOR) != node
            await commit(client, "g", 11)
            assert await committed(client, "g") == 11
            await asyncio.to_thread(cluster.start, node)
            assert await committed(client, "g") == 11

    run(scenario)


def test_transactions_over_partitions_of_all_nodes_survive_the_death_of_their_coordinator(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with client_of(cluster) as client:
            settings = ProducerSettings(transactional_id="tx", linger_s=0)
            async with Producer(client, SystemClock(), settings) as producer:
                killed = -1
                for round_ in range(6):
                    producer.begin()
                    for index in range(PARTITIONS):
                        await producer.send(TOPIC, b"%d-%d" % (round_, index), partition=index)
                    await producer.flush()
                    if round_ == 2:
                        killed = await client.coordinator("tx", TRANSACTION_COORDINATOR)
                        await asyncio.to_thread(cluster.kill, killed)
                    if round_ == 4:
                        await producer.abort()
                    else:
                        await producer.commit()
                assert await client.coordinator("tx", TRANSACTION_COORDINATOR) != killed
            rounds = (0, 1, 2, 3, 5)
            expected = sorted(b"%d-%d" % (each, index) for each in rounds for index in range(PARTITIONS))
            assert sorted(value or b"" for value in await read_committed(client, len(expected))) == expected

    run(scenario)


def test_the_next_coordinator_completes_transactions_that_a_dead_coordinator_decided(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with client_of(cluster) as client:
            settings = ProducerSettings(transactional_id="tx", linger_s=0)
            async with Producer(client, SystemClock(), settings) as producer:
                producer.begin()
                for index in range(PARTITIONS):
                    await producer.send(TOPIC, b"%d" % index, partition=index)
                await producer.flush()
                first = await client.coordinator("tx", TRANSACTION_COORDINATOR)

                async def send_none() -> None:
                    transactions = cluster.node(first).broker.transactions
                    transactions.sender.send = lambda *_: None  # type: ignore[method-assign]

                await asyncio.to_thread(lambda: cluster.run(first, send_none()))
                await producer.commit()
                assert await state_of(client, "tx") == "PrepareCommit"
                await asyncio.to_thread(cluster.kill, first)
                while await state_of(client, "tx") != "CompleteCommit":
                    await client.pause(1)
                assert await client.coordinator("tx", TRANSACTION_COORDINATOR) != first
            expected = [b"%d" % index for index in range(PARTITIONS)]
            assert sorted(value or b"" for value in await read_committed(client, PARTITIONS)) == expected

    run(scenario)


def test_an_idempotent_producer_writes_each_record_once_and_in_order_while_leaders_die(cluster: Cluster) -> None:
    async def scenario() -> None:
        total = 300
        async with client_of(cluster) as client:
            async with Producer(client, SystemClock(), ProducerSettings(linger_s=0, batch_bytes=200)) as producer:
                for number in range(total):
                    await producer.send(TOPIC, b"%06d" % number, partition=0)
                    if number % 10 == 0:
                        await asyncio.sleep(0.002)
                    if number in (100, 200):
                        node = await client.leader(TOPIC, 0)
                        await asyncio.to_thread(cluster.kill, node)
                        await producer.flush()
                        await asyncio.to_thread(cluster.start, node)
                        await asyncio.to_thread(cluster.wait_in_sync)
            values = await read_committed(client, total)
            assert values == [b"%06d" % number for number in range(total)]

    run(scenario)
