"""Runs a rebalance of a classic group: the join phase begins, members join, the phase ends, the leader assigns.

The first rebalance of an empty group waits `group.initial.rebalance.delay.ms` for more members. It waits again if a
member has joined during this time, but in total not longer than the rebalance timeout. A later rebalance ends when all
known members have rejoined. At the rebalance timeout it ends without the missing members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.classic.group import ClassicGroup, Member, State
from penstock.groups.classic.journal import record_group
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_11_join_group import JoinGroupResponse, JoinGroupResponseMember
from penstock.protocol.messages.api_14_sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.groups.turn import Turn


def rebalance_or_complete(turn: Turn, group: ClassicGroup) -> None:
    """Begins a join phase after a change of membership.

    If a join phase is already running, no second phase begins. The running phase ends if all members have joined.
    """
    if group.can_rebalance:
        prepare_rebalance(turn, group)
    else:
        maybe_complete_join(turn, group)


def prepare_rebalance(turn: Turn, group: ClassicGroup) -> None:
    if group.state is State.COMPLETING_REBALANCE:
        fail_syncs(turn, group, ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_sync.clear()
    group.sync_timer.cancel()
    initial = group.state is State.EMPTY
    if initial:
        group.new_member_added = False
        delay_ms = turn.config.initial_rebalance_delay_ms
        group.initial_delay_ms = delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
    group.transition(State.PREPARING_REBALANCE, turn.wall_ms)
    if initial:
        if group.initial_delay_ms <= 0:
            complete_join(turn, group)
        else:
            turn.arm(group.join_timer, group.initial_delay_ms)
    elif group.all_joined:
        complete_join(turn, group)
    else:
        turn.arm(group.join_timer, group.rebalance_timeout_ms)


def maybe_complete_join(turn: Turn, group: ClassicGroup) -> None:
    if group.state is State.PREPARING_REBALANCE and group.all_joined and group.previous_state is not State.EMPTY:
        complete_join(turn, group)


def on_join_timer(turn: Turn, group: ClassicGroup) -> None:
    if group.state is not State.PREPARING_REBALANCE:
        return
    if group.previous_state is State.EMPTY and group.new_member_added and group.initial_remaining_ms > 0:
        group.new_member_added = False
        waited_ms, remaining_ms = group.initial_delay_ms, group.initial_remaining_ms
        group.initial_delay_ms = min(turn.config.initial_rebalance_delay_ms, remaining_ms)
        group.initial_remaining_ms = max(remaining_ms - waited_ms, 0)
        turn.arm(group.join_timer, group.initial_delay_ms)
    else:
        complete_join(turn, group)


def complete_join(turn: Turn, group: ClassicGroup) -> None:
    """Ends the join phase: the members that joined form the next generation."""
    group.join_timer.cancel()
    for member in list(group.members.values()):
        if member.awaiting_join is None and member.instance_id is None:
            group.remove(member.member_id)
    if group.members and not group.elect_joined_leader():
        # Only static members are left and none has rejoined: wait until a member rejoins or its session ends.
        turn.arm(group.join_timer, group.rebalance_timeout_ms)
        return
    group.generation += 1
    group.pending_sync.clear()
    if not group.members:
        group.protocol = None
        group.subscribed_topics = frozenset()
        group.transition(State.EMPTY, turn.wall_ms)
        record_group(turn, group, {})
        return
    group.protocol = group.select_protocol()
    group.subscribed_topics = group.subscriptions()
    group.transition(State.COMPLETING_REBALANCE, turn.wall_ms)
    for member in group.members.values():
        member.is_new = False
        group.pending_sync.add(member.member_id)
        answer_join(turn, group, member)
        keep_alive(turn, member)
    turn.arm(group.sync_timer, group.rebalance_timeout_ms)


def on_sync_timer(turn: Turn, group: ClassicGroup) -> None:
    """Removes members that joined the generation but did not send SyncGroup in time, and rebalances."""
    if group.state not in (State.COMPLETING_REBALANCE, State.STABLE) or not group.pending_sync:
        return
    for member_id in sorted(group.pending_sync):
        group.remove(member_id)
    prepare_rebalance(turn, group)


def sync_received(group: ClassicGroup, member_id: str) -> None:
    group.pending_sync.discard(member_id)
    if not group.pending_sync:
        group.sync_timer.cancel()


def on_session_timer(turn: Turn, group: ClassicGroup, member_id: str) -> None:
    member = group.members.get(member_id)
    if member is None or (member.is_waiting and not member.is_new):
        return  # a member with a parked request need not send heartbeats; its response starts a new session
    expel(turn, group, member)
    membership_shrank(turn, group)


def on_pending_timer(turn: Turn, group: ClassicGroup, member_id: str) -> None:
    if member_id in group.pending_members:
        group.drop_pending(member_id)
        maybe_complete_join(turn, group)


def expel(turn: Turn, group: ClassicGroup, member: Member) -> None:
    token = group.take_join(member)
    if token is not None:  # the member may be alive: UNKNOWN_MEMBER_ID makes it join again
        turn.reply(token, join_error("", ErrorCode.UNKNOWN_MEMBER_ID))
    if member.awaiting_sync is not None:
        turn.reply(member.awaiting_sync, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
    group.remove(member.member_id)


def membership_shrank(turn: Turn, group: ClassicGroup) -> None:
    if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
        prepare_rebalance(turn, group)
    else:
        maybe_complete_join(turn, group)


def keep_alive(turn: Turn, member: Member) -> None:
    turn.arm(member.session, member.session_timeout_ms)


# --- answers


def join_error(member_id: str, code: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(member_id=member_id, error_code=code, generation_id=-1, protocol_name=None, leader="")


def sync_error(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code, assignment=b"")


def answer_join(turn: Turn, group: ClassicGroup, member: Member) -> None:
    token = group.take_join(member)
    if token is not None:
        turn.reply(token, joined(group, member.member_id))


def joined(group: ClassicGroup, member_id: str) -> JoinGroupResponse:
    """Returns the JoinGroup response for the current generation. Only the leader's response lists the members."""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        member_id=member_id,
        members=current_members(group) if group.leader == member_id else [],
    )


def current_members(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    protocol = group.protocol or ""
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.metadata(protocol),
        )
        for member in group.members.values()
    ]


def assign(turn: Turn, group: ClassicGroup, assignments: Mapping[str, bytes]) -> None:
    """Gives the members their assignments and answers the parked SyncGroup requests.

    Called once the assignments are committed.
    """
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
        group.count(member)
        token, member.awaiting_sync = member.awaiting_sync, None
        if token is not None:
            keep_alive(turn, member)
            turn.reply(token, synced(group, member))
    group.transition(State.STABLE, turn.wall_ms)


def synced(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )


def fail_syncs(turn: Turn, group: ClassicGroup, code: ErrorCode) -> None:
    for member in group.members.values():
        member.assignment = b""
        group.count(member)
        token, member.awaiting_sync = member.awaiting_sync, None
        if token is not None:
            keep_alive(turn, member)
            turn.reply(token, sync_error(code))
