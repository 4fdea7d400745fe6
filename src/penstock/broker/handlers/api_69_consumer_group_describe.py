"""ConsumerGroupDescribe v0-1 (KIP-848): describes groups of the consumer protocol.

Returns epochs, subscriptions, current and target assignments, and since v1 member types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.group_calls import describe_groups
from penstock.groups.consumer_requests import describe_consumer_group
from penstock.protocol.messages.api_69_consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: Broker, ctx: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=await describe_groups(broker, request, DescribedGroup, describe_consumer_group)
    )
