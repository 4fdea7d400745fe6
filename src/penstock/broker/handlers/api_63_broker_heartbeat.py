"""BrokerHeartbeat v0-2: a broker is alive, asks to be unfenced or to stop, and tells of failed or cordoned disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext
    from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    return await broker.controller.heartbeat(request, ctx)
