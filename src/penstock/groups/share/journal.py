"""Writes and applies the records of share groups. No other module writes or applies them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.groups.consumer.group import Partitions
from penstock.groups.share.group import ShareGroup, ShareMember, StatePartitions
from penstock.protocol.persisted.group.share_group_current_member_assignment import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from penstock.protocol.persisted.group.share_group_member_metadata import (
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
)
from penstock.protocol.persisted.group.share_group_metadata import ShareGroupMetadataKey, ShareGroupMetadataValue
from penstock.protocol.persisted.group.share_group_state_partition_metadata import (
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    TopicInfo,
    TopicPartitionsInfo,
)
from penstock.protocol.persisted.group.share_group_target_assignment_member import (
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    TopicPartition,
)
from penstock.protocol.persisted.group.share_group_target_assignment_metadata import (
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)

if TYPE_CHECKING:
    from penstock.groups.turn import JournalRecord, Turn

SHARE_KEYS = (
    ShareGroupMetadataKey,
    ShareGroupMemberMetadataKey,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupStatePartitionMetadataKey,
)
STABLE = 0

# --- writing


def record_member(turn: Turn, group_id: str, member: ShareMember) -> None:
    turn.record(
        ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        ShareGroupMemberMetadataValue(
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=list(member.topics),
        ),
    )


def record_epoch(turn: Turn, group_id: str, epoch: int, metadata_hash: int) -> None:
    turn.record(
        ShareGroupMetadataKey(group_id=group_id), ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    )


def record_target(turn: Turn, group_id: str, member_id: str, partitions: Partitions) -> None:
    turn.record(
        ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ShareGroupTargetAssignmentMemberValue(
            topic_partitions=[
                TopicPartition(topic_id=topic_id, partitions=sorted(indexes))
                for topic_id, indexes in sorted(partitions.items())
            ]
        ),
    )


def record_target_epoch(turn: Turn, group_id: str, epoch: int) -> None:
    turn.record(
        ShareGroupTargetAssignmentMetadataKey(group_id=group_id),
        ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=turn.wall_ms),
    )


def record_current(turn: Turn, group_id: str, member: ShareMember) -> None:
    turn.record(
        ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        ShareGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=STABLE,
            assigned_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(indexes))
                for topic_id, indexes in sorted(member.assigned.items())
            ],
        ),
    )


def record_states(turn: Turn, group_id: str, states: StatePartitions) -> None:
    def listed(partitions: Mapping[bytes, frozenset[int]]) -> list[TopicPartitionsInfo]:
        return [
            TopicPartitionsInfo(
                topic_id=topic_id, topic_name=states.names.get(topic_id, ""), partitions=sorted(indexes)
            )
            for topic_id, indexes in sorted(partitions.items())
            if indexes
        ]

    turn.record(
        ShareGroupStatePartitionMetadataKey(group_id=group_id),
        ShareGroupStatePartitionMetadataValue(
            initializing_topics=listed(states.initializing),
            initialized_topics=listed(states.initialized),
            deleting_topics=[
                TopicInfo(topic_id=topic_id, topic_name=states.names.get(topic_id, ""))
                for topic_id in sorted(states.deleting)
            ],
        ),
    )


def erase_member(turn: Turn, group_id: str, member_id: str) -> None:
    turn.record(ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None)
    turn.record(ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None)
    turn.record(ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None)


def erase_group(turn: Turn, group: ShareGroup) -> None:
    for member_id in group.members:
        erase_member(turn, group.group_id, member_id)
    turn.record(ShareGroupStatePartitionMetadataKey(group_id=group.group_id), None)
    turn.record(ShareGroupTargetAssignmentMetadataKey(group_id=group.group_id), None)
    turn.record(ShareGroupMetadataKey(group_id=group.group_id), None)


# --- applying


def apply(group: ShareGroup, record: JournalRecord) -> None:
    """Applies a record to a group. The record that deletes a group is applied by `GroupShard`."""
    key, value = record
    match key:
        case ShareGroupMetadataKey():
            if value is not None:
                group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
        case ShareGroupMemberMetadataKey():
            _apply_member(group, key.member_id, value)
        case ShareGroupTargetAssignmentMetadataKey():
            group.assignment_epoch = value.assignment_epoch if value is not None else 0
            group.assignment_ms = value.assignment_timestamp if value is not None else 0
        case ShareGroupTargetAssignmentMemberKey():
            if value is None:
                group.target.pop(key.member_id, None)
            else:
                group.target[key.member_id] = {
                    each.topic_id: frozenset(each.partitions) for each in value.topic_partitions
                }
        case ShareGroupCurrentMemberAssignmentKey():
            _apply_current(group, key.member_id, value)
        case ShareGroupStatePartitionMetadataKey():
            group.states = _read_states(value)


def _apply_member(group: ShareGroup, member_id: str, value: ShareGroupMemberMetadataValue | None) -> None:
    if value is None:
        group.members.drop(member_id)
        timer = group.sessions.pop(member_id, None)
        if timer is not None:
            timer.cancel()
        return
    group.members.put(
        replace(
            group.members.get(member_id) or ShareMember(member_id),
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=tuple(value.subscribed_topic_names),
        )
    )


def _apply_current(group: ShareGroup, member_id: str, value: ShareGroupCurrentMemberAssignmentValue | None) -> None:
    known = group.members.get(member_id)
    if value is None:
        if known is not None:
            group.members.put(replace(known, epoch=0, previous_epoch=-1, assigned={}))
        return
    group.members.put(
        replace(
            known or ShareMember(member_id),
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            assigned={each.topic_id: frozenset(each.partitions) for each in value.assigned_partitions},
        )
    )


def _read_states(value: ShareGroupStatePartitionMetadataValue | None) -> StatePartitions:
    if value is None:
        return StatePartitions()
    names = {each.topic_id: each.topic_name for each in (*value.initializing_topics, *value.initialized_topics)}
    return StatePartitions(
        {each.topic_id: frozenset(each.partitions) for each in value.initializing_topics},
        {each.topic_id: frozenset(each.partitions) for each in value.initialized_topics},
        frozenset(each.topic_id for each in value.deleting_topics),
        {**names, **{each.topic_id: each.topic_name for each in value.deleting_topics}},
    )
