"""ShareGroupDescribe v1 (KIP-932): returns epochs, subscriptions and assignments of share groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.group_calls import describe_groups
from penstock.groups.share_requests import describe_share_group
from penstock.protocol.messages.api_77_share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(broker: Broker, ctx: RequestContext, request: ShareGroupDescribeRequest) -> ShareGroupDescribeResponse:
    return ShareGroupDescribeResponse(
        groups=await describe_groups(broker, request, DescribedGroup, describe_share_group)
    )
