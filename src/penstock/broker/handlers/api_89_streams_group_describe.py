"""StreamsGroupDescribe v0 (KIP-1071): returns epochs, topologies and tasks of streams groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.group_calls import check_feature, describe_groups
from penstock.groups.streams_requests import describe_streams_group
from penstock.protocol.messages.api_89_streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: Broker, ctx: RequestContext, request: StreamsGroupDescribeRequest
) -> StreamsGroupDescribeResponse:
    check_feature(broker, "streams.version", "Streams groups")
    return StreamsGroupDescribeResponse(
        groups=await describe_groups(broker, request, DescribedGroup, describe_streams_group)
    )
