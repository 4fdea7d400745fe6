"""BrokerHeartbeat v0-2: a broker reports that it is alive, requests unfencing or shutdown, and reports failed or
cordoned directories.
"""

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
