"""PushTelemetry, version 0: passes the metrics of a client unchanged to the broker's telemetry receivers.

Errors: INVALID_REQUEST (no client instance id, or a push after the terminating push), THROTTLING_QUOTA_EXCEEDED (a push
before the interval is over), UNKNOWN_SUBSCRIPTION_ID, UNSUPPORTED_COMPRESSION_TYPE, TELEMETRY_TOO_LARGE, INVALID_RECORD
(a receiver failed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_72_push_telemetry import PushTelemetryRequest, PushTelemetryResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


def handle(broker: Broker, ctx: RequestContext, request: PushTelemetryRequest) -> PushTelemetryResponse:
    try:
        broker.telemetry.push(
            ctx,
            request.client_instance_id,
            request.subscription_id,
            terminating=request.terminating,
            compression=request.compression_type,
            metrics=request.metrics,
        )
    except KafkaError as error:
        return PushTelemetryResponse(error_code=error.code)
    return PushTelemetryResponse()
