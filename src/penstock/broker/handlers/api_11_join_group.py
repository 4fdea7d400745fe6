"""JoinGroup v0-9: lets a member join a group with the classic protocol. The response waits for the join phase's end.

Versions add: rebalance timeout (v1), member id handshake (v4), static members (v5), null protocols (v7), reasons (v8),
skip-assignment (v9).
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
