"""AddPartitionsToTxn v0-5: partitions join a transaction; from brokers also the question whether they are in it.

Until v3 one transaction of a client, since v4 several, each added or (`verify_only`) looked up. All partitions of a
transaction are added or none: beside one that does not exist the others get OPERATION_NOT_ATTEMPTED. Before v2 a fenced
producer is told INVALID_PRODUCER_EPOCH, since then PRODUCER_FENCED.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.broker.group_calls import committed
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_24_add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from penstock.transactions import partitions as decide
from penstock.transactions.transaction import EPOCH_PER_TRANSACTION, TopicPartition

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

FENCED_SINCE = 2
BATCHED_SINCE = 4


async def handle(broker: Broker, ctx: RequestContext, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    if ctx.api_version >= BATCHED_SINCE:
        # all are decided before the first is waited for: they may come from a node with many producers
        answers = await asyncio.gather(
            *(_serve(broker, ctx, each, EPOCH_PER_TRANSACTION) for each in request.transactions)
        )
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(transactional_id=each.transactional_id, topic_results=results)
                for each, results in zip(request.transactions, answers)
            ]
        )
    only = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _serve(broker, ctx, only, 0))


async def _serve(
    broker: Broker, ctx: RequestContext, asked: AddPartitionsToTxnTransaction, client_version: int
) -> list[AddPartitionsToTxnTopicResult]:
    partitions = [(topic.name, index) for topic in asked.topics for index in topic.partitions]
    codes = _unknown(broker, partitions)
    if not codes:
        try:
            codes = await _decide(broker, asked, partitions, client_version)
        except KafkaError as error:
            codes = dict.fromkeys(partitions, error.code)
    if ctx.api_version < FENCED_SINCE:
        fenced, told = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
        codes = {partition: told if code is fenced else code for partition, code in codes.items()}
    return [_topic(topic, codes) for topic in asked.topics if topic.partitions or not asked.verify_only]


def _unknown(broker: Broker, partitions: list[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
    """Answers for all if one doesn't exist, none otherwise."""
    image = broker.metadata.image
    missing = {partition for partition in partitions if image.partition(*partition) is None}
    if not missing:
        return {}
    there, not_there = ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return {partition: not_there if partition in missing else there for partition in partitions}


async def _decide(
    broker: Broker, asked: AddPartitionsToTxnTransaction, partitions: list[TopicPartition], client_version: int
) -> dict[TopicPartition, ErrorCode]:
    who = (asked.transactional_id, asked.producer_id, asked.producer_epoch)
    coordinator = broker.transactions.coordinators.of(asked.transactional_id)
    if asked.verify_only:
        return await committed(coordinator.run(lambda shard, turn: decide.verify(shard, *who, partitions)))
    result = coordinator.run(lambda shard, turn: decide.add(shard, turn, *who, partitions, client_version))
    return dict.fromkeys(partitions, await committed(result))


def _topic(topic: AddPartitionsToTxnTopic, codes: dict[TopicPartition, ErrorCode]) -> AddPartitionsToTxnTopicResult:
    return AddPartitionsToTxnTopicResult(
        name=topic.name,
        results_by_partition=[
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=codes[topic.name, index])
            for index in topic.partitions
        ],
    )
