"""Handles ShareGroupHeartbeat and ShareGroupDescribe, and decides on the offsets of share groups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.groups import room
from penstock.groups.reconciliation import JOIN_EPOCH
from penstock.groups.share import journal
from penstock.groups.share.group import ASSIGNOR, ShareGroup, ShareMember
from penstock.groups.share.heartbeat import check_request, heartbeat, start_timers
from penstock.groups.share.states import forget, initialized
from penstock.groups.undo import add_group
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_76_share_group_heartbeat import ShareGroupHeartbeatResponse
from penstock.protocol.messages.api_77_share_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.groups.consumer.group import Partitions
    from penstock.groups.shard import GroupShard
    from penstock.groups.turn import Caller, Turn
    from penstock.metadata.image import MetadataImage
    from penstock.protocol.messages.api_76_share_group_heartbeat import ShareGroupHeartbeatRequest


def share_heartbeat(
    shard: GroupShard, turn: Turn, request: ShareGroupHeartbeatRequest, caller: Caller
) -> ShareGroupHeartbeatResponse:
    """Handles a ShareGroupHeartbeat request. A request that is refused writes no record."""
    try:
        check_request(request)
        room.check_share_heartbeat(shard, turn, request, caller)
        group = _group(shard, request)
        limits = shard.share_limits(request.group_id)
        response = heartbeat(turn, shard.image, limits, group, request, caller)
    except KafkaError as error:
        turn.records.clear()
        turn.effects.clear()
        return ShareGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
    if turn.records and request.group_id not in shard.groups:
        add_group(shard.groups, turn, group)
        start_timers(turn, group, limits)
    return response


def _group(shard: GroupShard, request: ShareGroupHeartbeatRequest) -> ShareGroup:
    group = shard.groups.get(request.group_id)
    if group is None and request.member_epoch == JOIN_EPOCH:
        return _new_group(shard, request.group_id)
    return share_group(shard, request.group_id)


def _new_group(shard: GroupShard, group_id: str) -> ShareGroup:
    return ShareGroup(group_id, epoch=shard.retired_epochs.get(group_id, 0))


def share_group(shard: GroupShard, group_id: str) -> ShareGroup:
    """Returns the share group. Raises GROUP_ID_NOT_FOUND if it does not exist or is a group of another type."""
    group = shard.groups.get(group_id)
    if not isinstance(group, ShareGroup):
        reason = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a share group."
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, reason)
    return group


def empty_share_group(shard: GroupShard, group_id: str) -> ShareGroup:
    """Returns the share group, so that its offsets can be changed. Raises NON_EMPTY_GROUP if it has members."""
    group = share_group(shard, group_id)
    if group.members:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} has members: stop them first.")
    return group


def describe_share_group(shard: GroupShard, turn: Turn, group_id: str) -> DescribedGroup:
    try:
        group = share_group(shard, group_id)
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=ASSIGNOR,
        members=[_member(shard.image, member) for member in group.members.values()],
    )


def _member(image: MetadataImage, member: ShareMember) -> Member:
    return Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        assignment=_assignment(image, member.assigned),
    )


def _assignment(image: MetadataImage, partitions: Partitions) -> Assignment:
    """Returns the assignment as topics with names. Deleted topics are left out, because they have no name."""
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=image.topics_by_id[topic_id].name, partitions=sorted(indexes))
            for topic_id, indexes in sorted(partitions.items())
            if topic_id in image.topics_by_id
        ]
    )


# --- offsets


def states_initialized(shard: GroupShard, turn: Turn, group_id: str, slots: Iterable[tuple[bytes, int]]) -> None:
    """Marks partitions as initialized, because the share coordinator has created their states.

    No-op if the group no longer exists.
    """
    group = shard.groups.get(group_id)
    if isinstance(group, ShareGroup):
        initialized(turn, shard.image, group, slots)


def initialized_partitions(shard: GroupShard, group_id: str) -> dict[bytes, list[int]]:
    """Returns the partitions for which the group has offsets; an empty dict if the group does not exist."""
    if group_id not in shard.groups:
        return {}
    states = share_group(shard, group_id).states
    return {topic_id: sorted(indexes) for topic_id, indexes in sorted(states.initialized.items())}


def begin_alter(shard: GroupShard, turn: Turn, group_id: str, slots: Mapping[bytes, frozenset[int]]) -> int:
    """Begins to alter offsets of an empty group. Returns the new group epoch, which fences writes with older epochs.

    If the group does not exist, it is created, as in Kafka.
    """
    group = empty_share_group(shard, group_id) if group_id in shard.groups else _new_group(shard, group_id)
    epoch = group.epoch + 1
    journal.record_epoch(turn, group_id, epoch, group.metadata_hash)
    names = {**group.states.names, **{each: shard.image.topics_by_id[each].name for each in slots}}
    initializing = {
        each: group.states.initializing.get(each, frozenset()) | indexes
        for each, indexes in (*group.states.initializing.items(), *slots.items())
    }
    journal.record_states(turn, group_id, replace(group.states, initializing=initializing, names=names))
    return epoch


def begin_delete(shard: GroupShard, turn: Turn, group_id: str, topic_ids: Iterable[bytes]) -> list[tuple[bytes, int]]:
    """Begins to delete an empty group's offsets for some topics. Returns the partitions whose states must be deleted.

    Ignores topics for which the group has no offsets.
    """
    group = empty_share_group(shard, group_id)
    wanted = frozenset(topic_ids)
    slots = [slot for slot in group.state_keys() if slot[0] in wanted]
    if slots:
        deleting = group.states.deleting | {topic_id for topic_id, _ in slots}
        journal.record_states(turn, group_id, replace(group.states, deleting=deleting))
    return slots


def finish_delete(shard: GroupShard, turn: Turn, group_id: str, topic_ids: Iterable[bytes]) -> None:
    """Removes topics from the group, because the share coordinator has deleted their states."""
    group = shard.groups.get(group_id)
    if isinstance(group, ShareGroup):
        forget(turn, group, topic_ids)
