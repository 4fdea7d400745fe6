"""Vote v0-2: grants or refuses a vote to a candidate; since v2 also a pre-vote (KIP-996)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.quorum_calls import answered
from penstock.protocol.messages.api_52_vote import VoteRequest, VoteResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(broker: Broker, ctx: RequestContext, request: VoteRequest) -> VoteResponse:
    return await answered(broker, ctx, request, VoteResponse)
