"""IncrementalAlterConfigs, versions 0 to 1: sets, deletes, appends to and subtracts from single configs.

Changes to topics, this broker, the cluster's defaults, groups and client metrics become metadata records. Logger levels
are set in this process at once and last until it stops. Errors are per resource: either all changes to a resource are
made or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.loggers import alter_loggers
from penstock.metadata.controller.configs import incremental_alter_configs, own_refusal, refused_resources
from penstock.protocol.errors import KafkaError, without_frames
from penstock.protocol.messages.api_44_incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.protocol.vocabulary import ResourceType

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    settled = refused_resources(request.resources)
    for index, resource in enumerate(request.resources):
        if resource.resource_type == ResourceType.BROKER_LOGGER and index not in settled:
            try:
                alter_loggers(resource, broker.node_id, validate_only=request.validate_only)
                settled[index] = None
            except KafkaError as error:
                settled[index] = without_frames(error)
        elif index not in settled and (refusal := own_refusal(resource, broker.settings)) is not None:
            settled[index] = refusal
    if len(settled) == len(request.resources):  # nothing for the controller to decide
        return incremental_alter_configs(broker.metadata.image, request, broker.settings, settled).reply
    return await broker.metadata.submit(
        lambda image: incremental_alter_configs(image, request, broker.settings, settled)
    )
