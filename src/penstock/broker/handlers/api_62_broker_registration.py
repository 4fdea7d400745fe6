"""BrokerRegistration v0-4: registers a broker, or the new incarnation of a registered broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext
    from penstock.protocol.messages.api_62_broker_registration import (
        BrokerRegistrationRequest,
        BrokerRegistrationResponse,
    )


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse:
    return await broker.controller.register(request, broker.cluster_id)
