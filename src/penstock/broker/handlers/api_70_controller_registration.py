"""ControllerRegistration v0: a controller registers its listeners and supported features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.controller.brokers import register_controller
from penstock.metadata.image import Endpoint
from penstock.protocol.messages.api_70_controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: ControllerRegistrationRequest
) -> ControllerRegistrationResponse:
    endpoints = {one.name: Endpoint(one.host, one.port, one.security_protocol) for one in request.listeners}
    features = {one.name: (one.min_supported_version, one.max_supported_version) for one in request.features}
    await broker.metadata.submit(
        lambda image: register_controller(image, request.controller_id, request.incarnation_id, endpoints, features)
    )
    return ControllerRegistrationResponse(error_message=None)
