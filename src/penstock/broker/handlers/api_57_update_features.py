"""UpdateFeatures v0-2: raises or lowers finalized feature levels, all or none.

Since v1 a request can ask for validation only: then no level changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.controller.feature_updates import update_features
from penstock.protocol.messages.api_57_update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: ControllerParts, ctx: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    return await broker.metadata.submit(lambda image: update_features(image, request, broker.node_id))
