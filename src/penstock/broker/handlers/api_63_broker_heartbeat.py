"""BrokerHeartbeat v0-2: a broker reports that it is alive, and may request unfencing or shutdown.

It also reports failed and cordoned directories.
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
