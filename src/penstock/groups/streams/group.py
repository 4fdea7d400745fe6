"""Defines a streams group, its members and their tasks. Applying the records of the log builds this state."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

from penstock.groups import sizes
from penstock.groups.members import MemberTable
from penstock.groups.reconciliation import JOIN_EPOCH, MemberState
from penstock.groups.timers import Timer, TimerKind

if TYPE_CHECKING:
    from penstock.groups.streams.topics import ConfiguredTopology
    from penstock.groups.streams.topology import Topology

FIRST_EPOCH = 1
NOT_VALIDATED = -1


class Role(IntEnum):
    ACTIVE = 0
    STANDBY = 1
    WARMUP = 2


class TaskKey(NamedTuple):
    """Names a subtopology and a role. Together with a partition, it identifies one task."""

    role: Role
    subtopology: str


Tasks = Mapping[TaskKey, frozenset[int]]
AssignedTasks = Mapping[TaskKey, Mapping[int, int]]  # partition → the member epoch in which an active task was assigned


class StreamsGroupState(StrEnum):
    EMPTY = "Empty"
    NOT_READY = "NotReady"  # source or internal topics are missing, or are not partitioned as the topology needs
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class StreamsMember:
    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: tuple[str, int] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    instance_id: str | None = None  # of a record that Kafka wrote; heartbeats of static members are refused
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: AssignedTasks = field(default_factory=dict)
    pending_revocation: AssignedTasks = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        host = self.endpoint[0] if self.endpoint is not None else None
        names = sizes.texts(
            self.member_id, self.rack_id, self.client_id, self.client_host, self.process_id, host, self.instance_id
        )
        tags = sizes.topics(self.tags.keys()) + sizes.topics(self.tags.values())
        return sizes.MEMBER_BYTES + names + tags

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def tasks(self) -> Iterator[tuple[TaskKey, int]]:
        """Yields the tasks that the member holds or still has to revoke."""
        for held in (self.assigned, self.pending_revocation):
            for key, partitions in held.items():
                for partition in partitions:
                    yield key, partition


class Computation(NamedTuple):
    """Holds a target assignment that is computed in steps, because it has many tasks."""

    epoch: int
    steps: Generator[None, None, dict[str, Tasks]]


@dataclass(slots=True)
class StreamsGroup:
    group_id: str
    epoch: int = FIRST_EPOCH
    metadata_hash: int = 0
    validated_epoch: int = NOT_VALIDATED  # the topology epoch for which all topics were found
    assignment_configs: Mapping[str, str] = field(default_factory=dict)  # of the current epoch
    assignment_epoch: int = FIRST_EPOCH
    assignment_ms: int = 0  # wall time of the last target assignment
    topology: Topology | None = None
    members: MemberTable[StreamsMember] = field(default_factory=MemberTable)
    target: dict[str, Tasks] = field(default_factory=dict)
    holders: dict[tuple[TaskKey, int], set[str]] = field(default_factory=dict)  # members that hold or revoke a task
    # soft state: rebuilt after a load
    sessions: dict[str, Timer] = field(default_factory=dict)
    revocations: dict[str, Timer] = field(default_factory=dict)
    initial_delay: Timer = field(init=False)
    next_step: Timer = field(init=False)  # of the target assignment that is being computed
    computing: Computation | None = None
    configured: ConfiguredTopology | None = None
    metadata_changed: bool = True
    shutdown_by: str | None = None  # the member that asked the application to shut down
    endpoint_epoch: int = 0

    def __post_init__(self) -> None:
        self.initial_delay = Timer(TimerKind.REBALANCE, self.group_id)
        self.next_step = Timer(TimerKind.ASSIGNMENT, self.group_id)

    @property
    def state(self) -> StreamsGroupState:
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_epoch:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        if all(member.is_reconciled(self.assignment_epoch) for member in self.members.values()):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    @property
    def protocol_type(self) -> str:
        return "streams"

    @property
    def held_bytes(self) -> int:
        return self.members.bytes + (self.topology.held_bytes if self.topology is not None else 0)

    def all_timers(self) -> list[Timer]:
        return [self.initial_delay, self.next_step, *self.sessions.values(), *self.revocations.values()]

    def remembered(self) -> tuple[object, ...]:
        return (
            self.epoch,
            self.metadata_hash,
            self.validated_epoch,
            self.assignment_configs,
            self.assignment_epoch,
            self.topology,
            self.members,
            self.target,
        )

    def put(self, member: StreamsMember) -> None:
        """Adds or replaces the member, and updates its tasks in `holders`."""
        self._release(member.member_id)
        self.members.put(member)
        for task in member.tasks():
            self.holders.setdefault(task, set()).add(member.member_id)

    def drop(self, member_id: str) -> None:
        self._release(member_id)
        self.members.drop(member_id)
        if not self.members:
            self.shutdown_by = None

    def _release(self, member_id: str) -> None:
        known = self.members.get(member_id)
        for task in known.tasks() if known is not None else ():
            holders = self.holders.get(task, set())
            holders.discard(member_id)
            if not holders:
                self.holders.pop(task, None)

    def is_held(self, process_id: str, key: TaskKey, partition: int) -> bool:
        """Returns True if a member of the process must wait before it can get the task.

        It waits while a member of the same process has the task in any role. For an active task, it also waits while
        any member of the group has the task as an active task.
        """
        for role in Role:
            holders = self.holders.get((TaskKey(role, key.subtopology), partition), ())
            if key.role is Role.ACTIVE and role is Role.ACTIVE and holders:
                return True
            if any(self.members[each].process_id == process_id for each in holders):
                return True
        return False

    def assigned_tasks(self) -> dict[str, int]:
        """Returns the number of active tasks of each subtopology in the target assignment."""
        found: dict[str, int] = {}
        for tasks in self.target.values():
            for key, indexes in tasks.items():
                if key.role is Role.ACTIVE and indexes:
                    found[key.subtopology] = max(found.get(key.subtopology, 0), max(indexes) + 1)
        return found

    def is_subscribed(self, topic: str) -> bool:
        """Returns True if the group has members and its topology reads the topic.

        The group's offsets for such a topic do not expire.
        """
        return bool(self.members) and self.topology is not None and topic in self.topology.readers

    def needs(self, topic: str) -> bool:
        """Returns True if the topic is a source, repartition or changelog topic of the topology."""
        return self.topology is not None and topic in self.topology.required
