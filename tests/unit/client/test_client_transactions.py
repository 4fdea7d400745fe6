"""Tests the requests of a transactional producer to its coordinator, with transaction.version 1 and 2."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_broker import FAST, TOPIC_ID, Answer, FakeBroker, fake_broker, run

from penstock.client.client import AsyncClient
from penstock.client.producer import Producer, ProducerSettings
from penstock.clock import ManualClock
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_00_produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.protocol.messages.api_10_find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from penstock.protocol.messages.api_18_api_versions import ApiVersion, ApiVersionsResponse, FinalizedFeatureKey
from penstock.protocol.messages.api_22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.protocol.messages.api_24_add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from penstock.protocol.messages.api_25_add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.protocol.messages.api_26_end_txn import EndTxnRequest, EndTxnResponse
from penstock.protocol.messages.api_28_txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from penstock.protocol.vocabulary import TRANSACTION_COORDINATOR
from penstock.records.header import parse_header


class Coordinated:
    """Answers the transaction requests of a fake broker, with transaction.version 1 or 2."""

    def __init__(self, broker: FakeBroker, generation: int) -> None:
        self.broker = broker
        self.generation = generation
        self.epoch = -1
        self.refusals: dict[int, list[int]] = {}
        broker.on |= {
            0: self.produce,
            10: self.find_coordinator,
            18: self.api_versions,
            22: self.init_producer_id,
            24: self.add_partitions,
            25: lambda request, version: AddOffsetsToTxnResponse(error_code=self.refusal(25)),
            26: self.end,
            28: lambda request, version: TxnOffsetCommitResponse(),
        }

    def refusal(self, key: int) -> int:
        codes = self.refusals.get(key)
        return codes.pop(0) if codes else 0

    def api_versions(self, request: Any, version: int) -> Answer:
        ranges = self.broker.versions.items()
        keys = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in ranges]
        feature = FinalizedFeatureKey(name="transaction.version", max_version_level=self.generation)
        return ApiVersionsResponse(api_keys=keys, finalized_features=[feature])

    def find_coordinator(self, request: Any, version: int) -> Answer:
        found = Coordinator(key=request.coordinator_keys[0], node_id=1, error_code=self.refusal(10))
        return FindCoordinatorResponse(coordinators=[found])

    def init_producer_id(self, request: Any, version: int) -> Answer:
        self.epoch += 1
        return InitProducerIdResponse(producer_id=77, producer_epoch=self.epoch, error_code=self.refusal(22))

    def add_partitions(self, request: Any, version: int) -> Answer:
        assert version <= 3
        result = AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=self.refusal(24))
        topic = AddPartitionsToTxnTopicResult(name="t", results_by_partition=[result])
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])

    def produce(self, request: Any, version: int) -> Answer:
        assert (version >= 12) == (self.generation == 2)
        part = PartitionProduceResponse(index=0, base_offset=0, error_code=self.refusal(0))
        topic = TopicProduceResponse(name="t", topic_id=TOPIC_ID, partition_responses=[part])
        return ProduceResponse(responses=[topic])

    def end(self, request: Any, version: int) -> Answer:
        code = self.refusal(26)
        if self.generation == 1 or code:
            assert version <= 4 or code
            return EndTxnResponse(error_code=code)
        self.epoch += 1
        return EndTxnResponse(producer_id=77, producer_epoch=self.epoch)


@asynccontextmanager
async def producing(generation: int) -> AsyncIterator[tuple[Producer, Coordinated, FakeBroker]]:
    async with fake_broker() as broker:
        coordinated = Coordinated(broker, generation)
        async with AsyncClient(broker.address, retry=FAST) as client:
            settings = ProducerSettings(transactional_id="me", linger_s=0.001)
            async with Producer(client, ManualClock(), settings) as producer:
                yield producer, coordinated, broker


def batches(broker: FakeBroker) -> list[tuple[int, int]]:
    """Returns the epoch and the first sequence number of each produced batch."""
    found = []
    for request in broker.requests(ProduceRequest):
        assert request.transactional_id == "me"
        header = parse_header(request.topic_data[0].partition_data[0].records)
        assert header.is_transactional
        assert header.producer_id == 77
        found.append((header.producer_epoch, header.base_sequence))
    return found


@pytest.mark.parametrize(("generation", "expected"), [(1, [(0, 0), (0, 1)]), (2, [(0, 0), (1, 0)])])
def test_transaction_version_2_gives_each_transaction_a_new_producer_epoch_and_version_1_does_not(
    generation: int, expected: list[tuple[int, int]]
) -> None:
    async def scenario() -> None:
        async with producing(generation) as (producer, _, broker):
            for _ in range(2):
                producer.begin()
                await producer.send("t", b"x")
                await producer.commit()
            assert batches(broker) == expected
            assert [request.committed for request in broker.requests(EndTxnRequest)] == [True, True]
            assert len(broker.requests(AddPartitionsToTxnRequest)) == (2 if generation == 1 else 0)

    run(scenario())


@pytest.mark.parametrize("generation", [1, 2])
def test_producer_gets_a_new_epoch_after_an_abort(generation: int) -> None:
    async def scenario() -> None:
        async with producing(generation) as (producer, _, broker):
            producer.begin()
            await producer.send("t", b"x")
            await producer.abort()
            producer.begin()
            await producer.send("t", b"y")
            await producer.commit()
            assert batches(broker) == [(0, 0), (1, 0)]
            assert len(broker.requests(InitProducerIdRequest)) == (2 if generation == 1 else 1)

    run(scenario())


def test_producer_sends_no_end_txn_request_for_a_transaction_without_records() -> None:
    async def scenario() -> None:
        async with producing(2) as (producer, _, broker):
            producer.begin()
            await producer.commit()
            producer.begin()
            await producer.abort()
            assert not broker.requests(EndTxnRequest)

    run(scenario())


def test_transaction_with_a_refused_record_can_be_aborted_but_not_committed() -> None:
    async def scenario() -> None:
        async with producing(2) as (producer, coordinated, broker):
            coordinated.refusals[0] = [ErrorCode.MESSAGE_TOO_LARGE]
            producer.begin()
            await producer.send("t", b"x")
            with pytest.raises(KafkaError, match="can't be committed, only aborted") as raised:
                await producer.commit()
            assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
            await producer.abort()
            producer.begin()
            await producer.send("t", b"y")
            await producer.commit()
            assert [request.committed for request in broker.requests(EndTxnRequest)] == [False, True]

    run(scenario())


def test_offset_commit_of_a_group_is_part_of_the_transaction() -> None:
    async def scenario() -> None:
        for generation in (1, 2):
            async with producing(generation) as (producer, _, broker):
                producer.begin()
                await producer.send_offsets("g", {("t", 0): 5})
                await producer.commit()
                assert len(broker.requests(AddOffsetsToTxnRequest)) == (1 if generation == 1 else 0)
                (commit,) = broker.requests(TxnOffsetCommitRequest)
                assert commit.topics[0].partitions[0].committed_offset == 5
                assert len(broker.requests(EndTxnRequest)) == 1

    run(scenario())


def test_commit_is_retried_after_not_coordinator_and_concurrent_transactions() -> None:
    async def scenario() -> None:
        async with producing(2) as (producer, coordinated, broker):
            looked = len(broker.requests(FindCoordinatorRequest))
            coordinated.refusals[26] = [ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS]
            producer.begin()
            await producer.send("t", b"x")
            await producer.commit()
            assert len(broker.requests(EndTxnRequest)) == 3
            assert len(broker.requests(FindCoordinatorRequest)) == looked + 1

    run(scenario())


def test_fenced_producer_can_neither_abort_nor_send() -> None:
    async def scenario() -> None:
        async with producing(2) as (producer, coordinated, _):
            coordinated.refusals[26] = [ErrorCode.PRODUCER_FENCED]
            producer.begin()
            await producer.send("t", b"x")
            with pytest.raises(KafkaError, match="The commit of 'me' was refused"):
                await producer.commit()
            for again in (producer.abort(), producer.send("t", b"y")):
                with pytest.raises(KafkaError, match="another producer uses its transactional id"):
                    await again

    run(scenario())


def test_producer_refuses_calls_that_do_not_fit_its_transaction_state() -> None:
    async def scenario() -> None:
        async with producing(2) as (producer, _, _):
            with pytest.raises(KafkaError, match="without an open transaction"):
                await producer.send("t", b"x")
            producer.begin()
            with pytest.raises(KafkaError, match="is in a transaction"):
                producer.begin()
        async with fake_broker() as broker, AsyncClient(broker.address, retry=FAST) as client:
            with pytest.raises(KafkaError, match="The producer has no transactional id"):
                Producer(client, ManualClock()).begin()

    run(scenario())


def test_client_caches_the_coordinator_that_an_old_broker_returned() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.versions[10] = (0, 3)
            broker.on[10] = lambda request, version: FindCoordinatorResponse(node_id=1)
            async with AsyncClient(broker.address, retry=FAST) as client:
                assert await client.coordinator("me", TRANSACTION_COORDINATOR) == 1
                assert await client.coordinator("me", TRANSACTION_COORDINATOR) == 1
                (request,) = broker.requests(FindCoordinatorRequest)
                assert (request.key, request.key_type) == ("me", 1)

    run(scenario())
