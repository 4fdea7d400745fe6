"""DescribeShareGroupOffsets v0-1 (KIP-932): returns the start offsets of share groups; since v1 also their lag.

The offsets come from the share coordinators. The lag is the number of records after the start offset that are neither
acknowledged nor archived; -1 if it is unknown.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import committed
from penstock.broker.handlers.share_offsets import end_offset
from penstock.groups import share_requests
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_90_describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from penstock.protocol.vocabulary import NO_OFFSET
from penstock.share.state_journal import ShareKey

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.groups.shard import GroupShard
    from penstock.groups.turn import Turn

LAG_SINCE = 1


async def handle(
    broker: Broker, ctx: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    return DescribeShareGroupOffsetsResponse(
        groups=[await _describe(broker, group, ctx.api_version >= LAG_SINCE) for group in request.groups]
    )


async def _describe(
    broker: Broker, group: DescribeShareGroupOffsetsRequestGroup, with_lag: bool
) -> DescribeShareGroupOffsetsResponseGroup:
    group_id = group.group_id
    try:
        coordinator = broker.groups.coordinator(group_id)
        known = await committed(coordinator.run(partial(_initialized, group_id)))
    except KafkaError as error:
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=group_id, error_code=error.code, error_message=error.message
        )
    image = broker.metadata.image
    if group.topics is None:
        wanted = [(image.topics_by_id[each].name, known[each]) for each in known if each in image.topics_by_id]
    else:
        wanted = [(topic.topic_name, topic.partitions) for topic in group.topics]
    topics = await asyncio.gather(*(_topic(broker, group_id, *topic, known, with_lag) for topic in wanted))
    return DescribeShareGroupOffsetsResponseGroup(group_id=group_id, topics=topics)


def _initialized(group_id: str, shard: GroupShard, turn: Turn) -> dict[bytes, list[int]]:
    return share_requests.initialized_partitions(shard, group_id)


async def _topic(
    broker: Broker, group_id: str, name: str, indexes: list[int], known: dict[bytes, list[int]], with_lag: bool
) -> DescribeShareGroupOffsetsResponseTopic:
    topic = broker.metadata.image.topics.get(name)
    if topic is None:
        return DescribeShareGroupOffsetsResponseTopic(
            topic_name=name,
            partitions=[
                DescribeShareGroupOffsetsResponsePartition(
                    partition_index=index,
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    error_message="The topic does not exist: check its name.",
                )
                for index in indexes
            ],
        )
    held = known.get(topic.topic_id, [])
    partitions = await asyncio.gather(
        *(
            _partition(broker, ShareKey(group_id, topic.topic_id, index), name, index in held, with_lag)
            for index in indexes
        )
    )
    return DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic.topic_id, partitions=partitions)


async def _partition(
    broker: Broker, key: ShareKey, topic: str, known: bool, with_lag: bool
) -> DescribeShareGroupOffsetsResponsePartition:
    answer = DescribeShareGroupOffsetsResponsePartition(partition_index=key.partition, start_offset=NO_OFFSET)
    if not known:
        return answer
    image = broker.metadata.image.partition(topic, key.partition)
    try:
        summary = await broker.persister.summary(key, image.leader_epoch if image is not None else 0)
    except KafkaError as error:
        answer.error_code, answer.error_message = error.code, error.message
        return answer
    answer.start_offset, answer.leader_epoch = summary.start_offset, max(0, summary.leader_epoch)
    if with_lag and summary.start_offset != NO_OFFSET and summary.complete_count >= 0:
        end = await end_offset(broker, topic, key.partition)
        if end != NO_OFFSET:
            answer.lag = max(0, end - summary.start_offset - summary.complete_count)
    return answer
