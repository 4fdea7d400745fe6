"""Computes the target assignment of a streams group.

This happens when a member's heartbeat finds a new group epoch, or when the initial delay of an empty group is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from penstock.groups.streams import journal
from penstock.groups.streams.assignor import MemberSpec, SubtopologySpec, assign
from penstock.groups.streams.group import StreamsGroup, StreamsMember, Tasks
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
    """Computes and records the tasks of all members for a new group epoch; returns None if no assignment is due."""
    if epoch <= group.assignment_epoch or not may_assign(turn, group.assignment_ms, limits.timing):
        return None
    target: dict[str, Tasks] = {member_id: {} for member_id in members}
    if configured.is_ready:
        specs = {
            member_id: MemberSpec(member.process_id, group.target.get(member_id, {}))
            for member_id, member in members.items()
        }
        subtopologies = {
            name: SubtopologySpec(each.tasks, each.is_stateful) for name, each in configured.subtopologies.items()
        }
        target = assign(specs, subtopologies, limits.standby_replicas)
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


def remove(turn: Turn, group: StreamsGroup, member_id: str) -> None:
    """Removes a member from the group, which gets a new group epoch.

    Other members get its tasks with later heartbeats.
    """
    journal.erase_member(turn, group.group_id, member_id)
    journal.record_epoch(
        turn, group.group_id, group.epoch + 1, group.metadata_hash, group.validated_epoch, group.assignment_configs
    )


def start_timers(turn: Turn, group: StreamsGroup, limits: StreamsLimits) -> None:
    """Restarts the session timeout of every member, after the group was loaded from the log."""
    for member in group.members.values():
        arm_session(turn, group, member.member_id, limits.timing.session_timeout_ms)
        arm_revocation(turn, group, member)
