"""AssignReplicasToDirs v0: stores the log directories that a broker reports for its replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext
    from penstock.protocol.messages.api_73_assign_replicas_to_dirs import (
        AssignReplicasToDirsRequest,
        AssignReplicasToDirsResponse,
    )


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: AssignReplicasToDirsRequest
) -> AssignReplicasToDirsResponse:
    return await broker.controller.assign_replicas(request)
