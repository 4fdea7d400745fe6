"""DescribeGroups v0-6: describes classic groups and their members.

A missing group has the state "Dead"; since v6 it gets GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import committed
from penstock.broker.handlers.group_calls import ALL_OPERATIONS
from penstock.groups import admin
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_15_describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.groups.shard import GroupShard


async def handle(broker: Broker, ctx: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    groups = [await _describe(broker, ctx, group_id) for group_id in request.groups]
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = ALL_OPERATIONS
    return DescribeGroupsResponse(groups=groups)


async def _describe(broker: Broker, ctx: RequestContext, group_id: str) -> DescribedGroup:
    try:
        coordinator = broker.groups.coordinator(group_id)
        return await committed(coordinator.run(partial(_decide, group_id, ctx.api_version)))
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)


def _decide(group_id: str, api_version: int, shard: GroupShard, turn: object) -> DescribedGroup:
    return admin.describe(shard, group_id, api_version)
