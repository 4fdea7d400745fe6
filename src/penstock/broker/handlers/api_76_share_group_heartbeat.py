"""ShareGroupHeartbeat v1 (KIP-932): a member joins, stays in or leaves a share group.

The coordinator assigns partitions, which several members may share. While the share coordinators create the states of
new partitions, the response has a shorter heartbeat interval than in Kafka, so that members get their partitions soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.group_calls import caller, check_feature, finish, unchanged
from penstock.groups.share_requests import share_heartbeat

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.net.later import Later
    from penstock.protocol.messages.api_76_share_group_heartbeat import (
        ShareGroupHeartbeatRequest,
        ShareGroupHeartbeatResponse,
    )


def handle(
    broker: Broker, ctx: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse | Later[ShareGroupHeartbeatResponse]:
    check_feature(broker, "share.version", "Share groups")
    coordinator = broker.groups.coordinator(request.group_id)
    who = caller(ctx)
    return finish(coordinator.run(lambda shard, turn: share_heartbeat(shard, turn, request, who)), unchanged)
