"""Tests the client with several brokers: leaders and coordinators move, nodes fail, metadata is outdated."""

import asyncio
from typing import Any

import pytest
from fake_broker import FAST, TOPIC_ID, FakeBroker, fake_broker, fetched, run

from penstock.client.admin import Admin
from penstock.client.client import AsyncClient
from penstock.client.cluster import Cluster
from penstock.client.consumer import Consumer, ConsumerSettings
from penstock.client.producer import Producer, ProducerSettings
from penstock.clock import ManualClock
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_00_produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.protocol.messages.api_01_fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.protocol.messages.api_03_metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.protocol.messages.api_10_find_coordinator import Coordinator, FindCoordinatorResponse
from penstock.protocol.messages.api_19_create_topics import CreatableTopicResult, CreateTopicsResponse
from penstock.protocol.messages.api_22_init_producer_id import InitProducerIdResponse
from penstock.protocol.schema import Message
from penstock.protocol.vocabulary import EARLIEST, TRANSACTION_COORDINATOR
from penstock.records.build import build_batch
from penstock.records.header import parse_header

QUICK = ProducerSettings(linger_s=0.0)


def produced(offset: int = 0, code: int = 0) -> Message:
    part = PartitionProduceResponse(index=0, base_offset=offset, error_code=code)
    return ProduceResponse(responses=[TopicProduceResponse(name="t", topic_id=TOPIC_ID, partition_responses=[part])])


def know(*brokers: FakeBroker) -> None:
    for each in brokers:
        each.nodes = list(brokers)
        each.on[22] = lambda request, version: InitProducerIdResponse(producer_id=7, producer_epoch=0)


def lead(leader: int, *brokers: FakeBroker) -> None:
    for each in brokers:
        each.leaders = {0: leader}


def sequences(broker: FakeBroker) -> list[tuple[int, int]]:
    sent = [request.topic_data[0].partition_data[0].records for request in broker.requests(ProduceRequest)]
    return [(parse_header(records).producer_id, parse_header(records).base_sequence) for records in sent]


def test_idempotent_producer_continues_its_sequence_at_the_new_leader_after_the_old_leader_dies() -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            know(one, two)
            lead(1, one, two)
            two.on[0] = lambda request, version: produced(5)
            client = AsyncClient([one.address, two.address], retry=FAST)
            async with client, Producer(client, ManualClock(), QUICK) as producer:
                one.on[0] = lambda request, version: produced(0)
                await (await producer.send("t", b"0", partition=0))

                async def die(request: Any, version: int) -> None:
                    lead(2, one, two)
                    two.nodes = [two]
                    await one.server.stop(grace_s=0)

                one.on[0] = die
                first = await producer.send("t", b"1", partition=0)
                await asyncio.sleep(0)
                second = await producer.send("t", b"2", partition=0)
                assert (await first).offset == 5
                await second
            assert sequences(two)[0] == (7, 1)
            assert [sequence for _, sequence in sequences(two)] in ([1, 2], [1])
            assert [pid for pid, _ in sequences(one)] == [7, 7]

    run(scenario())


def test_producer_resends_the_same_batch_to_the_new_leader_after_not_leader_or_follower() -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            know(one, two)
            lead(1, one, two)

            def moved(request: Any, version: int) -> Message:
                lead(2, one, two)
                return produced(code=ErrorCode.NOT_LEADER_OR_FOLLOWER)

            one.on[0] = moved
            two.on[0] = lambda request, version: produced(3)
            client = AsyncClient(one.address, retry=FAST)
            async with client, Producer(client, ManualClock(), QUICK) as producer:
                assert (await (await producer.send("t", b"x", partition=0))).offset == 3
            sent = [each.requests(ProduceRequest)[0].topic_data[0].partition_data[0].records for each in (one, two)]
            assert bytes(sent[0]) == bytes(sent[1])

    run(scenario())


def test_producer_sends_to_the_new_leader_if_the_old_leader_is_missing_from_the_metadata() -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            know(one, two)
            lead(2, one, two)
            one.on[0] = lambda request, version: produced(9)
            async with AsyncClient(one.address, retry=FAST) as client:
                await client.topic("t")
                del client.cluster.nodes[2]
                one.nodes = [one]
                lead(1, one)
                async with Producer(client, ManualClock(), QUICK) as producer:
                    assert (await (await producer.send("t", b"x", partition=0))).offset == 9

    run(scenario())


def test_bootstrap_address_that_does_not_respond_does_not_delay_the_next_address() -> None:
    async def scenario() -> None:
        async with fake_broker(1) as silent, fake_broker(2) as broker:
            gate = asyncio.Event()

            async def held(request: Any, version: int) -> None:
                await gate.wait()

            silent.on[18] = held
            loop = asyncio.get_running_loop()
            started = loop.time()
            async with AsyncClient([silent.address, broker.address], retry=FAST) as client:
                await client.metadata()
            assert loop.time() - started < 2
            gate.set()

    run(scenario())


