"""DescribeShareGroupOffsets v0-1 (KIP-932): returns the start offsets of share groups; since v1 also their lag.

The offsets come from the share coordinators. The lag is the number of records after the start offset that are neither
acknowledged nor archived; -1 if it is unknown.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import islice
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
from penstock.protocol.uuid import ZERO_UUID
from penstock.protocol.vocabulary import NO_OFFSET
from penstock.share.state_journal import ShareKey

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.groups.shard import GroupShard
    from penstock.groups.turn import Turn

LAG_SINCE = 1
#: Partitions that are described at the same time.
AT_ONCE = 200
Known = dict[bytes, dict[int, None]]  # topic id → the partitions that have a state, in order


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
        wanted = [(image.topics_by_id[each].name, list(known[each])) for each in known if each in image.topics_by_id]
    else:
        wanted = [(topic.topic_name, topic.partitions) for topic in group.topics]
    slots = [(name, index) for name, indexes in wanted for index in indexes]
    answers: list[DescribeShareGroupOffsetsResponsePartition] = []
    for first in range(0, len(slots), AT_ONCE):
        some = [_partition(broker, group_id, *slot, known, with_lag) for slot in slots[first : first + AT_ONCE]]
        answers += await asyncio.gather(*some)
        await broker.slices.turn()
    following = iter(answers)
    return DescribeShareGroupOffsetsResponseGroup(
        group_id=group_id,
        topics=[
            DescribeShareGroupOffsetsResponseTopic(
                topic_name=name,
                topic_id=image.topics[name].topic_id if name in image.topics else ZERO_UUID,
                partitions=list(islice(following, len(indexes))),
            )
            for name, indexes in wanted
        ],
    )


def _initialized(group_id: str, shard: GroupShard, turn: Turn) -> Known:
    found = share_requests.initialized_partitions(shard, group_id)
    return {topic_id: dict.fromkeys(indexes) for topic_id, indexes in found.items()}


async def _partition(
    broker: Broker, group_id: str, topic: str, index: int, known: Known, with_lag: bool
) -> DescribeShareGroupOffsetsResponsePartition:
    found = broker.metadata.image.topics.get(topic)
    if found is None:
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message="The topic does not exist: check its name.",
        )
    answer = DescribeShareGroupOffsetsResponsePartition(partition_index=index, start_offset=NO_OFFSET)
    if index not in known.get(found.topic_id, ()):
        return answer
    key = ShareKey(group_id, found.topic_id, index)
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
