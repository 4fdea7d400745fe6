"""ConsumerGroupHeartbeat v0-1 (KIP-848): groups that the coordinator assigns. Patterns and own member ids since v1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.handlers.group_calls import caller
from penstock.groups.consumer_requests import consumer_heartbeat

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.protocol.messages.api_68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest


def handle(broker: Broker, ctx: RequestContext, request: ConsumerGroupHeartbeatRequest) -> Any:
    coordinator = broker.groups.coordinator(request.group_id)
    who = caller(ctx)
    return coordinator.run(lambda shard, turn: consumer_heartbeat(shard, turn, request, who))
