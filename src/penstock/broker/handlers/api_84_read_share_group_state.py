"""ReadShareGroupState v0: returns a share partition's state to its leader, and fences earlier leaders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.share_state_calls import Decide, Outcome, decide_each, error_fields
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_84_read_share_group_state import (
    PartitionData,
    PartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateResult,
    StateBatch,
)
from penstock.share import state_requests
from penstock.share.state_journal import ShareKey, fields_of
from penstock.share.state_requests import Read

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: Broker, ctx: RequestContext, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse:
    decided = await decide_each(broker, request.group_id, request.topics, _decision)
    return ReadShareGroupStateResponse(
        results=[
            ReadStateResult(topic_id=topic_id, partitions=[_result(*each) for each in some])
            for topic_id, some in decided
        ]
    )


def _decision(key: ShareKey, wanted: PartitionData) -> Decide[Read]:
    return lambda shard, turn: state_requests.read(shard, turn, key, wanted.leader_epoch)


def _result(index: int, outcome: Outcome[Read]) -> PartitionResult:
    if isinstance(outcome, KafkaError):
        return PartitionResult(partition=index, **error_fields(outcome))
    return PartitionResult(
        partition=index,
        state_epoch=outcome.state_epoch,
        start_offset=outcome.start_offset,
        state_batches=[StateBatch(**fields_of(batch)) for batch in outcome.batches],
    )
