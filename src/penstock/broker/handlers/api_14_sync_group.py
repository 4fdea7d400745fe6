"""SyncGroup v0-5: takes the assignments from the leader of a group, and returns to each member its own assignment.

The responses are sent when the assignments are committed to the log. v3 adds static members. Since v5 the protocol type
and name are required.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.groups import membership
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_14_sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


PROTOCOL_REQUIRED_SINCE = 5


async def handle(broker: Broker, ctx: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    if ctx.api_version >= PROTOCOL_REQUIRED_SINCE and None in (request.protocol_type, request.protocol_name):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    waiting: asyncio.Future[SyncGroupResponse] = asyncio.get_running_loop().create_future()
    coordinator = broker.groups.coordinator(request.group_id)
    coordinator.post(lambda shard, turn: membership.sync(shard, turn, request, waiting))
    return await waiting
