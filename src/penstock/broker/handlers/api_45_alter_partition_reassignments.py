"""AlterPartitionReassignments v0-1: starts or cancels moves of replicas between registered brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.controlplane.controller import rules_of
from penstock.metadata.controller.reassignments import alter_reassignments
from penstock.protocol.messages.api_45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    rules = rules_of(broker.settings)
    return await broker.metadata.submit(lambda image: alter_reassignments(image, request, rules))
