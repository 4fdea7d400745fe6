"""OffsetDelete v0: forget a group's offsets of topics it no longer reads; GROUP_SUBSCRIBED_TO_TOPIC if it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.group_calls import finish
from penstock.groups import offset_requests
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


def handle(broker: Broker, ctx: RequestContext, request: OffsetDeleteRequest) -> Any:
    known = broker.metadata.image.topics
    unknown = [
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                OffsetDeleteResponsePartition(
                    partition_index=partition.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
        if topic.name not in known
    ]
    request.topics = [topic for topic in request.topics if topic.name in known]
    coordinator = broker.groups.coordinator(request.group_id)
    result = coordinator.run(lambda shard, turn: offset_requests.delete_offsets(shard, turn, request))
    return finish(result, lambda response: _with_unknown(response, unknown))


def _with_unknown(response: OffsetDeleteResponse, unknown: list[OffsetDeleteResponseTopic]) -> OffsetDeleteResponse:
    if not response.error_code:
        response.topics += unknown
    return response
