"""AlterShareGroupOffsets v0 (KIP-932): sets the start offsets of an empty share group.

First the group's epoch increases. The share coordinators store the new epoch as the state epoch. So a share-partition
leader that still has the old state is fenced at its next write.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import committed
from penstock.broker.requests.slices import SLICE_PARTITIONS, starts
from penstock.groups import share_requests
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_91_alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from penstock.share.state_journal import ShareKey

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: Broker, ctx: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    try:
        return await _handle(broker, ctx, request)
    except KafkaError as error:  # concerns the whole request
        return AlterShareGroupOffsetsResponse(error_code=error.code, error_message=error.message)


async def _handle(
    broker: Broker, ctx: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    group_id = request.group_id
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id is empty: give a group id.")
    image = broker.metadata.image
    responses = []
    wanted: list[tuple[ShareKey, int, AlterShareGroupOffsetsResponsePartition]] = []
    seen: set[ShareKey] = set()
    count = 0
    for asked in request.topics:
        topic = image.topics.get(asked.topic_name)
        response = AlterShareGroupOffsetsResponseTopic(topic_name=asked.topic_name)
        responses.append(response)
        for partition in asked.partitions:
            result = AlterShareGroupOffsetsResponsePartition(partition_index=partition.partition_index)
            response.partitions.append(result)
            count += 1
            if count % SLICE_PARTITIONS == 0:
                await broker.slices.turn()
            if topic is None or partition.partition_index not in topic.partitions:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                result.error_message = "The topic or partition does not exist: check its name."
                continue
            response.topic_id = topic.topic_id
            key = ShareKey(group_id, topic.topic_id, partition.partition_index)
            if key in seen or partition.start_offset < 0:
                result.error_code = ErrorCode.INVALID_REQUEST
                result.error_message = (
                    "The offset is negative, or the partition is named twice: give one offset of 0 or more."
                )
                continue
            seen.add(key)
            wanted.append((key, partition.start_offset, result))
    await _alter(broker, group_id, wanted)
    return AlterShareGroupOffsetsResponse(responses=responses)


async def _alter(
    broker: Broker, group_id: str, wanted: list[tuple[ShareKey, int, AlterShareGroupOffsetsResponsePartition]]
) -> None:
    indexes: dict[bytes, set[int]] = {}
    for key, _, _ in wanted:
        indexes.setdefault(key.topic_id, set()).add(key.partition)
    slots = {topic_id: frozenset(some) for topic_id, some in indexes.items()}
    coordinator = broker.groups.coordinator(group_id)
    epoch = await committed(
        coordinator.run(lambda shard, turn: share_requests.begin_alter(shard, turn, group_id, slots))
    )

    async def one(key: ShareKey, start_offset: int, result: AlterShareGroupOffsetsResponsePartition) -> None:
        try:
            await broker.persister.initialize(key, epoch, start_offset)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message

    for first in starts(len(wanted)):
        await asyncio.gather(*(one(*each) for each in wanted[first : first + SLICE_PARTITIONS]))
    done = [(key.topic_id, key.partition) for key, _, result in wanted if not result.error_code]
    await committed(coordinator.run(lambda shard, turn: share_requests.states_initialized(shard, turn, group_id, done)))
