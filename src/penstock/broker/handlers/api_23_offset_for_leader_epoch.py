"""OffsetForLeaderEpoch v2-4: returns the end offset of a leader epoch.

Clients and followers use it to find where logs diverge (KIP-101, KIP-279).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


def handle(broker: Broker, ctx: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_answer(broker, topic.topic, spec) for spec in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _answer(broker: Broker, topic: str, spec: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = broker.partitions.get(topic, spec.partition)
        partition.leader_log(spec.current_leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(error_code=error.code, partition=spec.partition, leader_epoch=-1, end_offset=-1)
    epoch, end_offset = partition.epoch_end(spec.leader_epoch)
    return EpochEndOffset(partition=spec.partition, leader_epoch=epoch, end_offset=end_offset)
