"""InitializeShareGroupState v0: creates states of share partitions, or sets their start offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.share_state_calls import Decide, decide_each, error_fields
from penstock.protocol.messages.api_83_initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStateResult,
    PartitionData,
    PartitionResult,
)
from penstock.share import state_requests

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.share.state_journal import ShareKey


async def handle(
    broker: Broker, ctx: RequestContext, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    decided = await decide_each(broker, request.group_id, request.topics, _decision)
    return InitializeShareGroupStateResponse(
        results=[
            InitializeStateResult(
                topic_id=topic_id,
                partitions=[PartitionResult(partition=index, **error_fields(outcome)) for index, outcome in some],
            )
            for topic_id, some in decided
        ]
    )


def _decision(key: ShareKey, wanted: PartitionData) -> Decide[None]:
    return lambda shard, turn: state_requests.initialize(shard, turn, key, wanted.state_epoch, wanted.start_offset)
