"""UpdateRaftVoter v0: a voter reports its current endpoints (KIP-853)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.quorum_calls import answered
from penstock.protocol.messages.api_82_update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: UpdateRaftVoterRequest
) -> UpdateRaftVoterResponse:
    return await answered(broker, ctx, request, UpdateRaftVoterResponse)
