"""Finds the group of a JoinGroup, SyncGroup, Heartbeat or LeaveGroup request, and passes the request on.

The request goes to the group's protocol: classic or consumer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.groups import room
from penstock.groups.classic import join as classic_join
from penstock.groups.classic import leave as classic_leave
from penstock.groups.classic import sync as classic_sync
from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.journal import record_creation
from penstock.groups.classic.rebalance import join_error, sync_error
from penstock.groups.consumer import classic_members
from penstock.groups.consumer import journal as consumer_journal
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.share.group import ShareGroup
from penstock.groups.streams import journal as streams_journal
from penstock.groups.streams.group import StreamsGroup
from penstock.groups.undo import add_group
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_13_leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse

if TYPE_CHECKING:
    from penstock.groups.shard import GroupShard
    from penstock.groups.turn import Caller, Token, Turn
    from penstock.protocol.messages.api_11_join_group import JoinGroupRequest
    from penstock.protocol.messages.api_14_sync_group import SyncGroupRequest


def join(shard: GroupShard, turn: Turn, request: JoinGroupRequest, caller: Caller, token: Token) -> None:
    config = turn.config
    if not request.group_id:
        turn.reply(token, join_error(request.member_id, ErrorCode.INVALID_GROUP_ID))
        return
    if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
        turn.reply(token, join_error(request.member_id, ErrorCode.INVALID_SESSION_TIMEOUT))
        return
    group = shard.groups.get(request.group_id)
    if not room.admits_join(shard, turn, group, request, caller):
        turn.reply(token, join_error(request.member_id, ErrorCode.POLICY_VIOLATION))
        return
    if isinstance(group, ShareGroup) or (isinstance(group, StreamsGroup) and group.members):
        turn.reply(token, join_error(request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        return
    if isinstance(group, ClassicGroup):
        classic_join.join(turn, group, request, caller, token)
    elif isinstance(group, ConsumerGroup) and group.members:
        _join_consumer_group(shard, turn, group, request, caller, token)
    elif request.member_id:
        turn.reply(token, join_error(request.member_id, ErrorCode.UNKNOWN_MEMBER_ID))
    else:
        _join_new_group(shard, turn, group, request, caller, token)


def _join_consumer_group(
    shard: GroupShard, turn: Turn, group: ConsumerGroup, request: JoinGroupRequest, caller: Caller, token: Token
) -> None:
    try:
        turn.reply(token, classic_members.join(shard, turn, group, request, caller))
    except KafkaError as error:
        turn.records.clear()
        turn.reply(token, join_error(request.member_id, error.code))


def _join_new_group(
    shard: GroupShard,
    turn: Turn,
    replaced: ConsumerGroup | StreamsGroup | None,
    request: JoinGroupRequest,
    caller: Caller,
    token: Token,
) -> None:
    """Joins the member to a new classic group, which replaces an empty group of another protocol and keeps its offsets.

    A refused join, or a join whose records the log refuses, creates no group, and leaves the empty group unchanged.
    """
    group = ClassicGroup(request.group_id, state_timestamp_ms=turn.wall_ms)
    classic_join.join(turn, group, request, caller, token)
    if not group.members and not group.pending_members:
        return
    if isinstance(replaced, ConsumerGroup):
        consumer_journal.erase_group(turn, replaced)
    elif replaced is not None:
        streams_journal.erase_group(turn, replaced)
    record_creation(turn, group)
    add_group(shard.groups, turn, group)
    turn.undo.append(partial(_answer_parked, turn, group))


def _answer_parked(turn: Turn, group: ClassicGroup) -> None:
    """Answers the join that a new group has parked: the group is removed, because the log refuses its records."""
    for member in group.members.values():
        parked = group.take_join(member)
        if parked is not None:
            turn.reply(parked, join_error("", ErrorCode.COORDINATOR_NOT_AVAILABLE))


def sync(shard: GroupShard, turn: Turn, request: SyncGroupRequest, token: Token) -> None:
    if not request.group_id:
        turn.reply(token, sync_error(ErrorCode.INVALID_GROUP_ID))
        return
    group = shard.groups.get(request.group_id)
    if isinstance(group, ClassicGroup):
        if room.admits_sync(shard, turn, group, request):
            classic_sync.sync(turn, group, request, token)
        else:
            turn.reply(token, sync_error(ErrorCode.POLICY_VIOLATION))
    elif group is None or isinstance(group, ShareGroup | StreamsGroup):
        turn.reply(token, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
    else:
        try:
            turn.reply(token, classic_members.sync(shard, turn, group, request))
        except KafkaError as error:
            turn.reply(token, sync_error(error.code))


def heartbeat(
    shard: GroupShard, group_id: str, generation: int, member_id: str, instance_id: str | None, now_ms: int
) -> ErrorCode:
    if not group_id:  # a group with an empty id may have offsets, but no members
        return ErrorCode.INVALID_GROUP_ID
    group = shard.groups.get(group_id)
    if isinstance(group, ClassicGroup):
        return classic_sync.heartbeat(group, generation, member_id, instance_id, now_ms)
    if group is None or isinstance(group, ShareGroup | StreamsGroup):
        return ErrorCode.UNKNOWN_MEMBER_ID
    return classic_members.heartbeat(shard.turn(now_ms, 0), group, generation, member_id, instance_id)


def leave(shard: GroupShard, turn: Turn, group_id: str, members: list[MemberIdentity]) -> LeaveGroupResponse:
    if not group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    group = shard.groups.get(group_id)
    if isinstance(group, ClassicGroup):
        return classic_leave.leave(turn, group, members)
    if isinstance(group, ConsumerGroup):
        return classic_members.leave(shard, turn, group, members)
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=ErrorCode.UNKNOWN_MEMBER_ID,
            )
            for member in members
        ]
    )
