"""Computes the target assignment of a streams group.

This happens when a member's heartbeat finds a new group epoch, or when the initial delay of an empty group is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from penstock.groups.streams import journal
from penstock.groups.streams.assignor import STEP_TASKS, MemberSpec, SubtopologySpec, assign_in_steps, finish
from penstock.groups.streams.group import Computation, StreamsGroup, StreamsMember, Tasks
from penstock.groups.timing import Limits, arm_revocation, arm_session, may_assign

if TYPE_CHECKING:
    from penstock.groups.streams.topics import ConfiguredTopology
    from penstock.groups.turn import Turn

STANDBY_REPLICAS = "num.standby.replicas"


class StreamsLimits(NamedTuple):
    """Holds the settings of a streams group, from its group configs or the broker's properties."""

    timing: Limits
    initial_delay_ms: int  # members that join an empty group within this time are assigned together
    standby_replicas: int

    @property
    def assignment_configs(self) -> dict[str, str]:
        """Returns the settings on which an assignment depends, as Kafka records them with the group epoch."""
        return {STANDBY_REPLICAS: str(self.standby_replicas)}


class Target(NamedTuple):
    epoch: int
    tasks: Tasks


def assign_target(
    turn: Turn,
    group: StreamsGroup,
    configured: ConfiguredTopology,
    members: Mapping[str, StreamsMember],
    epoch: int,
    limits: StreamsLimits,
) -> dict[str, Tasks] | None:
    """Computes and records the tasks of all members for a new group epoch.

    Returns None if no assignment is due, or if it is computed in later steps.
    """
    if epoch <= group.assignment_epoch or not may_assign(turn, group.assignment_ms, limits.timing):
        return None
    if not configured.is_ready:
        group.computing = None
        return _record(turn, group, {member_id: {} for member_id in members}, epoch)
    if group.computing is not None:
        return None  # the heartbeats after its last step start the assignment of this epoch
    specs = {
        member_id: MemberSpec(member.process_id, group.target.get(member_id, {}))
        for member_id, member in members.items()
    }
    subtopologies = {
        name: SubtopologySpec(each.tasks, each.is_stateful) for name, each in configured.subtopologies.items()
    }
    steps = assign_in_steps(specs, subtopologies, limits.standby_replicas)
    copies = sum(each.tasks * (1 + limits.standby_replicas * each.is_stateful) for each in subtopologies.values())
    if copies <= STEP_TASKS:
        return _record(turn, group, finish(steps), epoch)
    group.computing = Computation(epoch, steps)
    turn.arm(group.next_step, 0)
    return None


def on_next_step(turn: Turn, group: StreamsGroup) -> None:
    """Computes the next step of a target assignment, and records the assignment after the last step."""
    if group.computing is None:
        return
    try:
        next(group.computing.steps)
    except StopIteration as done:
        target = {member_id: tasks for member_id, tasks in done.value.items() if member_id in group.members}
        _record(turn, group, target, group.computing.epoch)
        group.computing = None
    else:
        turn.arm(group.next_step, 0)


def _record(turn: Turn, group: StreamsGroup, target: dict[str, Tasks], epoch: int) -> dict[str, Tasks]:
    for member_id, tasks in target.items():
        if tasks != group.target.get(member_id):
            journal.record_target(turn, group.group_id, member_id, tasks)
    journal.record_target_epoch(turn, group.group_id, epoch)
    return target


def on_initial_delay(turn: Turn, group: StreamsGroup, limits: StreamsLimits) -> None:
    """Assigns the tasks of the members that joined an empty group within the initial delay."""
    if group.members and group.configured is not None:
        assign_target(turn, group, group.configured, group.members, group.epoch, limits)


# --- members that go, and time


def remove(turn: Turn, group: StreamsGroup, members: Iterable[str]) -> None:
    """Removes members from the group, which gets a new group epoch.

    Other members get their tasks with later heartbeats.
    """
    for member_id in members:
        journal.erase_member(turn, group.group_id, member_id)
    journal.record_epoch(
        turn, group.group_id, group.epoch + 1, group.metadata_hash, group.validated_epoch, group.assignment_configs
    )


def start_timers(turn: Turn, group: StreamsGroup, limits: StreamsLimits) -> None:
    """Restarts the session timeout of every member, after the group was loaded from the log."""
    for member in group.members.values():
        arm_session(turn, group, member.member_id, limits.timing.session_timeout_ms)
        arm_revocation(turn, group, member)
