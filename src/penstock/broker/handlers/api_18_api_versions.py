"""ApiVersions v0-4: returns the API versions and features that this node serves.

Advertises the API keys in the registry. As in Kafka, the telemetry APIs are advertised only if there is a telemetry
receiver. Produce is advertised from v0 although it is served from v3: librdkafka would otherwise assume a broker
without compression (Kafka 4 does the same). The dispatcher answers an unknown version of ApiVersions with a v0
response.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from penstock.broker.handlers.registry import HANDLERS, TELEMETRY, UNSTABLE, Role, served_versions, serves_unstable
from penstock.metadata.features import SUPPORTED_FEATURES
from penstock.protocol.apis import API_VERSIONS, PRODUCE
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_18_api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
FIRST_VERSION_WITH_SOFTWARE = 3
FIRST_VERSION_WITH_ZERO_FEATURES = 4  # older clients fail on a supported feature whose minimum is 0


def handle(broker: Broker, ctx: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if ctx.api_version >= FIRST_VERSION_WITH_SOFTWARE:
        names = (request.client_software_name, request.client_software_version)
        if not all(SOFTWARE.fullmatch(name) for name in names):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        ctx.connection.state["software"] = names
    image = broker.metadata.image
    zero_ok = ctx.api_version >= FIRST_VERSION_WITH_ZERO_FEATURES
    return ApiVersionsResponse(
        api_keys=api_keys(
            "CONTROLLER" if ctx.listener_name in broker.controller_listeners else "BROKER",
            frozenset(key for key in UNSTABLE if serves_unstable(key, broker)),
            frozenset() if broker.telemetry.receivers else TELEMETRY,
        ),
        supported_features=[
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in sorted(SUPPORTED_FEATURES.items())
            if low > 0 or zero_ok
        ],
        finalized_features_epoch=image.offset,
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in sorted(image.features.items())
            if level > 0
        ],
    )


@lru_cache(maxsize=8)
def api_keys(
    role: Role = "BROKER", unstable: frozenset[int] = frozenset(), hidden: frozenset[int] = frozenset()
) -> list[ApiVersion]:
    keys = []
    for key in sorted(HANDLERS.keys() - hidden):
        versions = served_versions(key, role, unstable=key in unstable)
        if versions:
            lowest = 0 if key == PRODUCE else versions[0]
            keys.append(ApiVersion(api_key=key, min_version=lowest, max_version=versions[-1]))
    return keys


def unsupported_version() -> ApiVersionsResponse:
    """Returns the v0 response to an ApiVersions request of an unknown version. The client picks a version from it."""
    own = [key for key in api_keys() if key.api_key == API_VERSIONS]
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)
