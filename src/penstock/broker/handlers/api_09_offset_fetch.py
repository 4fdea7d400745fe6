"""OffsetFetch v1-10: returns the committed offsets of a group; since v8 of several groups.

A request names topics by name, since v10 by id. Since v2 a request without topics returns all topics. With
`require_stable`, partitions with offsets in an open transaction get UNSTABLE_OFFSET_COMMIT. A request for very many
offsets is served in pieces.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import committed
from penstock.broker.requests.encoded_responses import SMALL_ITEMS, Encoded, encoded_aside
from penstock.broker.requests.pieces import cut, join
from penstock.groups import offset_requests
from penstock.groups.offsets import no_offset
from penstock.protocol.apis import OFFSET_FETCH
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.coordinators.runtime import Coordinator
    from penstock.broker.requests.context import RequestContext
    from penstock.groups.shard import GroupShard
    from penstock.metadata.image import MetadataImage

BATCHED_SINCE = 8
TOPIC_IDS_SINCE = 10
GROUP_ERROR_SINCE = 2
PIECE_PARTITIONS = 500


async def handle(broker: Broker, ctx: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse | Encoded:
    if ctx.api_version < BATCHED_SINCE:
        return await _fetch_single(broker, ctx, request)
    by_id = ctx.api_version >= TOPIC_IDS_SINCE
    fetches = [_fetch(broker, group, request.require_stable, by_id) for group in request.groups]
    response = OffsetFetchResponse(groups=list(await asyncio.gather(*fetches)))
    if ctx.large or broker.faults.rules or broker.access is not None:  # the response is changed after this handler
        return response
    if sum(len(topic.partitions) for group in response.groups for topic in group.topics) <= SMALL_ITEMS:
        return response
    return await encoded_aside(broker.logs.environment.disk, response, ctx.api_version)


async def _fetch(
    broker: Broker, group: OffsetFetchRequestGroup, require_stable: bool, by_id: bool
) -> OffsetFetchResponseGroup:
    image = broker.metadata.image
    unknown = _name_topics(image, group) if by_id else []
    try:
        coordinator = broker.groups.coordinator(group.group_id)
        response = await _offsets(broker, coordinator, group, require_stable)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    if by_id:
        _identify_topics(image, response)
    response.topics += unknown
    return response


async def _offsets(
    broker: Broker, coordinator: Coordinator[GroupShard], group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    async def fetch(some: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
        return await committed(coordinator.run(lambda shard, turn: offset_requests.fetch(shard, some, require_stable)))

    if group.topics is not None or coordinator.active().offsets.count(group.group_id) <= PIECE_PARTITIONS:
        return await fetch(group)
    group.topics = await committed(coordinator.run(lambda shard, turn: offset_requests.topics_of(shard, group)))
    whole: OffsetFetchResponse | None = None
    for piece in cut(OffsetFetchRequest(groups=[group]), BATCHED_SINCE, PIECE_PARTITIONS):
        answer = OffsetFetchResponse(groups=[await fetch(piece.groups[0])])
        whole = answer if whole is None else join(whole, answer, OFFSET_FETCH, OffsetFetchRequest, BATCHED_SINCE)
        await broker.slices.turn()
    assert whole is not None
    return whole.groups[0]


def _name_topics(image: MetadataImage, group: OffsetFetchRequestGroup) -> list[OffsetFetchResponseTopics]:
    """Sets the names of topics requested by id; returns the results for unknown ids."""
    if group.topics is None:
        return []
    unknown: list[OffsetFetchResponseTopics] = []
    named: list[OffsetFetchRequestTopics] = []
    for topic in group.topics:
        known = image.topics_by_id.get(topic.topic_id)
        if known is not None:
            topic.name = known.name
            named.append(topic)
        else:
            partitions = [no_offset(index, ErrorCode.UNKNOWN_TOPIC_ID) for index in topic.partition_indexes]
            unknown.append(OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=partitions))
    group.topics = named
    return unknown


def _identify_topics(image: MetadataImage, response: OffsetFetchResponseGroup) -> None:
    """Sets the topic ids in a response about all topics. Deleted topics have no id and are left out."""
    response.topics = [topic for topic in response.topics if topic.name in image.topics]
    for topic in response.topics:
        topic.topic_id = image.topics[topic.name].topic_id


async def _fetch_single(broker: Broker, ctx: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    asked = request.topics
    group = OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if asked is None
        else [OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes) for topic in asked],
    )
    response = await _fetch(broker, group, request.require_stable, by_id=False)
    if response.error_code and ctx.api_version < GROUP_ERROR_SINCE:
        return OffsetFetchResponse(topics=[_failed(topic, response.error_code) for topic in asked or []])
    return OffsetFetchResponse(
        error_code=response.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in response.topics
        ],
    )


def _failed(topic: OffsetFetchRequestTopic, code: int) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(partition_index=index, committed_offset=-1, metadata="", error_code=code)
            for index in topic.partition_indexes
        ],
    )
