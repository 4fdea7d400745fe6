"""Metadata v0-13: returns the brokers of the client's listener, and topics by name or id (v12+).

On request, also returns the client's authorised operations. A null list (in v0 an empty list) means all topics. The
response for all topics is cached until the image changes; a long response is built in several passes of the event loop.
A missing topic that may be auto-created is created before the response, so that the client need not retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from penstock.broker.handlers.cluster_view import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS, ClusterView
from penstock.broker.limits.audit import MAX_NAMES, OK
from penstock.broker.requests.encoded_responses import SMALL_ITEMS, Encoded, encoded_aside
from penstock.broker.requests.steps import Steps, run_at_once, run_steps
from penstock.metadata.image import Endpoint, TopicImage
from penstock.metadata.names import name_problem
from penstock.net.later import Later, settled
from penstock.protocol.codec import encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.protocol.uuid import ZERO_UUID
from penstock.protocol.vocabulary import UNLISTED_TOPICS

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

FIRST_VERSION_BY_ID = 12
FIRST_VERSION_WITH_LISTENER_ERROR = 6
_ERROR_BEFORE_IT = ErrorCode.LEADER_NOT_AVAILABLE


def handle(
    broker: Broker, ctx: RequestContext, request: MetadataRequest
) -> MetadataResponse | Encoded | Later[MetadataResponse | Encoded]:
    if request.topics is None or (ctx.api_version == 0 and not request.topics):
        return run_steps(_all_topics(broker, ctx, request))
    _check_names(ctx.api_version, request.topics)
    missing = _missing(broker, request)
    if missing:
        return Later(_after_creation(broker, ctx, request, missing))
    if broker.peers.suspects.about(_leaders(broker, request)):
        return Later(_after_decision(broker, ctx, request))
    return run_steps(_some_topics(broker, ctx, request))


def _check_names(version: int, topics: Iterable[MetadataRequestTopic]) -> None:
    for topic in topics:
        if version < FIRST_VERSION_BY_ID and topic.name is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Metadata v{version} needs a name for every topic: add the names, or use v12 or newer.",
            )
        if version < FIRST_VERSION_BY_ID and topic.topic_id != ZERO_UUID:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Metadata v{version} does not support topic ids: use v12 or newer."
            )


def _missing(broker: Broker, request: MetadataRequest) -> list[str]:
    if not request.allow_auto_topic_creation or not broker.settings.bool("auto.create.topics.enable"):
        return []
    known = broker.metadata.image.topics
    return [
        topic.name
        for topic in request.topics or ()
        if topic.name is not None
        and topic.topic_id == ZERO_UUID
        and topic.name not in known
        and name_problem(topic.name) is None
    ]


async def _after_creation(
    broker: Broker, ctx: RequestContext, request: MetadataRequest, missing: list[str]
) -> MetadataResponse:
    refused, throttle_ms = await broker.topic_creator.create_missing(ctx, missing)  # a refused topic is missing below
    if broker.audit is not None:
        codes = {name: error.code.name for name, error in islice(refused.items(), MAX_NAMES)}
        broker.audit.changed(ctx, "CREATE", "TOPIC", missing, codes or OK)
    answer = _answer(broker, ctx, request, await settled(run_steps(_named(broker, ctx, request))))
    answer.throttle_time_ms = max(answer.throttle_time_ms, throttle_ms)
    return answer


def _leaders(broker: Broker, request: MetadataRequest) -> Iterator[int]:
    image = broker.metadata.image
    for asked in request.topics or ():
        topic = image.topics.get(asked.name) if asked.name else image.topics_by_id.get(asked.topic_id)
        if topic is not None:
            for partition in topic.partitions.values():
                yield partition.leader


async def _after_decision(broker: Broker, ctx: RequestContext, request: MetadataRequest) -> MetadataResponse:
    suspects = broker.peers.suspects
    while suspects.about(_leaders(broker, request)):
        await suspects.next_decision()
    return _answer(broker, ctx, request, await settled(run_steps(_named(broker, ctx, request))))


# --- every topic ----------------------------------------------------------------------------------


def _all_topics(broker: Broker, ctx: RequestContext, request: MetadataRequest) -> Steps[MetadataResponse | Encoded]:
    key = (
        "metadata",
        ctx.api_version,
        ctx.listener_name,
        request.include_topic_authorized_operations,
        request.include_cluster_authorized_operations,
    )
    if broker.faults.rules or broker.access is not None:  # the response is changed after this handler
        return (yield from _described(broker, ctx, request))
    kept: Encoded | None = broker.metadata.answers.get(key)
    if kept is not None:
        return kept
    if broker.metadata.image.partition_count <= SMALL_ITEMS:
        encoded = Encoded(encode(run_at_once(_described(broker, ctx, request)), ctx.api_version))
        broker.metadata.answers[key] = encoded
        return encoded
    lock = broker.metadata.answers.setdefault(("lock", *key), asyncio.Lock())
    yield lock.acquire()
    try:
        return (yield from _encoded_once(broker, ctx, request, key))
    finally:
        lock.release()


def _encoded_once(
    broker: Broker, ctx: RequestContext, request: MetadataRequest, key: tuple[object, ...]
) -> Steps[Encoded]:
    """Returns the cached response about all topics. Encodes the response in a thread if it is not cached."""
    metadata = broker.metadata
    kept: Encoded | None = metadata.answers.get(key)
    if kept is not None:
        return kept
    image = metadata.image
    box = [(yield from _described(broker, ctx, request))]
    encoded: Encoded = yield encoded_aside(broker.logs.environment.disk, box.pop(), ctx.api_version)
    if metadata.image is image:
        metadata.answers[key] = encoded
    return encoded


def _described(broker: Broker, ctx: RequestContext, request: MetadataRequest) -> Steps[MetadataResponse]:
    view = ClusterView.of(broker.metadata.image, ctx.listener_name)
    operations = _topic_operations(request)
    topics = []
    for topic in view.image.topics.values():
        topics.append((yield from _whole_topic(view, topic, ctx.api_version, operations)))
        yield None
    return _answer(broker, ctx, request, topics)


# --- topics by name or id -------------------------------------------------------------------------


def _some_topics(broker: Broker, ctx: RequestContext, request: MetadataRequest) -> Steps[MetadataResponse | Encoded]:
    topics = yield from _named(broker, ctx, request)
    few = sum(len(topic.partitions) for topic in topics) <= SMALL_ITEMS
    box = [_answer(broker, ctx, request, topics)]
    del topics  # so that the thread that encodes the response frees it
    if (
        few or ctx.large or broker.faults.rules or broker.access is not None
    ):  # the response is changed after this handler
        return box.pop()
    encoded: Encoded = yield encoded_aside(broker.logs.environment.disk, box.pop(), ctx.api_version)
    return encoded


def _named(broker: Broker, ctx: RequestContext, request: MetadataRequest) -> Steps[list[MetadataResponseTopic]]:
    view = ClusterView.of(broker.metadata.image, ctx.listener_name)
    operations = _topic_operations(request)
    answered: dict[str | bytes, MetadataResponseTopic] = {}
    for asked in request.topics or ():
        by_id = asked.topic_id != ZERO_UUID
        key = asked.topic_id if by_id or asked.name is None else asked.name
        if key in answered:
            continue
        found = view.image.topics_by_id.get(asked.topic_id) if by_id else view.image.topics.get(asked.name or "")
        if found is not None:
            answered[key] = yield from _whole_topic(view, found, ctx.api_version, operations)
        elif by_id:
            answered[key] = MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id
            )
        else:
            answered[key] = _unknown(asked.name, operations)
    return sorted(answered.values(), key=_place)


def _place(topic: MetadataResponseTopic) -> int:
    """Returns the sort key that puts topics in Kafka's order: unknown ids, then known topics, then unknown names."""
    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_ID:
        return 0
    return 2 if topic.error_code else 1


