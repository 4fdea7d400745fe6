"""BeginQuorumEpoch v0-1: handles the announcement of the quorum's new leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.quorum_calls import answered
from penstock.protocol.messages.api_53_begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(broker: Broker, ctx: RequestContext, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
    return await answered(broker, ctx, request, BeginQuorumEpochResponse)
