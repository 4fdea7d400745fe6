"""ExpireDelegationToken v1-2: expires a delegation token at once, or after a period. The active controller decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.token_calls import token_rules
from penstock.metadata.controller.tokens import expire_token
from penstock.protocol.messages.api_40_expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    rules, now_ms = token_rules(broker.settings), broker.clock.wall_ms()
    return await broker.metadata.submit(
        lambda image: expire_token(image, request, rules, ctx.principal, now_ms, broker.token_macs)
    )
