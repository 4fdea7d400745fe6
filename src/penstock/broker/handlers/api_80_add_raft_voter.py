"""AddRaftVoter v0-1: adds a voter that has caught up (KIP-853).

Since v1 the client may ask not to wait until the change is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.quorum_calls import answered
from penstock.protocol.messages.api_80_add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(broker: ControllerParts, ctx: RequestContext, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
    return await answered(broker, ctx, request, AddRaftVoterResponse)
