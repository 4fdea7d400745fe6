"""UnregisterBroker v0: removes the registration of a broker that will not return. A running broker registers again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.messages.api_64_unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    await broker.controller.unregister(request.broker_id)
    return UnregisterBrokerResponse(error_message=None)
