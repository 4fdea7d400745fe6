"""AlterPartition v2-3: changes a partition's ISR as its leader requests. Since v3 the ISR includes broker epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext
    from penstock.protocol.messages.api_56_alter_partition import AlterPartitionRequest, AlterPartitionResponse


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: AlterPartitionRequest
) -> AlterPartitionResponse:
    return await broker.controller.alter_partition(request)
