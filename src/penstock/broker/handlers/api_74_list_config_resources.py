"""ListConfigResources, versions 0 to 1: lists the names of resources that have configs.

Version 0 lists only client metrics subscriptions. Version 1 lists the resources of the requested types, or of all
types: every topic, every broker, the loggers of every broker, and the groups and subscriptions that have a config.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.metadata.image import MetadataImage
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_74_list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from penstock.protocol.vocabulary import ResourceType

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


def handle(broker: Broker, ctx: RequestContext, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    if ctx.api_version == 0:
        wanted = [int(ResourceType.CLIENT_METRICS)]
    else:
        wanted = list(dict.fromkeys(request.resource_types)) or sorted(ResourceType, reverse=True)
    if any(kind not in set(ResourceType) for kind in wanted):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    found = [
        ConfigResource(resource_name=name, resource_type=kind)
        for kind in wanted
        for name in _names(broker.metadata.image, kind)
    ]
    return ListConfigResourcesResponse(config_resources=found)


def _names(image: MetadataImage, kind: int) -> Iterable[str]:
    match kind:
        case ResourceType.TOPIC:
            return image.topics
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
            return [str(broker_id) for broker_id in image.brokers]
        case _:
            return [name for resource_type, name in image.configs if resource_type == kind]
