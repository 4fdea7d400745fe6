"""Vote v0-2: a candidate asks for this voter's vote, or whether it would be granted (pre-vote, v2+, KIP-996)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.quorum_calls import answered
from penstock.protocol.messages.api_52_vote import VoteRequest, VoteResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(broker: Broker, ctx: RequestContext, request: VoteRequest) -> VoteResponse:
    return await answered(broker, request, VoteResponse)
