"""GetTelemetrySubscriptions, version 0: returns a client's subscription: its id, metrics and push interval.

A client with an all-zero instance id gets a new instance id. A second request within the push interval is refused with
THROTTLING_QUOTA_EXCEEDED, unless the cluster's subscriptions have changed since the first request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.telemetry import ACCEPTED_COMPRESSION
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_71_get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


def handle(
    broker: Broker, ctx: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    try:
        client_instance_id, instance = broker.telemetry.subscribe(ctx, request.client_instance_id)
    except KafkaError as error:
        return GetTelemetrySubscriptionsResponse(error_code=error.code)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=client_instance_id,
        subscription_id=instance.subscription_id,
        accepted_compression_types=[int(codec) for codec in ACCEPTED_COMPRESSION],
        push_interval_ms=instance.interval_ms,
        telemetry_max_bytes=broker.telemetry.max_bytes,
        delta_temporality=True,
        requested_metrics=list(instance.metrics),
    )
