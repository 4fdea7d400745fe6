"""Handles JoinGroup v0-9 of a classic group: new members, known members, and restarted static members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.classic.group import ClassicGroup, Member, Protocols, State
from penstock.groups.classic.journal import record_group
from penstock.groups.classic.rebalance import (
    join_error,
    joined,
    keep_alive,
    maybe_complete_join,
    prepare_rebalance,
    rebalance_or_complete,
    sync_error,
)
from penstock.groups.config import NEW_MEMBER_JOIN_TIMEOUT_MS
from penstock.groups.timers import Timer, TimerKind
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.groups.turn import Caller, Token, Turn
    from penstock.protocol.messages.api_11_join_group import JoinGroupRequest

MEMBER_ID_HANDSHAKE_SINCE = 4  # KIP-394: a dynamic member first gets a member id, then joins with it
SKIP_ASSIGNMENT_SINCE = 9  # KIP-814


def join(turn: Turn, group: ClassicGroup, request: JoinGroupRequest, caller: Caller, token: Token) -> None:
    member_id = request.member_id
    try:
        if not _has_room(turn, group, member_id):
            group.remove(member_id)
            member_id = ""
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED, "The group is full: raise group.max.size or stop a member."
            )
        if group.state is State.DEAD:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "The group is being deleted: find its coordinator again."
            )
        protocols = _protocols(request)
        if not group.supports(request.protocol_type, protocols):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                "No protocol of this member is supported by all other members: give all members a common assignor.",
            )
        if not member_id:
            _join_new(turn, group, request, caller, token)
        else:
            _join_known(turn, group, request, caller, token)
    except KafkaError as error:
        turn.reply(token, join_error(member_id, error.code))


def _protocols(request: JoinGroupRequest) -> Protocols:
    return tuple((protocol.name, protocol.metadata) for protocol in request.protocols)


def _has_room(turn: Turn, group: ClassicGroup, member_id: str) -> bool:
    limit = turn.config.max_size
    match group.state:
        case State.EMPTY | State.DEAD:
            return True
        case State.PREPARING_REBALANCE:
            member = group.members.get(member_id)
            return (member is not None and member.awaiting_join is not None) or group.waiting_joins < limit
        case _:
            return member_id in group.members or len(group.members) < limit


def _join_new(turn: Turn, group: ClassicGroup, request: JoinGroupRequest, caller: Caller, token: Token) -> None:
    instance_id = request.group_instance_id
    new_id = f"{caller.client_id if instance_id is None else instance_id}-{turn.new_uuid()}"
    if instance_id is not None and instance_id in group.static_members:
        _replace_static(turn, group, request, caller, new_id, token)
    elif instance_id is None and caller.api_version >= MEMBER_ID_HANDSHAKE_SINCE:
        timer = group.pending_members[new_id] = Timer(TimerKind.PENDING_MEMBER, group.group_id, new_id)
        turn.arm(timer, request.session_timeout_ms)
        turn.reply(token, join_error(new_id, ErrorCode.MEMBER_ID_REQUIRED))
    else:
        _add(turn, group, request, caller, new_id, token)


def _join_known(turn: Turn, group: ClassicGroup, request: JoinGroupRequest, caller: Caller, token: Token) -> None:
    member_id = request.member_id
    if member_id in group.pending_members:
        if request.group_instance_id is not None:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                "A static member can't join with a pending member id: join without a member id.",
            )
        _add(turn, group, request, caller, member_id, token)
        return
    member = group.check_member(member_id, request.group_instance_id)
    unchanged = member.protocols == _protocols(request)
    match group.state:
        case State.COMPLETING_REBALANCE if unchanged:
            turn.reply(token, joined(group, member_id))  # it missed the response, so it gets the same again
        case State.STABLE if unchanged and group.leader != member_id:
            turn.reply(token, joined(group, member_id))
        case State.PREPARING_REBALANCE | State.COMPLETING_REBALANCE | State.STABLE:
            # The leader of a stable group may rejoin because topics changed, so it gets to assign again.
            _update(turn, group, member, request, token)
            rebalance_or_complete(turn, group)
        case _:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "The group is empty: join it as a new member.")


def _timeout(request: JoinGroupRequest) -> int:
    # version 0 has only the session timeout
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms


def _add(
    turn: Turn, group: ClassicGroup, request: JoinGroupRequest, caller: Caller, member_id: str, token: Token
) -> None:
    member = Member(
        member_id=member_id,
        instance_id=request.group_instance_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        rebalance_timeout_ms=_timeout(request),
        session_timeout_ms=request.session_timeout_ms,
        protocols=_protocols(request),
        session=Timer(TimerKind.SESSION, group.group_id, member_id),
        is_new=True,
        awaiting_join=token,
    )
    if group.state is State.PREPARING_REBALANCE and group.previous_state is State.EMPTY:
        group.new_member_added = True
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(member)
    turn.arm(member.session, NEW_MEMBER_JOIN_TIMEOUT_MS)
    rebalance_or_complete(turn, group)


def _update(turn: Turn, group: ClassicGroup, member: Member, request: JoinGroupRequest, token: Token) -> None:
    group.set_protocols(member, _protocols(request))
    member.rebalance_timeout_ms = _timeout(request)
    member.session_timeout_ms = request.session_timeout_ms
    replaced = group.park_join(member, token)
    if replaced is not None:  # the client abandoned that request, or a proxy repeated it
        turn.reply(replaced, join_error(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS))


def _replace_static(
    turn: Turn, group: ClassicGroup, request: JoinGroupRequest, caller: Caller, new_id: str, token: Token
) -> None:
    """Handles the join of a restarted static member.

    A stable group does not rebalance, unless the selected protocol changes.
    """
    instance_id = request.group_instance_id
    assert instance_id is not None
    old_id = group.static_members[instance_id]
    old_leader = group.leader
    member = group.replace_static(instance_id, new_id)
    _fence(turn, group, member, old_id)
    member.client_id, member.client_host = caller.client_id, caller.client_host
    keep_alive(turn, member)
    _update(turn, group, member, request, token)
    match group.state:
        case State.STABLE if group.select_protocol() == group.protocol:
            _store_replacement(turn, group, member, old_leader, caller.api_version >= SKIP_ASSIGNMENT_SINCE)
        case State.STABLE:
            rebalance_or_complete(turn, group)
        case State.COMPLETING_REBALANCE:
            # The leader may be assigning to the old member id at this moment, so the rebalance starts again.
            prepare_rebalance(turn, group)
        case _:
            maybe_complete_join(turn, group)


def _fence(turn: Turn, group: ClassicGroup, member: Member, old_id: str) -> None:
    token = group.take_join(member)
    if token is not None:
        turn.reply(token, join_error(old_id, ErrorCode.FENCED_INSTANCE_ID))
    token, member.awaiting_sync = member.awaiting_sync, None
    if token is not None:
        turn.reply(token, sync_error(ErrorCode.FENCED_INSTANCE_ID))


def _store_replacement(turn: Turn, group: ClassicGroup, member: Member, old_leader: str | None, can_skip: bool) -> None:
    record_group(turn, group, {each.member_id: each.assignment for each in group.members.values()})

    def stored(later: Turn, code: ErrorCode) -> None:
        if group.state is State.PREPARING_REBALANCE:
            return  # a join phase has begun since then: its end answers the join, with the members of that generation
        token = group.take_join(member)
        if token is None:
            return
        keep_alive(later, member)  # no session ends while a join is parked, also if its timer was due meanwhile
        if code is not ErrorCode.NONE:
            later.reply(token, join_error("", code))
            return
        response = joined(group, member.member_id)
        if can_skip:
            response.skip_assignment = group.leader == member.member_id
        else:
            # An old client that is named as leader would assign again, so the response names the old member id as
            # leader.
            response.leader, response.members = old_leader or "", []
        later.reply(token, response)

    turn.after.append(stored)
