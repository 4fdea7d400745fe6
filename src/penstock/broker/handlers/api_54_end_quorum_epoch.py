"""EndQuorumEpoch v0-1: handles the resignation of the quorum's leader, which names its preferred successors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.quorum_calls import answered
from penstock.protocol.messages.api_54_end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(broker: Broker, ctx: RequestContext, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
    return await answered(broker, ctx, request, EndQuorumEpochResponse)
