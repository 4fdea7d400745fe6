"""TxnOffsetCommit v0-5: commits offsets of a group in a transaction; they take effect when the transaction commits.

First the transaction coordinator verifies that the group's partition of `__consumer_offsets` is in the transaction;
since v5 it adds the partition (KIP-890). Since v3 the consumer's member id and generation are checked, so that a member
that lost its partitions cannot commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import committed
from penstock.broker.handlers.transaction_verification import UNREACHABLE, ask, start
from penstock.groups.txn_offsets import commit_in_transaction
from penstock.log.producers import Verification
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from penstock.protocol.vocabulary import NO_SEQUENCE

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.coordinators.groups import GroupCoordinator
    from penstock.broker.requests.context import RequestContext

LOADING_SINCE = 2
ABORTABLE_SINCE = 4
IMPLICIT_SINCE = 5

Codes = dict[tuple[str, int], ErrorCode]


async def handle(broker: Broker, ctx: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    topics = request.topics
    codes = _remove_unknown(broker, request)
    if request.topics:
        try:
            codes |= await _commit(broker, ctx.api_version, request)
        except KafkaError as error:
            code = _error_for_client(error.code, ctx.api_version)
            for topic in request.topics:
                codes |= {(topic.name, each.partition_index): code for each in topic.partitions}
    return TxnOffsetCommitResponse(topics=[_topic(topic, codes) for topic in topics])


def _remove_unknown(broker: Broker, request: TxnOffsetCommitRequest) -> Codes:
    """Removes unknown partitions from the request; returns their error codes."""
    image = broker.metadata.image
    codes: Codes = {}
    kept = []
    for topic in request.topics:
        there = [part for part in topic.partitions if image.partition(topic.name, part.partition_index) is not None]
        for part in topic.partitions:
            codes[topic.name, part.partition_index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if there:
            kept.append(TxnOffsetCommitRequestTopic(name=topic.name, partitions=there))
    request.topics = kept
    return codes


async def _commit(broker: Broker, api_version: int, request: TxnOffsetCommitRequest) -> Codes:
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id is empty: set a group id.")
    coordinator = broker.groups.coordinator(request.group_id)
    coordinator.active()
    verification = await _verify(broker, api_version, request, coordinator)
    coordinator = broker.groups.coordinator(request.group_id)  # the coordinator may have moved during the wait
    producers = coordinator.partition.leader_log().producers
    producers.check_open(request.producer_id, request.producer_epoch, verification)
    return await committed(coordinator.run(lambda shard, turn: commit_in_transaction(shard, turn, request)))


async def _verify(
    broker: Broker, api_version: int, request: TxnOffsetCommitRequest, coordinator: GroupCoordinator
) -> Verification | None:
    partition, implicit = coordinator.partition, api_version >= IMPLICIT_SINCE
    pending = start(partition, request.producer_id, request.producer_epoch, NO_SEQUENCE, implicit=implicit)
    if pending is None:
        return None
    verdict = (await ask(broker, request.transactional_id, [pending]))[partition]
    if isinstance(verdict, ErrorCode):
        if verdict in UNREACHABLE:
            # This group coordinator is the right one, so the client should retry here and not look for another.
            verdict = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        raise KafkaError(verdict, "The transaction's coordinator refused the commit: abort the transaction.")
    return verdict


def _error_for_client(code: ErrorCode, api_version: int) -> ErrorCode:
    """Returns `code`, or a similar error code if clients of this request version don't know `code`."""
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if api_version < ABORTABLE_SINCE:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if api_version < LOADING_SINCE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case _:
            return code


def _topic(topic: TxnOffsetCommitRequestTopic, codes: Codes) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        partitions=[
            TxnOffsetCommitResponsePartition(
                partition_index=part.partition_index, error_code=codes[topic.name, part.partition_index]
            )
            for part in topic.partitions
        ],
    )
