"""OffsetCommit v2-10: commits offsets of a group. The response is sent when the offsets are committed to the log.

A request names topics by name, since v10 by id. A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION or
UNKNOWN_TOPIC_ID; the other partitions are committed. A member's commit counts as a heartbeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.group_calls import finish
from penstock.groups import offset_requests
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.metadata.image import MetadataImage
    from penstock.net.later import Later

TOPIC_IDS_SINCE = 10


def handle(
    broker: Broker, ctx: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Later[OffsetCommitResponse]:
    coordinator = broker.groups.coordinator(request.group_id)
    refused = _remove_unknown(broker.metadata.image, request, ctx.api_version >= TOPIC_IDS_SINCE)
    result = coordinator.run(lambda shard, turn: offset_requests.commit(shard, turn, request, ctx.api_version))
    return finish(result, lambda response: _merge(response, refused))


def _remove_unknown(
    image: MetadataImage, request: OffsetCommitRequest, by_id: bool
) -> dict[int, OffsetCommitResponseTopic]:
    """Removes unknown partitions from the request, and sets both name and id of each known topic.

    Returns the error results of the removed partitions. The key is the position of the topic in the request.
    """
    refused: dict[int, OffsetCommitResponseTopic] = {}
    kept: list[OffsetCommitRequestTopic] = []
    for place, topic in enumerate(request.topics):
        known = image.topics_by_id.get(topic.topic_id) if by_id else image.topics.get(topic.name)
        if known is not None and not topic.partitions:
            continue
        if known is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            refused[place] = _refusal(topic, code, {part.partition_index for part in topic.partitions})
            continue
        topic.name, topic.topic_id = known.name, known.topic_id
        missing = {part.partition_index for part in topic.partitions} - known.partitions.keys()
        if missing:
            refused[place] = _refusal(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, missing)
            topic.partitions = [part for part in topic.partitions if part.partition_index not in missing]
        kept.append(topic)
    request.topics = kept
    return refused


def _refusal(topic: OffsetCommitRequestTopic, code: ErrorCode, partitions: set[int]) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=index, error_code=code) for index in sorted(partitions)
        ],
    )


def _merge(response: OffsetCommitResponse, refused: dict[int, OffsetCommitResponseTopic]) -> OffsetCommitResponse:
    answered: dict[tuple[str, bytes], OffsetCommitResponseTopic] = {}
    for each in response.topics:
        answered.setdefault((each.name, each.topic_id), each)
    for place, topic in refused.items():
        same = answered.setdefault((topic.name, topic.topic_id), topic)
        if same is not topic:
            same.partitions += topic.partitions
        else:
            response.topics.insert(place, topic)
    return response
