"""RenewDelegationToken v1-2: renews a delegation token up to its maximum lifetime. The active controller decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.token_calls import token_rules
from penstock.metadata.controller.tokens import renew_token
from penstock.protocol.messages.api_39_renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    rules, now_ms = token_rules(broker.settings), broker.clock.wall_ms()
    return await broker.metadata.submit(
        lambda image: renew_token(image, request, rules, ctx.principal, now_ms, broker.token_macs)
    )
