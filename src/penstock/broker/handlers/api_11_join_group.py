"""JoinGroup v0-9: a member joins a group; the response is sent when the join phase ends.

Rebalance timeout since v1, member id handshake since v4, static members since v5, null protocols since v7, reasons
since v8, skip-assignment since v9.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.broker.handlers.group_calls import caller
from penstock.groups import membership
from penstock.protocol.messages.api_11_join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

NULL_PROTOCOL_SINCE = 7


async def handle(broker: Broker, ctx: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    waiting: asyncio.Future[JoinGroupResponse] = asyncio.get_running_loop().create_future()
    who = caller(ctx)
    coordinator = broker.groups.coordinator(request.group_id)
    coordinator.post(lambda shard, turn: membership.join(shard, turn, request, who, waiting))
    response = await waiting
    if response.protocol_name is None and ctx.api_version < NULL_PROTOCOL_SINCE:
        response.protocol_name = ""
    return response
