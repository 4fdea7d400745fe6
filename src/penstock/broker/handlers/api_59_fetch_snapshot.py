"""FetchSnapshot v0-1: returns a chunk of a metadata snapshot to a replica that needs records before the log's start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.quorum_calls import answered
from penstock.protocol.messages.api_59_fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(broker: Broker, ctx: RequestContext, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
    return await answered(broker, ctx, request, FetchSnapshotResponse)
