"""FindCoordinator v0-6: returns the coordinator of a key; since v4 of several keys.

The key types are group (0), transaction (1) and share (2); the key of a share partition is `group:topic id:partition`.
The first request for a key type creates the internal topic and waits until it exists. Kafka makes the client retry
instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_10_find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from penstock.protocol.uuid import uuid_from_str
from penstock.protocol.vocabulary import (
    CONSUMER_OFFSETS,
    GROUP_COORDINATOR,
    SHARE_COORDINATOR,
    SHARE_GROUP_STATE,
    TRANSACTION_COORDINATOR,
    TRANSACTION_STATE,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

BATCHED_SINCE = 4
SHARE_SINCE = 6


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
        if key_type == SHARE_COORDINATOR and ctx.api_version >= SHARE_SINCE:
            _check_share_key(key)
            await _ensure_topic(broker, SHARE_GROUP_STATE)
            return _locate(broker, ctx, SHARE_GROUP_STATE, broker.share_states.coordinators.partition_of(key), key)
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"There is no coordinator for keys of type {key_type}: use 0 (group), 1 (transaction) or 2 (share).",
        )
    except KafkaError as error:
        code = error.code
        if code is ErrorCode.NOT_COORDINATOR:  # the topic exists, but this node's image does not contain it yet
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=error.message)


def _check_share_key(key: str) -> None:
    """Raises KafkaError unless the key is `group:topic id:partition`. A group id may contain colons."""
    parts = key.rsplit(":", 2)
    try:
        group, topic_id, partition = parts
        uuid_from_str(topic_id)
        good = bool(group) and int(partition) >= 0
    except ValueError:
        good = False
    if not good:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"'{key}' does not name a share partition: give group:topic id:partition."
        )


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
