"""DeleteRecords v0-2: moves the log start offset of a partition forward; -1 means to the high watermark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.names import INTERNAL_TOPICS
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_21_delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

TO_HIGH_WATERMARK = -1
INVALID_LOW_WATERMARK = -1


def handle(broker: Broker, ctx: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    for topic in request.topics:
        result = DeleteRecordsTopicResult(name=topic.name)
        for index, offset in {spec.partition_index: spec.offset for spec in topic.partitions}.items():
            answer = DeleteRecordsPartitionResult(partition_index=index)
            try:
                answer.low_watermark = _delete(broker, topic.name, index, offset)
            except KafkaError as error:
                answer.low_watermark, answer.error_code = INVALID_LOW_WATERMARK, error.code
            result.partitions.append(answer)
        if result.partitions:
            response.topics.append(result)
    return response


def _delete(broker: Broker, topic: str, partition: int, offset: int) -> int:
    log = broker.partitions.get(topic, partition).leader_log()
    if topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} belongs to the broker: it deletes for itself.")
    if "delete" not in log.config.cleanup_policy:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"Topic {topic} is not deleted by offset: its cleanup.policy is compact."
        )
    wanted = log.high_watermark if offset == TO_HIGH_WATERMARK else offset
    if wanted < 0 or wanted > log.high_watermark:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"The high watermark is {log.high_watermark}.")
    log.advance_log_start_offset(wanted)
    return log.log_start_offset
