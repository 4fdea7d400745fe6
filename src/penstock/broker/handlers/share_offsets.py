"""Helps the share group handlers: checks that share groups are enabled, finds end offsets, and deletes share states."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import committed
from penstock.groups import share_requests
from penstock.groups.share.group import ShareGroup
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.protocol.vocabulary import LATEST, NO_OFFSET
from penstock.share.state_journal import ShareKey

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

LANE = "share offsets"


async def end_offset(broker: Broker, topic: str, index: int) -> int:
    """Returns the high watermark of a partition, which its leader reports; -1 if the leader does not answer."""
    partition = broker.metadata.image.partition(topic, index)
    if partition is None or partition.leader < 0:
        return NO_OFFSET
    try:
        if partition.leader == broker.node_id:
            return broker.partitions.get(topic, index).leader_log().high_watermark
        wanted = ListOffsetsTopic(
            name=topic, partitions=[ListOffsetsPartition(partition_index=index, timestamp=LATEST)]
        )
        answer = await broker.peers.ask(partition.leader, ListOffsetsRequest(topics=[wanted]), lane=LANE)
    except KafkaError:
        return NO_OFFSET
    offset: int = answer.topics[0].partitions[0].offset
    return offset


async def delete_states(broker: Broker, group_id: str, slots: Iterable[tuple[bytes, int]]) -> None:
    """Deletes the states of partitions at their share coordinators. Raises KafkaError if a state can't be deleted."""
    await asyncio.gather(*(broker.persister.delete(ShareKey(group_id, *slot)) for slot in slots))


async def delete_share_states(broker: Broker, group_id: str) -> None:
    """Deletes all states of an empty share group. No-op for a group of another type.

    Raises KafkaError for a share group with members, or if a state can't be deleted.
    """
    coordinator = broker.groups.coordinator(group_id)
    group = coordinator.active().groups.get(group_id)
    if not isinstance(group, ShareGroup):
        return
    topic_ids = {topic_id for topic_id, _ in group.state_keys()}
    slots = await committed(
        coordinator.run(lambda shard, turn: share_requests.begin_delete(shard, turn, group_id, topic_ids))
    )
    await delete_states(broker, group_id, slots)
