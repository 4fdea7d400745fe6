"""ConsumerGroupDescribe v0-1 (KIP-848): describes groups of the consumer protocol.

Returns epochs, subscriptions, current and target assignments, and since v1 member types.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import committed
from penstock.broker.handlers.group_calls import ALL_OPERATIONS
from penstock.groups.consumer_requests import describe_consumer_group
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_69_consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.groups.shard import GroupShard
    from penstock.groups.turn import Turn


async def handle(
    broker: Broker, ctx: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    groups = [await _describe(broker, group_id) for group_id in request.group_ids]
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = ALL_OPERATIONS
    return ConsumerGroupDescribeResponse(groups=groups)


async def _describe(broker: Broker, group_id: str) -> DescribedGroup:
    try:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id is empty: set a group id.")
        return await committed(broker.groups.coordinator(group_id).run(partial(_decide, group_id)))
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)


def _decide(group_id: str, shard: GroupShard, turn: Turn) -> DescribedGroup:
    return describe_consumer_group(shard, turn, group_id)
