"""FindCoordinator v0-6: one key until v3, a batch of keys since v4; key types group (0), transaction (1), share (2).

The first request creates `__consumer_offsets` or `__transaction_state` and waits for it, where Kafka makes the client
retry. Share groups have no coordinator yet and are refused with INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_10_find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from penstock.protocol.vocabulary import CONSUMER_OFFSETS, GROUP_COORDINATOR, TRANSACTION_COORDINATOR, TRANSACTION_STATE

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

BATCHED_SINCE = 4


async def handle(broker: Broker, ctx: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if ctx.api_version >= BATCHED_SINCE else [request.key]
    found = [await _find(broker, ctx, request.key_type, key) for key in keys]
    if ctx.api_version >= BATCHED_SINCE:
        return FindCoordinatorResponse(coordinators=found)
    [only] = found
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message if only.error_code else "NONE",
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


async def _find(broker: Broker, ctx: RequestContext, key_type: int, key: str) -> Coordinator:
    try:
        if key_type == GROUP_COORDINATOR:
            await _ensure_topic(broker, CONSUMER_OFFSETS)
            return _locate(broker, ctx, CONSUMER_OFFSETS, broker.groups.partition_of(key), key)
        if key_type == TRANSACTION_COORDINATOR:
            await _ensure_topic(broker, TRANSACTION_STATE)
            return _locate(broker, ctx, TRANSACTION_STATE, broker.transactions.coordinators.partition_of(key), key)
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"There is no coordinator for keys of type {key_type}: use 0 (group) or 1 (transaction).",
        )
    except KafkaError as error:
        code = error.code
        if code is ErrorCode.NOT_COORDINATOR:  # the topic exists, but this node's image does not contain it yet
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=error.message)


async def _ensure_topic(broker: Broker, name: str) -> None:
    try:
        await broker.topic_creator.ensure(name)
    except KafkaError as error:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error


def _locate(broker: Broker, ctx: RequestContext, topic: str, index: int, key: str) -> Coordinator:
    image = broker.metadata.image
    partition = image.partition(topic, index)
    node = image.brokers.get(partition.leader) if partition is not None else None
    endpoint = node.endpoints.get(ctx.listener_name) if node is not None else None
    if node is None or endpoint is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator's partition has no leader: retry.")
    return Coordinator(key=key, node_id=node.broker_id, host=endpoint.host, port=endpoint.port, error_message="")
