"""Fetch v4-18 on a controller listener: returns records of the metadata log to controllers and brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.quorum_calls import answered
from penstock.protocol.messages.api_01_fetch import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(broker: Broker, ctx: RequestContext, request: FetchRequest) -> FetchResponse:
    return await answered(broker, ctx, request, FetchResponse)