def test_client_does_not_reconnect_at_once_to_an_unreachable_node() -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            know(one, two)
            async with AsyncClient(one.address, retry=FAST) as client:
                await client.refresh([])
                await two.server.stop(grace_s=0)
                for _ in range(3):
                    with pytest.raises(KafkaError, match="Can't connect"):
                        await client.connection(2)
                assert client._unreachable[2].failures == 1
                await client.refresh([])

    run(scenario())


def test_client_requests_metadata_from_a_node_without_pending_requests() -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            know(one, two)
            lead(1, one, two)
            gate, there = asyncio.Event(), asyncio.Event()

            async def held(request: Any, version: int) -> Message:
                there.set()
                await gate.wait()
                return produced(0)

            one.on[0] = held
            client = AsyncClient(one.address, retry=FAST)
            async with client, Producer(client, ManualClock(), QUICK) as producer:
                sent = await producer.send("t", b"x", partition=0)
                await there.wait()
                await asyncio.wait_for(client.refresh([]), 120)
                gate.set()
                await sent

    run(scenario())


def answer(leader: int, epoch: int) -> MetadataResponse:
    part = MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=epoch)
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=each, host="h", port=1) for each in (1, 2)],
        topics=[MetadataResponseTopic(name="t", topic_id=TOPIC_ID, partitions=[part])],
    )


def test_client_ignores_metadata_with_an_older_leader_epoch_except_for_a_recreated_topic() -> None:
    cluster = Cluster()
    cluster.update(answer(2, 7))
    cluster.update(answer(1, 6))
    assert cluster.leader("t", 0) == 2
    cluster.update(answer(1, 8))
    assert cluster.leader("t", 0) == 1
    recreated = answer(2, 0)
    recreated.topics[0].topic_id = bytes(16)
    cluster.update(recreated)
    assert cluster.leader("t", 0) == 2


def test_consumer_reads_other_partitions_while_a_partition_has_no_leader() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, AsyncClient(broker.address, retry=FAST) as client:
            broker.leaders = {0: 1, 1: -1}
            batch = build_batch([(0, None, b"x", ())])
            broker.on[1] = lambda request, version: fetched(batch)
            async with Consumer(client) as consumer:
                await consumer.assign({("t", 0): 0, ("t", 1): 0})
                got = await consumer.poll(5)
                assert [record.value for each in got for record in each.records()] == [b"x"]

    run(scenario())


def diverging(end_offset: int) -> Message:
    data = PartitionData(partition_index=0, diverging_epoch=EpochEndOffset(epoch=3, end_offset=end_offset))
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=[data])])


@pytest.mark.parametrize("reset", [None, EARLIEST])
def test_consumer_detects_that_the_leader_has_truncated_records_already_read(reset: int | None) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, AsyncClient(broker.address, retry=FAST) as client:
            records = [(0, None, bytes([each]), ()) for each in range(5)]
            batch = build_batch(records, leader_epoch=4)
            after = build_batch([(0, None, b"new", ())], base_offset=2, leader_epoch=6)
            answers = [fetched(batch), diverging(2), fetched(after)]
            broker.on[1] = lambda request, version: answers.pop(0) if answers else fetched()
            async with Consumer(client, ConsumerSettings(reset=reset, max_wait_ms=10)) as consumer:
                await consumer.assign({("t", 0): 0})
                assert len(await consumer.poll(5)) == 1
                if reset is None:
                    with pytest.raises(KafkaError, match="from offset 2 to 5"):
                        await consumer.poll(5)
                else:
                    [got] = await consumer.poll(5)
                    assert got.fetch_offset == 2
            asked = [request.topics[0].partitions[0] for request in broker.requests(FetchRequest)]
            assert [each.last_fetched_epoch for each in asked[:2]] == [-1, 4]

    run(scenario())


def test_producer_finds_the_new_transaction_coordinator_after_the_old_coordinator_dies() -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            know(one, two)
            at = {"node": 1}

            def find(request: Any, version: int) -> Message:
                node = one if at["node"] == 1 else two
                found = Coordinator(key="tx", node_id=node.node_id, host="127.0.0.1", port=node.port)
                return FindCoordinatorResponse(coordinators=[found])

            async def die(request: Any, version: int) -> None:
                at["node"] = 2
                two.nodes = [two]
                await one.server.stop(grace_s=0)

            one.on[10] = two.on[10] = find
            one.on[22] = die
            async with AsyncClient([one.address, two.address], retry=FAST) as client:
                settings = ProducerSettings(transactional_id="tx")
                async with Producer(client, ManualClock(), settings):
                    assert await client.coordinator("tx", TRANSACTION_COORDINATOR) == 2

    run(scenario())


def test_admin_request_is_retried_while_there_is_no_controller() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, AsyncClient(broker.address, retry=FAST) as client:
            codes = [ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER, ErrorCode.NONE]
            broker.on[19] = lambda request, version: CreateTopicsResponse(
                topics=[CreatableTopicResult(name="t", error_code=codes.pop(0))]
            )
            await Admin(client).create_topic("t")
            assert codes == []
            codes = [ErrorCode.TOPIC_ALREADY_EXISTS]
            with pytest.raises(KafkaError) as refused:
                await Admin(client).create_topic("t")
            assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
            assert len(broker.requests(MetadataRequest)) == 0

    run(scenario())
