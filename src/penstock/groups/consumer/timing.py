"""Sets the timeouts of a consumer group's classic members, and all timers of a group that was loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.consumer.group import ConsumerGroup, ConsumerMember
from penstock.groups.timers import TimerKind
from penstock.groups.timing import Limits, arm_revocation, arm_session, member_timer

if TYPE_CHECKING:
    from penstock.groups.turn import Turn


def await_rejoin(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Starts the timeout within which a classic member must rejoin. A repeated call does not extend the timeout."""
    timer = member_timer(group.rejoins, TimerKind.JOIN, group.group_id, member.member_id)
    if not timer.armed:
        turn.arm(timer, max(member.rebalance_timeout_ms, 0))


def rejoined(group: ConsumerGroup, member_id: str) -> None:
    if member_id in group.rejoins:
        group.rejoins[member_id].cancel()


def await_sync(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> None:
    timer = member_timer(group.syncs, TimerKind.SYNC, group.group_id, member.member_id)
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