def _unknown(name: str | None, operations: int) -> MetadataResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name is None:
        code = ErrorCode.INVALID_REQUEST
    elif name_problem(name) is not None:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return MetadataResponseTopic(
        error_code=code,
        name=name or "",
        is_internal=name in UNLISTED_TOPICS,
        topic_authorized_operations=operations,
    )


def _topic_operations(request: MetadataRequest) -> int:
    return TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED


def _partitions(view: ClusterView, topic: TopicImage, version: int) -> Iterator[MetadataResponsePartition]:
    for index, partition in topic.partitions.items():
        error, leader, offline = view.partition(partition)
        if error is ErrorCode.LISTENER_NOT_FOUND and version < FIRST_VERSION_WITH_LISTENER_ERROR:
            error = _ERROR_BEFORE_IT
        replicas, isr = list(partition.replicas), list(partition.isr)
        if version == 0 and offline:
            # The oldest clients need the address of every broker that the response mentions.
            replicas = [broker_id for broker_id in replicas if broker_id in view.alive]
            isr = [broker_id for broker_id in isr if broker_id in view.alive]
            error = error or ErrorCode.REPLICA_NOT_AVAILABLE
        yield MetadataResponsePartition(
            error_code=error,
            partition_index=index,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=isr,
            offline_replicas=offline,
        )


def _whole_topic(view: ClusterView, topic: TopicImage, version: int, operations: int) -> Steps[MetadataResponseTopic]:
    partitions = []
    for partition in _partitions(view, topic, version):
        partitions.append(partition)
        yield None
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in UNLISTED_TOPICS,
        partitions=partitions,
        topic_authorized_operations=operations,
    )


def _answer(
    broker: Broker, ctx: RequestContext, request: MetadataRequest, topics: list[MetadataResponseTopic]
) -> MetadataResponse:
    image = broker.metadata.image
    brokers = ClusterView.of(image, ctx.listener_name).alive
    if request.topics:
        brokers |= _lingering(broker, ctx)
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=image.brokers[broker_id].rack
            )
            for broker_id, endpoint in brokers.items()
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _lingering(broker: Broker, ctx: RequestContext) -> dict[int, Endpoint]:
    known = broker.metadata.image.brokers
    return {
        broker_id: known[broker_id].endpoints[ctx.listener_name]
        for broker_id in broker.peers.suspects.lingering()
        if broker_id in known and ctx.listener_name in known[broker_id].endpoints
    }
