"""Serves members of a consumer group that use the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

For these members the generation is the member epoch, and the coordinator assigns partitions instead of a leader. In
JoinGroup a member reports the partitions that it owns, and the coordinator revokes or adds partitions. SyncGroup
returns the new assignment. If more partitions must be moved, the response to Heartbeat makes the member join again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.groups.consumer import journal
from penstock.groups.consumer.advance import advance
from penstock.groups.consumer.embedded import owned_partitions, read_subscription, version_of, write_assignment
from penstock.groups.consumer.group import ClassicMembership, ConsumerGroup, ConsumerMember
from penstock.groups.consumer.leave import remove
from penstock.groups.consumer.members import check_instance, replace_member
from penstock.groups.consumer.timing import await_rejoin, await_sync, rejoined, synced
from penstock.groups.reconciliation import MemberState, indexes_of, reconcile
from penstock.groups.timing import arm_session
from penstock.groups.undo import keep_member_state
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_11_join_group import JoinGroupRequest, JoinGroupResponse
from penstock.protocol.messages.api_13_leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from penstock.protocol.messages.api_14_sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from penstock.groups.shard import GroupShard
    from penstock.groups.turn import Caller, Turn

MEMBER_ID_HANDSHAKE_SINCE = 4
CONSUMER = "consumer"


def join(
    shard: GroupShard, turn: Turn, group: ConsumerGroup, request: JoinGroupRequest, caller: Caller
) -> JoinGroupResponse:
    """Handles a JoinGroup request and returns the response. Raises KafkaError if the request is refused."""
    protocols = tuple((each.name, each.metadata) for each in request.protocols)
    unknown = not request.member_id
    member_id = request.member_id or turn.new_uuid()
    if member_id not in group.members and len(group.members) >= turn.config.consumer_max_size:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED, "The group is full: raise group.consumer.max.size or stop a member."
        )
    _check_protocols(group, member_id, request.protocol_type, protocols)
    if unknown and request.group_instance_id is None and caller.api_version >= MEMBER_ID_HANDSHAKE_SINCE:
        return JoinGroupResponse(
            member_id=member_id, error_code=ErrorCode.MEMBER_ID_REQUIRED, protocol_name=None, generation_id=-1
        )
    keep_member_state(turn, group, member_id)
    subscription = read_subscription(protocols[0][1])
    member, replaced = _find(turn, group, request.group_instance_id, member_id, unknown)
    updated = replace(
        member,
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms
        if request.rebalance_timeout_ms >= 0
        else request.session_timeout_ms,
        topics=tuple(sorted(set(subscription.topics))),
        regex=None,
        client_id=caller.client_id,
        client_host=caller.client_host,
        classic=ClassicMembership(request.session_timeout_ms, protocols),
    )
    target = advance(turn, shard.image, group, member, updated, replaced, shard.limits(group.group_id))
    stepped = reconcile(
        updated,
        target.epoch,
        target.partitions,
        owned_partitions(subscription, shard.image),
        lambda topic_id, partition: group.owners.get((topic_id, partition)) not in (None, replaced),
    )
    if stepped != updated or member_id not in group.members:
        journal.record_current(turn, group.group_id, stepped)
    rejoined(group, member_id)
    arm_session(turn, group, member_id, request.session_timeout_ms)
    await_sync(turn, group, stepped)
    return JoinGroupResponse(
        member_id=member_id,
        generation_id=stepped.epoch,
        protocol_type=CONSUMER,
        protocol_name=protocols[0][0],
        leader="",
    )


def _check_protocols(
    group: ConsumerGroup, member_id: str, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    """Raises KafkaError unless this member and all classic members of the group have a common protocol.

    The group may become a classic group again, which needs a common protocol.
    """
    names = {name for name, _ in protocols}
    for other in group.members.values():
        if other.classic is not None and other.member_id != member_id:
            names &= {name for name, _ in other.classic.protocols}
    if protocol_type != CONSUMER or not names:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            "No protocol of this member is supported by all other members: give all members a common assignor.",
        )


def _find(
    turn: Turn, group: ConsumerGroup, instance_id: str | None, member_id: str, unknown: bool
) -> tuple[ConsumerMember, str | None]:
    if instance_id is None:
        return group.members.get(member_id) or ConsumerMember(member_id), None
    known = group.static_member(instance_id)
    if unknown:
        if known is None:
            return ConsumerMember(member_id), None
        return replace_member(turn, group, known, member_id), known.member_id
    check_instance(known, instance_id, member_id)
    assert known is not None
    return known, None


def sync(shard: GroupShard, turn: Turn, group: ConsumerGroup, request: SyncGroupRequest) -> SyncGroupResponse:
    member = _classic_member(group, request.member_id, request.group_instance_id)
    membership = member.classic
    assert membership is not None
    if request.generation_id != member.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"The member is in generation {member.epoch}: rejoin.")
    name, metadata = membership.protocols[0]
    if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, name):
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            "SyncGroup names another protocol type or assignor than the JoinGroup response: rejoin.",
        )
    if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        await_rejoin(turn, group, member)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "The group has a newer assignment: rejoin.")
    synced(group, member.member_id)
    arm_session(turn, group, member.member_id, membership.session_timeout_ms)
    return SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=write_assignment(indexes_of(member.assigned), shard.image, version_of(metadata)),
    )


def heartbeat(turn: Turn, group: ConsumerGroup, generation: int, member_id: str, instance_id: str | None) -> ErrorCode:
    try:
        member = _classic_member(group, member_id, instance_id)
    except KafkaError as error:
        return error.code
    membership = member.classic
    assert membership is not None
    if generation != member.epoch:
        return ErrorCode.ILLEGAL_GENERATION
    arm_session(turn, group, member_id, membership.session_timeout_ms)
    due = (
        member.epoch < group.epoch
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (member.state is MemberState.UNRELEASED_PARTITIONS and not _waits(group, member))
    )
    if due:
        await_rejoin(turn, group, member)
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _waits(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Returns True if another member still holds a partition of this member's target."""
    return any(
        group.owners.get((topic_id, index), member.member_id) != member.member_id
        for topic_id, indexes in group.target.get(member.member_id, {}).items()
        for index in indexes
    )


def leave(shard: GroupShard, turn: Turn, group: ConsumerGroup, identities: list[MemberIdentity]) -> LeaveGroupResponse:
    responses: list[MemberResponse] = []
    leaving: dict[str, ConsumerMember] = {}
    for identity in identities:
        member_id = identity.member_id
        code = ErrorCode.NONE
        try:
            if not member_id and identity.group_instance_id is not None:
                member_id = group.static_members.get(identity.group_instance_id, "")
            member = _classic_member(group, member_id, identity.group_instance_id)
            leaving[member.member_id] = member
        except KafkaError as error:
            code = error.code
        responses.append(
            MemberResponse(member_id=member_id, group_instance_id=identity.group_instance_id, error_code=code)
        )
    if leaving:
        remove(shard, turn, group, list(leaving.values()))
    return LeaveGroupResponse(members=responses)


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    if instance_id is not None:
        check_instance(group.static_member(instance_id), instance_id, member_id)
    member = group.members.find(member_id)
    if member.classic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, "The member uses the consumer protocol: send ConsumerGroupHeartbeat."
        )
    return member
