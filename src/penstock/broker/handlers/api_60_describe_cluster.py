"""DescribeCluster v0-2: the brokers of the client's listener, fenced ones (v2) on request.

Controllers are not described here: this is a broker's endpoint, and it says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.cluster_view import CLUSTER_OPERATIONS, NOT_ASKED
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_60_describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

BROKERS, CONTROLLERS = 1, 2


def handle(broker: Broker, ctx: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        raise KafkaError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    if request.endpoint_type != BROKERS:
        raise KafkaError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {request.endpoint_type}")
    image = broker.metadata.image
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=broker_id,
                host=one.endpoints[ctx.listener_name].host,
                port=one.endpoints[ctx.listener_name].port,
                rack=one.rack,
                is_fenced=one.fenced and request.include_fenced_brokers,
            )
            for broker_id, one in sorted(image.brokers.items())
            if ctx.listener_name in one.endpoints and (request.include_fenced_brokers or not one.fenced)
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )
