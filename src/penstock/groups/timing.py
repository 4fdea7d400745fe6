"""Sets the timeouts of consumer, share and streams groups: heartbeats, revocations, pauses between assignments."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.groups.reconciliation import MemberState, Reconcilable
from penstock.groups.timers import Timer, TimerKind

if TYPE_CHECKING:
    from penstock.groups.turn import Turn


class Limits(NamedTuple):
    """Holds the timeouts for the members of a group, from its group configs or the broker's properties."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int  # changes within the interval are assigned together


class WithSessions(Protocol):
    @property
    def group_id(self) -> str: ...
    @property
    def sessions(self) -> dict[str, Timer]: ...


class WithRevocations(WithSessions, Protocol):
    @property
    def revocations(self) -> dict[str, Timer]: ...


class RevokingMember(Reconcilable, Protocol):
    @property
    def member_id(self) -> str: ...
    @property
    def rebalance_timeout_ms(self) -> int: ...


def member_timer(timers: dict[str, Timer], kind: TimerKind, group_id: str, member_id: str) -> Timer:
    timer = timers.get(member_id)
    if timer is None:
        timer = timers[member_id] = Timer(kind, group_id, member_id)
    return timer


def arm_session(turn: Turn, group: WithSessions, member_id: str, timeout_ms: int) -> None:
    turn.arm(member_timer(group.sessions, TimerKind.SESSION, group.group_id, member_id), timeout_ms)


def arm_revocation(turn: Turn, group: WithRevocations, member: RevokingMember) -> None:
    """Starts the member's rebalance timeout, within which it must revoke its partitions; stops it afterwards.

    If the log refuses the records, the timeout is as before.
    """
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        timer = member_timer(group.revocations, TimerKind.REVOCATION, group.group_id, member.member_id)
        if not timer.armed:
            turn.arm(timer, max(member.rebalance_timeout_ms, 0))
            turn.undo.append(timer.cancel)
    elif member.member_id in group.revocations:
        timer = group.revocations[member.member_id]
        if timer.armed:
            turn.undo.append(partial(turn.timers.set, timer, timer.deadline_ms))
            timer.cancel()


def is_due(member: Reconcilable, kind: TimerKind) -> bool:
    """Returns True if a fired timer must still be handled.

    A revocation timer is ignored if the member no longer has partitions to revoke.
    """
    return kind is not TimerKind.REVOCATION or member.state is MemberState.UNREVOKED_PARTITIONS


def may_assign(turn: Turn, assigned_ms: int, limits: Limits) -> bool:
    """Returns True if the interval since the last assignment has passed, or if the clock was set back."""
    return not 0 <= turn.wall_ms - assigned_ms < limits.assignment_interval_ms
