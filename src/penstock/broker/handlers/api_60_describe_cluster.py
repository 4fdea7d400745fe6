"""DescribeCluster v0-2: returns the brokers of the client's listener; since v2 also fenced brokers on request.

On a controller listener it returns all controllers and the id of the active controller (KIP-919). A broker listener
refuses requests for controllers, and a controller listener refuses requests for brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.cluster_view import CLUSTER_OPERATIONS, NOT_ASKED
from penstock.metadata.quarantine import quarantine_reason
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_60_describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

BROKERS, CONTROLLERS = 1, 2


def handle(broker: Broker, ctx: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    of_controllers = ctx.listener_name in broker.controller_listeners
    if request.endpoint_type not in (BROKERS, CONTROLLERS):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"There is no endpoint type {request.endpoint_type}: use 1 (brokers) or 2 (controllers).",
        )
    if (request.endpoint_type == CONTROLLERS) != of_controllers:
        here, wanted = ("CONTROLLER", "BROKER") if of_controllers else ("BROKER", "CONTROLLER")
        raise KafkaError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            f"A {here} listener can't serve a request for endpoint type {wanted}: send it to a {wanted} listener.",
        )
    image = broker.metadata.image
    response = DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        endpoint_type=request.endpoint_type,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )
    if of_controllers:
        response.controller_id, _ = broker.metadata.active_controller()
        response.brokers = [
            DescribeClusterBroker(broker_id=node_id, host=endpoint.host, port=endpoint.port)
            for node_id, one in sorted(image.controllers.items())
            if (endpoint := one.endpoints.get(ctx.listener_name)) is not None
        ]
        return response
    response.controller_id = broker.node_id
    response.brokers = [
        DescribeClusterBroker(
            broker_id=broker_id,
            host=one.endpoints[ctx.listener_name].host,
            port=one.endpoints[ctx.listener_name].port,
            rack=one.rack,
            is_fenced=one.fenced and request.include_fenced_brokers,
            quarantine=quarantine_reason(image, broker_id) if request.include_fenced_brokers else None,
        )
        for broker_id, one in sorted(image.brokers.items())
        if ctx.listener_name in one.endpoints and (request.include_fenced_brokers or not one.fenced)
    ]
    return response
