"""WriteShareGroupState v0-1: stores changes of a share partition's state for the share-partition leader.

Since v1 the state includes the number of records whose delivery is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.share_state_calls import Decide, decide_each, error_fields
from penstock.protocol.messages.api_85_write_share_group_state import (
    PartitionData,
    PartitionResult,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStateResult,
)
from penstock.share import state_requests
from penstock.share.state_journal import ShareKey, read_batches

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: Broker, ctx: RequestContext, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    decided = await decide_each(broker, request.group_id, request.topics, _decision)
    return WriteShareGroupStateResponse(
        results=[
            WriteStateResult(
                topic_id=topic_id,
                partitions=[PartitionResult(partition=index, **error_fields(outcome)) for index, outcome in some],
            )
            for topic_id, some in decided
        ]
    )


def _decision(key: ShareKey, wanted: PartitionData) -> Decide[None]:
    write = state_requests.Write(
        wanted.state_epoch,
        wanted.leader_epoch,
        wanted.start_offset,
        wanted.delivery_complete_count,
        read_batches(wanted.state_batches),
    )
    return lambda shard, turn: state_requests.write(shard, turn, key, write)
