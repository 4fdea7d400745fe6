"""DeleteShareGroupOffsets v0 (KIP-932): deletes the offsets of topics from an empty share group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import committed
from penstock.broker.handlers.share_offsets import delete_states
from penstock.groups import share_requests
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_92_delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: Broker, ctx: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    try:
        return await _handle(broker, ctx, request)
    except KafkaError as error:  # concerns the whole request
        return DeleteShareGroupOffsetsResponse(error_code=error.code, error_message=error.message)


async def _handle(
    broker: Broker, ctx: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    group_id = request.group_id
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id is empty: give a group id.")
    responses = []
    topic_ids = []
    for asked in request.topics:
        topic = broker.metadata.image.topics.get(asked.topic_name)
        response = DeleteShareGroupOffsetsResponseTopic(topic_name=asked.topic_name)
        responses.append(response)
        if topic is None:
            response.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            response.error_message = "The topic does not exist: check its name."
        else:
            response.topic_id = topic.topic_id
            topic_ids.append(topic.topic_id)
    coordinator = broker.groups.coordinator(group_id)
    slots = await committed(
        coordinator.run(lambda shard, turn: share_requests.begin_delete(shard, turn, group_id, topic_ids))
    )
    await delete_states(broker, group_id, slots)
    await committed(coordinator.run(lambda shard, turn: share_requests.finish_delete(shard, turn, group_id, topic_ids)))
    return DeleteShareGroupOffsetsResponse(responses=responses)
