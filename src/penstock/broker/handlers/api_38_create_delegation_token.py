"""CreateDelegationToken v1-3: creates a delegation token (KIP-48), since v3 also for another owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.token_calls import token_rules
from penstock.metadata.controller.tokens import create_token
from penstock.protocol.messages.api_38_create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    rules, now_ms = token_rules(broker.settings), broker.clock.wall_ms()
    return await broker.metadata.submit(
        lambda image: create_token(image, request, rules, ctx.principal, now_ms, broker.random)
    )
