"""DeleteTopics v1-6: deletes topics by name, and by id since v6. Refused if `delete.topic.enable` is false."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.limits.mutations import Mutations
from penstock.metadata.controller.topics import delete_topics
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_20_delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext

FIRST_VERSION_WITH_DISABLED_ERROR = 3
FIRST_VERSION_BY_ID = 6
STRICT_QUOTA_SINCE = 5


async def handle(broker: ControllerParts, ctx: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    if not broker.settings.bool("delete.topic.enable"):
        if ctx.api_version < FIRST_VERSION_WITH_DISABLED_ERROR:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        raise KafkaError(
            ErrorCode.TOPIC_DELETION_DISABLED,
            "Deleting topics is disabled: set delete.topic.enable=true on the brokers.",
        )
    topics = request.topics
    if ctx.api_version < FIRST_VERSION_BY_ID:
        topics = [DeleteTopicState(name=name) for name in request.topic_names]
    quota = Mutations(broker.quotas, ctx, strict=ctx.api_version >= STRICT_QUOTA_SINCE)
    response = await broker.metadata.submit(lambda image: delete_topics(image, topics, quota.charge))
    response.throttle_time_ms = quota.throttle_ms
    return response
