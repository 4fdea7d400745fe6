"""Sets the timeouts of a consumer group's members: for heartbeats, revocations, rejoins and syncs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.groups.consumer.group import ConsumerGroup, ConsumerMember, MemberState
from penstock.groups.timers import Timer, TimerKind

if TYPE_CHECKING:
    from penstock.groups.turn import Turn


class Limits(NamedTuple):
    """The timeouts that apply to the members of a group, from its group configs or the broker's properties."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int  # changes within the interval are assigned together


def _timer(timers: dict[str, Timer], kind: TimerKind, group: ConsumerGroup, member_id: str) -> Timer:
    timer = timers.get(member_id)
    if timer is None:
        timer = timers[member_id] = Timer(kind, group.group_id, member_id)
    return timer


def arm_session(turn: Turn, group: ConsumerGroup, member_id: str, timeout_ms: int) -> None:
    turn.arm(_timer(group.sessions, TimerKind.SESSION, group, member_id), timeout_ms)


def arm_revocation(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Starts the rebalance timeout of the member: until then it must have revoked its partitions."""
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        timer = _timer(group.revocations, TimerKind.REVOCATION, group, member.member_id)
        if not timer.armed:
            turn.arm(timer, max(member.rebalance_timeout_ms, 0))
    elif member.member_id in group.revocations:
        group.revocations[member.member_id].cancel()


def await_rejoin(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Starts the timeout within which a classic member must rejoin. A repeated call does not extend the timeout."""
    timer = _timer(group.rejoins, TimerKind.JOIN, group, member.member_id)
    if not timer.armed:
        turn.arm(timer, max(member.rebalance_timeout_ms, 0))


def rejoined(group: ConsumerGroup, member_id: str) -> None:
    if member_id in group.rejoins:
        group.rejoins[member_id].cancel()


def await_sync(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> None:
    timer = _timer(group.syncs, TimerKind.SYNC, group, member.member_id)
    turn.arm(timer, max(member.rebalance_timeout_ms, 0))


def synced(group: ConsumerGroup, member_id: str) -> None:
    if member_id in group.syncs:
        group.syncs[member_id].cancel()


def start_timers(turn: Turn, group: ConsumerGroup, limits: Limits) -> None:
    """Restarts the session timeout of every member, after the group was loaded from the log."""
    for member in group.members.values():
        timeout_ms = limits.session_timeout_ms if member.classic is None else member.classic.session_timeout_ms
        arm_session(turn, group, member.member_id, timeout_ms)
        if member.classic is None:
            arm_revocation(turn, group, member)


def is_due(member: ConsumerMember, kind: TimerKind) -> bool:
    """Returns True if a timer that has fired still has to act.

    A revocation timer acts only while the member still has partitions to revoke.
    """
    return kind is not TimerKind.REVOCATION or member.state is MemberState.UNREVOKED_PARTITIONS
