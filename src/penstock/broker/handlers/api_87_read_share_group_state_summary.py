"""ReadShareGroupStateSummary v0-1: returns start offsets to a group coordinator.

From v1 on, also returns the number of records whose delivery is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.share_state_calls import Decide, Outcome, decide_each, error_fields
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_87_read_share_group_state_summary import (
    PartitionData,
    PartitionResult,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStateSummaryResult,
)
from penstock.share import state_requests
from penstock.share.state_requests import Summary

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.share.state_journal import ShareKey


async def handle(
    broker: Broker, ctx: RequestContext, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse:
    decided = await decide_each(broker, request.group_id, request.topics, _decision)
    return ReadShareGroupStateSummaryResponse(
        results=[
            ReadStateSummaryResult(topic_id=topic_id, partitions=[_result(*each) for each in some])
            for topic_id, some in decided
        ]
    )


def _decision(key: ShareKey, wanted: PartitionData) -> Decide[Summary]:
    return lambda shard, turn: state_requests.summary(shard, key)


def _result(index: int, outcome: Outcome[Summary]) -> PartitionResult:
    if isinstance(outcome, KafkaError):
        return PartitionResult(partition=index, **error_fields(outcome))
    return PartitionResult(
        partition=index,
        state_epoch=outcome.state_epoch,
        leader_epoch=outcome.leader_epoch,
        start_offset=outcome.start_offset,
        delivery_complete_count=outcome.complete_count,
    )
