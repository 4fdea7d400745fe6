"""DeleteGroups v0-2: deletes empty groups with all their offsets. A group with members gets NON_EMPTY_GROUP.

The states of a share group's partitions are deleted first, at the share coordinators.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import committed
from penstock.broker.handlers.share_offsets import delete_share_states
from penstock.groups import admin
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_42_delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.groups.shard import GroupShard
    from penstock.groups.turn import Turn


async def handle(broker: Broker, ctx: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    results = []
    for group_id in dict.fromkeys(request.groups_names):
        try:
            coordinator = broker.groups.coordinator(group_id)
            await delete_share_states(broker, group_id)
            code = await committed(coordinator.run(partial(_decide, group_id)))
        except KafkaError as error:
            code = error.code
        results.append(DeletableGroupResult(group_id=group_id, error_code=code))
    return DeleteGroupsResponse(results=results)


def _decide(group_id: str, shard: GroupShard, turn: Turn) -> ErrorCode:
    return admin.delete_group(shard, turn, group_id)
