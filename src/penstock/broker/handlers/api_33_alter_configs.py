"""AlterConfigs, versions 0 to 2: replaces all configs of a topic, broker, group or client metrics subscription.

Configs that the request leaves out are reset to their defaults (IncrementalAlterConfigs does not change them). Errors
are per resource. This request can't change loggers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.controller.configs import alter_configs
from penstock.protocol.messages.api_33_alter_configs import AlterConfigsRequest, AlterConfigsResponse

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(broker: ControllerParts, ctx: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    return await broker.metadata.submit(lambda image: alter_configs(image, request, broker.settings))
