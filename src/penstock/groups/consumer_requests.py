"""Finds or creates the group for ConsumerGroupHeartbeat and ConsumerGroupDescribe, and passes the request on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups import room
from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.journal import record_deletion
from penstock.groups.consumer.advance import preferred_assignor
from penstock.groups.consumer.group import ConsumerGroup, ConsumerMember, Partitions
from penstock.groups.consumer.heartbeat import check_request, heartbeat
from penstock.groups.consumer.timing import start_timers
from penstock.groups.migration import release_parked, upgrade
from penstock.groups.reconciliation import JOIN_EPOCH, indexes_of
from penstock.groups.share.group import ShareGroup
from penstock.groups.streams.group import StreamsGroup
from penstock.groups.undo import add_group
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_68_consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from penstock.protocol.messages.api_69_consumer_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)

if TYPE_CHECKING:
    from penstock.groups.shard import GroupShard
    from penstock.groups.turn import Caller, Turn
    from penstock.metadata.image import MetadataImage
    from penstock.protocol.messages.api_68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def consumer_heartbeat(
    shard: GroupShard, turn: Turn, request: ConsumerGroupHeartbeatRequest, caller: Caller
) -> ConsumerGroupHeartbeatResponse:
    """Handles a ConsumerGroupHeartbeat request. A request that is refused writes no record."""
    try:
        check_request(turn, request, caller.api_version)
        room.check_heartbeat(shard, turn, request, caller)
        group = _group(shard, turn, request)
        response = heartbeat(shard, turn, group, request, caller)
    except KafkaError as error:
        turn.records.clear()
        return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
    before = shard.groups.get(request.group_id)
    if turn.records and request.member_epoch >= JOIN_EPOCH and before is not group:
        if isinstance(before, ClassicGroup):
            release_parked(turn, before)
        add_group(shard.groups, turn, group)
        start_timers(turn, group, shard.limits(request.group_id))
    return response


def _group(shard: GroupShard, turn: Turn, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroup:
    group_id = request.group_id
    group = shard.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return group
    if request.member_epoch != JOIN_EPOCH:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found: join it.")
    if group is None:
        return ConsumerGroup(group_id)
    if isinstance(group, ShareGroup | StreamsGroup):
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group: use another group id."
        )
    if group.members or group.pending_members:
        return upgrade(turn, shard.image, group)
    record_deletion(turn, group)  # an empty classic group becomes a consumer group with the same offsets
    return ConsumerGroup(group_id)


def describe_consumer_group(shard: GroupShard, turn: Turn, group_id: str) -> DescribedGroup:
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        reason = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
        return DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=reason,
        )
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=preferred_assignor(turn, group.members),
        members=[_member(shard.image, group, member) for member in group.members.values()],
    )


def _member(image: MetadataImage, group: ConsumerGroup, member: ConsumerMember) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex or "",
        assignment=_assignment(image, _held(member)),
        target_assignment=_assignment(image, group.target.get(member.member_id, {})),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _held(member: ConsumerMember) -> Partitions:
    """Returns the partitions that the member holds, including partitions that it still has to revoke."""
    held = indexes_of(member.assigned)
    for topic_id, indexes in indexes_of(member.pending_revocation).items():
        held[topic_id] = held.get(topic_id, frozenset()) | indexes
    return held


def _assignment(image: MetadataImage, partitions: Partitions) -> Assignment:
    """Returns the assignment as topics with names. Deleted topics are left out, because they have no name."""
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=image.topics_by_id[topic_id].name, partitions=sorted(indexes))
            for topic_id, indexes in sorted(partitions.items())
            if topic_id in image.topics_by_id
        ]
    )
