"""ListPartitionReassignments v0: lists the partitions under reassignment; a null list of topics means every topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.controller.reassignments import list_reassignments
from penstock.protocol.messages.api_46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


def handle(
    broker: ControllerParts, ctx: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return list_reassignments(broker.metadata.image, request)
