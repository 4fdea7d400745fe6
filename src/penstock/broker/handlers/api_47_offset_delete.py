"""OffsetDelete v0: deletes a group's offsets. Topics to which the group is subscribed get GROUP_SUBSCRIBED_TO_TOPIC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.group_calls import finish
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
    from penstock.broker.requests.context import RequestContext
    from penstock.metadata.image import MetadataImage
    from penstock.net.later import Later


def handle(
    broker: Broker, ctx: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Later[OffsetDeleteResponse]:
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    unknown = _remove_unknown(broker.metadata.image, request)
    coordinator = broker.groups.coordinator(request.group_id)
    result = coordinator.run(lambda shard, turn: offset_requests.delete_offsets(shard, turn, request))
    return finish(result, lambda response: _merge(response, unknown))


def _remove_unknown(image: MetadataImage, request: OffsetDeleteRequest) -> dict[str, OffsetDeleteResponseTopic]:
    """Removes unknown partitions from the request; returns their results by topic."""
    unknown: dict[str, OffsetDeleteResponseTopic] = {}
    for topic in request.topics:
        known = image.topics.get(topic.name)
        missing = [
            partition.partition_index
            for partition in topic.partitions
            if known is None or partition.partition_index not in known.partitions
        ]
        if missing or known is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            unknown[topic.name] = OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[OffsetDeleteResponsePartition(partition_index=index, error_code=code) for index in missing],
            )
            absent = set(missing)
            topic.partitions = [each for each in topic.partitions if each.partition_index not in absent]
    request.topics = [topic for topic in request.topics if topic.partitions]
    return unknown


def _merge(response: OffsetDeleteResponse, unknown: dict[str, OffsetDeleteResponseTopic]) -> OffsetDeleteResponse:
    if response.error_code:
        return response
    for topic in response.topics:
        same = unknown.get(topic.name)
        if same is not None:
            same.partitions += topic.partitions
        else:
            unknown[topic.name] = topic
    response.topics = list(unknown.values())
    return response
