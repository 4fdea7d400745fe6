"""What groups, members and offsets take of a coordinator's memory, and whether there is room for one more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.consumer.group import JOIN_EPOCH, ConsumerGroup, ConsumerMember
from penstock.groups.offsets import OFFSET_BYTES, TopicPartition, size_of
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.groups.shard import Group, GroupShard
    from penstock.groups.turn import Turn
    from penstock.protocol.messages.api_11_join_group import JoinGroupRequest
    from penstock.protocol.messages.api_68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

GROUP_BYTES = 1000
MEMBER_BYTES = 1500
TOPIC_NAME_BYTES = 100


def held_by(group: Group) -> int:
    if isinstance(group, ClassicGroup):
        return GROUP_BYTES + MEMBER_BYTES * (len(group.members) + len(group.pending_members)) + group.metadata_bytes
    return GROUP_BYTES + sum(map(_held_by_member, group.members.values()))


def _held_by_member(member: ConsumerMember) -> int:
    return _member_bytes(member.topics) + sum(
        len(each[1]) for each in (member.classic.protocols if member.classic else ())
    )


def _member_bytes(topics: Collection[str]) -> int:
    return MEMBER_BYTES + TOPIC_NAME_BYTES * len(topics)


def admits_join(shard: GroupShard, turn: Turn, group: Group | None, request: JoinGroupRequest) -> bool:
    """Only growth needs room: a member that comes back with what it had is always let in."""
    size = MEMBER_BYTES + sum(len(protocol.metadata) for protocol in request.protocols)
    if group is None:
        size += GROUP_BYTES
    elif isinstance(group, ClassicGroup):
        known = group.members.get(group.static_members.get(request.group_instance_id or "", request.member_id))
        size -= MEMBER_BYTES + known.metadata_bytes if known is not None else 0
    else:
        member = group.members.get(group.static_members.get(request.group_instance_id or "", request.member_id))
        size -= _held_by_member(member) if member is not None else 0
    return shard.allowance.grant(size, turn.now_ms)


def check_heartbeat(shard: GroupShard, turn: Turn, request: ConsumerGroupHeartbeatRequest) -> None:
    """Raises POLICY_VIOLATION if a member joins, or subscribes to more, and there is no room for that."""
    topics = request.subscribed_topic_names
    if request.member_epoch < JOIN_EPOCH or (request.member_epoch > JOIN_EPOCH and topics is None):
        return
    group = shard.groups.get(request.group_id)
    known = _known_consumer(group, request)
    size = _member_bytes(topics or ()) + (GROUP_BYTES if group is None else 0)
    if not shard.allowance.grant(size - (_held_by_member(known) if known is not None else 0), turn.now_ms):
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            "The coordinator holds as many groups and members as penstock.coordinator.max.bytes allows.",
        )


def _known_consumer(group: Group | None, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember | None:
    if not isinstance(group, ConsumerGroup):
        return None
    return group.members.get(group.static_members.get(request.instance_id or "", request.member_id))


def admits_offset(shard: GroupShard, turn: Turn, group_id: str, partition: TopicPartition, metadata: str) -> bool:
    """An offset that takes the place of another one needs room only for longer metadata."""
    known = shard.offsets.committed.get(group_id, {}).get(partition)
    size = OFFSET_BYTES + len(metadata) - (size_of(known) if known is not None else 0)
    if group_id not in shard.groups:
        size += GROUP_BYTES
    return shard.allowance.grant(size, turn.now_ms)
