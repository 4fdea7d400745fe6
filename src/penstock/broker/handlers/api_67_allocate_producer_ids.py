"""AllocateProducerIds v0: allocates a block of producer ids for one broker; no id is allocated twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.controller.brokers import allocate_producer_ids
from penstock.protocol.messages.api_67_allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    first, count = await broker.metadata.submit(
        lambda image: allocate_producer_ids(image, request.broker_id, request.broker_epoch)
    )
    return AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=count)
