"""DeleteRecords v0-2: advances the log start offset of a partition; -1 means to the high watermark.

The response waits until the logs of all live replicas start at the new offset. If this takes longer than the request's
timeout, the partition gets REQUEST_TIMED_OUT.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.net.later import Later
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_21_delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from penstock.protocol.vocabulary import INTERNAL_TOPICS

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.replicas.partition import Partition
    from penstock.broker.requests.context import RequestContext

TO_HIGH_WATERMARK = -1
INVALID_LOW_WATERMARK = -1


Waiting = list[tuple[DeleteRecordsPartitionResult, "Partition", "asyncio.Future[None]"]]


def handle(
    broker: Broker, ctx: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse | Later[DeleteRecordsResponse]:
    response = DeleteRecordsResponse()
    waiting: Waiting = []
    for topic in request.topics:
        result = DeleteRecordsTopicResult(name=topic.name)
        for index, offset in {spec.partition_index: spec.offset for spec in topic.partitions}.items():
            answer = DeleteRecordsPartitionResult(partition_index=index)
            try:
                _delete(broker, topic.name, answer, offset, waiting)
            except KafkaError as error:
                answer.low_watermark, answer.error_code = INVALID_LOW_WATERMARK, error.code
            result.partitions.append(answer)
        if result.partitions:
            response.topics.append(result)
    return Later(_when_moved(response, waiting, request.timeout_ms)) if waiting else response


def _delete(broker: Broker, topic: str, answer: DeleteRecordsPartitionResult, offset: int, waiting: Waiting) -> None:
    partition = broker.partitions.get(topic, answer.partition_index)
    log = partition.leader_log()
    if topic in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic {topic} is internal: only the broker deletes its records."
        )
    if "delete" not in log.config.cleanup_policy:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Records of topic {topic} can't be deleted: its cleanup.policy is compact. Add delete to the policy.",
        )
    wanted = log.high_watermark if offset == TO_HIGH_WATERMARK else offset
    if wanted < 0 or wanted > log.high_watermark:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"The offset is not in the log: give an offset from 0 to the high watermark, {log.high_watermark}.",
        )
    moved = partition.delete_before(wanted)
    answer.low_watermark = partition.low_watermark()
    if moved is not None:
        waiting.append((answer, partition, moved))


async def _when_moved(response: DeleteRecordsResponse, waiting: Waiting, timeout_ms: int) -> DeleteRecordsResponse:
    await asyncio.wait([moved for _, _, moved in waiting], timeout=max(0, timeout_ms) / 1000)
    for answer, partition, moved in waiting:
        if not moved.done():
            moved.cancel()
            answer.low_watermark, answer.error_code = INVALID_LOW_WATERMARK, ErrorCode.REQUEST_TIMED_OUT
        elif isinstance(error := moved.exception(), KafkaError):
            answer.low_watermark, answer.error_code = INVALID_LOW_WATERMARK, error.code
        else:
            answer.low_watermark = partition.low_watermark()
    return response
