"""AddPartitionsToTxn v0-5: adds partitions to a transaction, or verifies that they belong to it.

Before v4 a client sends one transaction. Since v4 a broker sends the transactions of several clients; with
`verify_only` the partitions are only verified. Either all partitions of a transaction are added or none: if one
partition does not exist, the other partitions get OPERATION_NOT_ATTEMPTED. A fenced producer gets
INVALID_PRODUCER_EPOCH before v2, PRODUCER_FENCED since v2. A request with more than 10,000 partitions for one
transaction, or with more than 10,000 transactions, is refused with POLICY_VIOLATION.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import committed
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
from penstock.protocol.vocabulary import EPOCH_PER_TRANSACTION, TopicPartition
from penstock.transactions import partitions as decide

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

FENCED_SINCE = 2
BATCHED_SINCE = 4
#: Maximum number of partitions of one transaction in a request: to add so many takes about 15 ms.
MAX_PARTITIONS = 10_000
#: Number of partitions, of one or more transactions, that are added in one pass of the loop. Each transaction
#: itself counts as `TRANSACTION_PARTITIONS` more.
PASS_PARTITIONS, TRANSACTION_PARTITIONS = 2_000, 10


async def handle(broker: Broker, ctx: RequestContext, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    if ctx.api_version >= BATCHED_SINCE:
        answers = await _serve_all(broker, ctx, request.transactions)
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
    _check_size(only)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _serve(broker, ctx, only, 0))


async def _serve_all(
    broker: Broker, ctx: RequestContext, transactions: list[AddPartitionsToTxnTransaction]
) -> list[list[AddPartitionsToTxnTopicResult]]:
    """Serves all transactions of the request at the same time, and returns their results in the same order.

    The tasks are started in several passes of the event loop, because there may be very many transactions.
    """
    for asked in transactions:
        _check_size(asked)
    serving: list[asyncio.Task[list[AddPartitionsToTxnTopicResult]]] = []
    partitions = 0
    for asked in transactions:
        partitions += _size(asked)
        if partitions > PASS_PARTITIONS and serving:
            await asyncio.sleep(0)  # lets the started tasks run
            partitions = _size(asked)
        serving.append(asyncio.ensure_future(_serve(broker, ctx, asked, EPOCH_PER_TRANSACTION)))
    return await asyncio.gather(*serving)


def _size(asked: AddPartitionsToTxnTransaction) -> int:
    return sum([len(topic.partitions) for topic in asked.topics], TRANSACTION_PARTITIONS)


def _check_size(asked: AddPartitionsToTxnTransaction) -> None:
    """Raises KafkaError if there are too many partitions to add in one pass of the event loop."""
    if _size(asked) > MAX_PARTITIONS + TRANSACTION_PARTITIONS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"The request adds more than {MAX_PARTITIONS} partitions to a transaction: split it into several requests.",
        )


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
    """Returns an error code for every partition if one of them does not exist; an empty dict if all exist."""
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
