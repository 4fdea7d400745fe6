"""CreatePartitions v0-3: adds partitions to topics, or only validates the request.

The controller assigns the replicas of a partition unless the request has an assignment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.limits.mutations import Mutations
from penstock.metadata.controller.partitions import create_partitions
from penstock.protocol.messages.api_37_create_partitions import CreatePartitionsRequest, CreatePartitionsResponse

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext

STRICT_QUOTA_SINCE = 3


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    quota = Mutations(broker.quotas, ctx, strict=ctx.api_version >= STRICT_QUOTA_SINCE)
    response = await broker.metadata.submit(
        lambda image: create_partitions(image, request, broker.random, quota.charge)
    )
    response.throttle_time_ms = quota.throttle_ms
    return response
