"""ConsumerGroupHeartbeat v0-1 (KIP-848): a member joins, stays in or leaves a group.

The coordinator assigns the partitions. v1 adds subscriptions by pattern and client-generated member ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.group_calls import caller, finish, unchanged
from penstock.broker.requests.access_control import visible_topics
from penstock.groups.consumer_requests import consumer_heartbeat

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.net.later import Later
    from penstock.protocol.messages.api_68_consumer_group_heartbeat import (
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupHeartbeatResponse,
    )


def handle(
    broker: Broker, ctx: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Later[ConsumerGroupHeartbeatResponse]:
    coordinator = broker.groups.coordinator(request.group_id)
    who = caller(ctx)._replace(sees=visible_topics(broker.access, ctx))
    return finish(coordinator.run(lambda shard, turn: consumer_heartbeat(shard, turn, request, who)), unchanged)
