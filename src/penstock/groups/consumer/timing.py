"""How long members of a consumer group may take: to be heard of, to let go, to rejoin, to fetch their share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.groups.consumer.group import ConsumerGroup, ConsumerMember, MemberState
from penstock.groups.timers import Timer, TimerKind

if TYPE_CHECKING:
    from penstock.groups.turn import Turn


class Limits(NamedTuple):
    """What holds for this group; a group may have its own."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int  # changes in between wait, and are assigned together


def _timer(timers: dict[str, Timer], kind: TimerKind, group: ConsumerGroup, member_id: str) -> Timer:
    timer = timers.get(member_id)
    if timer is None:
        timer = timers[member_id] = Timer(kind, group.group_id, member_id)
    return timer


def arm_session(turn: Turn, group: ConsumerGroup, member_id: str, timeout_ms: int) -> None:
    turn.arm(_timer(group.sessions, TimerKind.SESSION, group, member_id), timeout_ms)


def arm_revocation(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Giving partitions up may take a member its rebalance timeout, and not longer."""
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        timer = _timer(group.revocations, TimerKind.REVOCATION, group, member.member_id)
        if not timer.armed:
            turn.arm(timer, max(member.rebalance_timeout_ms, 0))
    elif member.member_id in group.revocations:
        group.revocations[member.member_id].cancel()


def await_rejoin(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> None:
    """A classic member has been told to rejoin; being told again gives it no more time."""
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
    """After a load: everybody gets a full session to show up."""
    for member in group.members.values():
        timeout_ms = limits.session_timeout_ms if member.classic is None else member.classic.session_timeout_ms
        arm_session(turn, group, member.member_id, timeout_ms)
        if member.classic is None:
            arm_revocation(turn, group, member)


def is_due(member: ConsumerMember, kind: TimerKind) -> bool:
    """Whether a timer that fired still means what it meant when it was set."""
    return kind is not TimerKind.REVOCATION or member.state is MemberState.UNREVOKED_PARTITIONS
