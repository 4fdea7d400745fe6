"""Limits the memory of a coordinator: admits new groups, members and offsets only while there is memory left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups import sizes
from penstock.groups.classic.group import ClassicGroup, State
from penstock.groups.classic.join import MEMBER_ID_HANDSHAKE_SINCE
from penstock.groups.consumer.group import ConsumerGroup, ConsumerMember
from penstock.groups.offsets import OFFSET_BYTES, size_of
from penstock.groups.reconciliation import JOIN_EPOCH
from penstock.groups.share.group import ShareGroup
from penstock.groups.streams.group import StreamsGroup
from penstock.groups.streams.topology import from_request
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import TopicPartition

if TYPE_CHECKING:
    from penstock.groups.shard import Group, GroupShard
    from penstock.groups.turn import Caller, Turn
    from penstock.protocol.messages.api_11_join_group import JoinGroupRequest
    from penstock.protocol.messages.api_14_sync_group import SyncGroupRequest
    from penstock.protocol.messages.api_68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
    from penstock.protocol.messages.api_76_share_group_heartbeat import ShareGroupHeartbeatRequest
    from penstock.protocol.messages.api_88_streams_group_heartbeat import StreamsGroupHeartbeatRequest


def held_by(group: Group) -> int:
    size = sizes.GROUP_BYTES + sizes.texts(group.group_id, group.protocol_type)
    if isinstance(group, StreamsGroup):
        return size + group.held_bytes
    if not isinstance(group, ClassicGroup):
        return size + group.members.bytes
    size += sizes.ENTRY_BYTES * len(group.subscribed_topics or ())  # the names are part of the members' metadata
    return size + group.members_bytes + sum(map(_pending, group.pending_members))


def _pending(member_id: str) -> int:
    return sizes.MEMBER_BYTES + sizes.texts(member_id)


def _new_group(group_id: str) -> int:
    return sizes.GROUP_BYTES + sizes.texts(group_id)


def admits_join(shard: GroupShard, turn: Turn, group: Group | None, request: JoinGroupRequest, caller: Caller) -> bool:
    """Returns True if there is memory for the member that joins.

    Only additional memory counts: a known member without changes is always admitted.
    """
    instance_id = request.group_instance_id
    names = sizes.texts(request.member_id or instance_id or caller.client_id, instance_id, *caller[:2])
    size = sizes.MEMBER_BYTES + names
    if request.member_id or instance_id is not None or caller.api_version < MEMBER_ID_HANDSHAKE_SINCE:
        size += sizes.protocols((each.name, each.metadata) for each in request.protocols)
    if group is None:
        size += _new_group(request.group_id)
    elif isinstance(group, ClassicGroup | ConsumerGroup):
        known = group.members.get(group.static_members.get(instance_id or "", request.member_id))
        if known is not None:
            size -= known.held_bytes
        elif isinstance(group, ClassicGroup) and request.member_id in group.pending_members:
            size -= _pending(request.member_id)
    return shard.allowance.grant(size, turn.now_ms)


def admits_sync(shard: GroupShard, turn: Turn, group: ClassicGroup, request: SyncGroupRequest) -> bool:
    """Returns True if there is memory for the assignments in a SyncGroup request.

    Only the leader's request has assignments.
    """
    if group.state is not State.COMPLETING_REBALANCE or request.member_id != group.leader:
        return True
    size = 0
    for each in request.assignments:
        member = group.members.get(each.member_id)
        size += len(each.assignment) - len(member.assignment) if member is not None else 0
    return shard.allowance.grant(size, turn.now_ms)


def check_heartbeat(shard: GroupShard, turn: Turn, request: ConsumerGroupHeartbeatRequest, caller: Caller) -> None:
    """Raises POLICY_VIOLATION if there is no memory for a new member or a longer subscription."""
    changes = (request.subscribed_topic_regex, request.rack_id, request.server_assignor)
    unchanged = request.subscribed_topic_names is None and changes == (None, None, None)
    if request.member_epoch < JOIN_EPOCH or (request.member_epoch > JOIN_EPOCH and unchanged):
        return
    group = shard.groups.get(request.group_id)
    known = _known_consumer(group, request)
    was = known or ConsumerMember(request.member_id)  # fields that the request leaves out stay unchanged
    texts = [old if new is None else new for old, new in zip((was.regex, was.rack_id, was.server_assignor), changes)]
    topics = was.topics if request.subscribed_topic_names is None else request.subscribed_topic_names
    size = sizes.MEMBER_BYTES + sizes.texts(request.member_id, request.instance_id, *texts, *caller[:2])
    size += sizes.topics(topics) + (_new_group(request.group_id) if group is None else 0)
    _grant(shard, turn, size - (known.held_bytes if known is not None else 0))


def check_share_heartbeat(shard: GroupShard, turn: Turn, request: ShareGroupHeartbeatRequest, caller: Caller) -> None:
    """Raises POLICY_VIOLATION if there is no memory for a new member or a longer subscription."""
    if request.member_epoch < JOIN_EPOCH or (request.member_epoch > JOIN_EPOCH and not request.subscribed_topic_names):
        return
    group = shard.groups.get(request.group_id)
    known = group.members.get(request.member_id) if isinstance(group, ShareGroup) else None
    size = sizes.MEMBER_BYTES + sizes.texts(request.member_id, request.rack_id, *caller[:2])
    size += sizes.topics(request.subscribed_topic_names or ()) + (_new_group(request.group_id) if group is None else 0)
    _grant(shard, turn, size - (known.held_bytes if known is not None else 0))


def check_streams_heartbeat(
    shard: GroupShard, turn: Turn, request: StreamsGroupHeartbeatRequest, caller: Caller
) -> None:
    """Raises POLICY_VIOLATION if there is no memory for a new member or for the group's topology."""
    if request.member_epoch != JOIN_EPOCH or request.topology is None:
        return
    group = shard.groups.get(request.group_id)
    tags = [text for tag in request.client_tags or () for text in (tag.key, tag.value)]
    endpoint = request.user_endpoint.host if request.user_endpoint is not None else None
    size = sizes.MEMBER_BYTES + sizes.topics(tags)
    size += sizes.texts(request.member_id, request.rack_id, request.process_id, endpoint, *caller[:2])
    if not isinstance(group, StreamsGroup):
        size += (_new_group(request.group_id) if group is None else 0) + from_request(request.topology).held_bytes
    elif request.member_id in group.members:
        size -= group.members[request.member_id].held_bytes
    _grant(shard, turn, size)


def _grant(shard: GroupShard, turn: Turn, size: int) -> None:
    if not shard.allowance.grant(size, turn.now_ms):
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            "The coordinator's memory for groups is full: raise penstock.coordinator.max.bytes or delete groups.",
        )


def _known_consumer(group: Group | None, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember | None:
    if not isinstance(group, ConsumerGroup):
        return None
    return group.members.get(group.static_members.get(request.instance_id or "", request.member_id))


def admits_offset(shard: GroupShard, turn: Turn, group_id: str, partition: TopicPartition, metadata: str) -> bool:
    """Returns True if there is memory for the offset.

    An offset that replaces a committed offset needs memory only if its metadata is longer.
    """
    known = shard.offsets.committed.get(group_id, {}).get(partition)
    size = OFFSET_BYTES + len(metadata) - (size_of(known) if known is not None else 0)
    if group_id not in shard.groups:
        size += _new_group(group_id)
    return shard.allowance.grant(size, turn.now_ms)
