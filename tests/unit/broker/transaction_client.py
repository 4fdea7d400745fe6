"""Provides a producer that sends any request in any version, even at a wrong moment."""

from __future__ import annotations

import secrets
from typing import Any

from penstock.client.consumer import ConsumerSettings
from penstock.client.sync import Client
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_24_add_partitions_to_txn as api_24
from penstock.protocol.messages import api_28_txn_offset_commit as api_28
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.messages.api_09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from penstock.protocol.messages.api_10_find_coordinator import FindCoordinatorRequest
from penstock.protocol.messages.api_22_init_producer_id import InitProducerIdRequest
from penstock.protocol.messages.api_25_add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.protocol.messages.api_26_end_txn import EndTxnRequest
from penstock.protocol.messages.api_65_describe_transactions import DescribeTransactionsRequest, TransactionState
from penstock.protocol.schema import Message
from penstock.protocol.vocabulary import EARLIEST, LATEST, READ_COMMITTED
from penstock.records.build import build_batch
from penstock.testing import Broker

WALL_MS = 1_700_000_000_000
TOPIC_NAMES_UNTIL = 12  # Produce
TWO_PHASE_SINCE = 6  # InitProducerId


class RawProducer:
    """Sends requests of a transactional producer.

    The next request contains `producer_id`, `epoch` and `sequence`. Tests set them back to simulate late requests.
    """

    def __init__(self, broker: Broker, transactional_id: str | None = None) -> None:
        self._client = Client(broker.bootstrap)
        self.id = transactional_id or f"tx-{secrets.token_hex(4)}"
        self.producer_id = -1
        self.epoch = -1
        self.ongoing = (-1, -1)
        self.sequences: dict[str, int] = {}
        self.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[self.id]), 4)

    def close(self) -> None:
        self._client.close()

    def ask(self, request: Message, version: int) -> Any:
        async def ask() -> Any:
            connection = await self._client.asynchronous.connection()
            return await connection.request(request, version=version)

        return self._client.run(ask())

    # --- requests

    def init(
        self,
        version: int = 5,
        *,
        timeout_ms: int = 60_000,
        go_on: bool = False,
        two_phase: bool = False,
        keep: bool = False,
    ) -> ErrorCode:
        request = InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=timeout_ms)
        if version >= TWO_PHASE_SINCE:
            request.enable_2pc, request.keep_prepared_txn = two_phase, keep
        if go_on:
            request.producer_id, request.producer_epoch = self.producer_id, self.epoch
        answer = self.ask(request, version)
        if not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        if version >= TWO_PHASE_SINCE:
            self.ongoing = (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)
        return ErrorCode(answer.error_code)

    def add(self, *topics: str, version: int = 3) -> list[ErrorCode]:
        asked = [api_24.AddPartitionsToTxnTopic(name=topic, partitions=[0]) for topic in topics]
        if version < 4:
            answer = self.ask(
                api_24.AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=self.id,
                    v3_and_below_producer_id=self.producer_id,
                    v3_and_below_producer_epoch=self.epoch,
                    v3_and_below_topics=asked,
                ),
                version,
            )
            found = answer.results_by_topic_v3_and_below
        else:
            found = self._add_batched(asked, version, verify_only=False)
        return [ErrorCode(topic.results_by_partition[0].partition_error_code) for topic in found]

    def verify(self, topic: str, version: int = 5) -> ErrorCode:
        asked = [api_24.AddPartitionsToTxnTopic(name=topic, partitions=[0])]
        [found] = self._add_batched(asked, version, verify_only=True)
        return ErrorCode(found.results_by_partition[0].partition_error_code)

    def _add_batched(self, asked: list[api_24.AddPartitionsToTxnTopic], version: int, *, verify_only: bool) -> Any:
        transaction = api_24.AddPartitionsToTxnTransaction(
            transactional_id=self.id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            verify_only=verify_only,
            topics=asked,
        )
        answer = self.ask(api_24.AddPartitionsToTxnRequest(transactions=[transaction]), version)
        return answer.results_by_transaction[0].topic_results

    def add_offsets(self, group: str, version: int = 3) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.id, producer_id=self.producer_id, producer_epoch=self.epoch, group_id=group
        )
        return ErrorCode(self.ask(request, version).error_code)

    def end(self, commit: bool, version: int = 5) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.id, producer_id=self.producer_id, producer_epoch=self.epoch, committed=commit
        )
        answer = self.ask(request, version)
        if not answer.error_code and version >= 5:
            if (answer.producer_id, answer.producer_epoch) != (self.producer_id, self.epoch):
                self.sequences.clear()
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)

    def produce(self, topic: str, value: bytes = b"v", version: int = 12, *, name: str | None = "") -> ErrorCode:
        batch = build_batch(
            [(WALL_MS, None, value, ())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences.get(topic, 0),
            transactional=True,
        )
        data = PartitionProduceData(index=0, records=memoryview(batch))
        request = ProduceRequest(
            transactional_id=self.id if name == "" else name,
            acks=-1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )
        [answer] = self.ask(request, version).responses[0].partition_responses
        if not answer.error_code:
            self.sequences[topic] = self.sequences.get(topic, 0) + 1
        return ErrorCode(answer.error_code)

    def commit_offset(
        self, group: str, topic: str, offset: int, version: int = 5, *, member_id: str = "", generation: int = -1
    ) -> ErrorCode:
        part = api_28.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = api_28.TxnOffsetCommitRequest(
            transactional_id=self.id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[api_28.TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
        )
        if version >= 3:
            request.member_id, request.generation_id = member_id, generation
        [answer] = self.ask(request, version).topics[0].partitions
        return ErrorCode(answer.error_code)

    # --- queries

    def describe(self) -> TransactionState:
        [state] = self.ask(DescribeTransactionsRequest(transactional_ids=[self.id]), 0).transaction_states
        assert isinstance(state, TransactionState)
        return state

    def committed_offset(self, group: str, topic: str, *, stable: bool = True) -> int | ErrorCode:
        self.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4)
        asked = OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=[asked])], require_stable=stable
        )
        [answer] = self.ask(request, 8).groups[0].topics[0].partitions
        if answer.error_code:
            return ErrorCode(answer.error_code)
        assert isinstance(answer.committed_offset, int)
        return answer.committed_offset


def committed_values(broker: Broker, topic: str) -> list[bytes | None]:
    """Returns the committed records of partition 0. Call it only while no transaction is open there."""
    key = (topic, 0)
    found: list[bytes | None] = []
    with (
        Client(broker.bootstrap) as client,
        client.consumer(ConsumerSettings(isolation_level=READ_COMMITTED)) as consumer,
    ):
        end = client.list_offsets({key: LATEST})[key].offset
        consumer.assign({key: EARLIEST})
        while consumer.position(key) < end:
            for fetched in consumer.poll(5.0):
                found += [record.value for record in fetched.records()]
    return found
