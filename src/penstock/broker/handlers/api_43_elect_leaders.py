"""ElectLeaders v0-2: elects preferred leaders, since v1 also unclean leaders; a null list means every partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.controlplane.controller import rules_of
from penstock.metadata.controller.elections import elect_leaders
from penstock.protocol.messages.api_43_elect_leaders import ElectLeadersRequest, ElectLeadersResponse

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(broker: ControllerParts, ctx: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    rules = rules_of(broker.settings)
    return await broker.metadata.submit(lambda image: elect_leaders(image, request, rules))
