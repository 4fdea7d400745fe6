"""Checks that no partition has two owners in a group, in the answers to members and in the coordinator's state.

    one owner per epoch      in one member epoch or generation, no two members are assigned the same partition
    one owner at a time      no member is assigned a partition before the last owner has reported the release
    one owner by state       in a coordinator's state, only one member owns a partition or still has to release it

The check observes the answers to ConsumerGroupHeartbeat, StreamsGroupHeartbeat and SyncGroup where clients receive
them. In a streams group, the check looks at active tasks instead of partitions. It identifies a static member by its
instance id: the member keeps its partitions when it comes back with another member id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.broker.coordinators.runtime import Phase
from penstock.client.connection import BrokerConnection
from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.group import State as ClassicState
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.streams.group import Role, StreamsGroup
from penstock.protocol.codec import DecodeError, decode_prefix
from penstock.protocol.messages.api_14_sync_group import SyncGroupRequest, SyncGroupResponse
from penstock.protocol.messages.api_42_delete_groups import DeleteGroupsRequest
from penstock.protocol.messages.api_68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from penstock.protocol.messages.api_88_streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TaskIds,
)
from penstock.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from penstock.sim.checks.taps import Tap
from penstock.sim.engine.machine import Machine, State

if TYPE_CHECKING:
    from penstock.protocol.schema import Message

#: A partition: the topic's id (consumer groups) or name (classic groups), and the index. In a streams group, an active
#: task: the subtopology's id and the index.
Owned = tuple[bytes | str, int]
NEWEST_ASSIGNMENT = 3


class _Given(NamedTuple):
    """Holds the time and the coordinator of the answer that assigned a partition to its present owner."""

    began: float
    ended: float
    coordinator: str


@dataclass(slots=True)
class _Holdings:
    """Holds the partitions that each member of one group owns, according to the answers sent to the members."""

    epoch: int = 0
    """The epoch or generation that a member was told last."""
    by_epoch: dict[tuple[int, Owned], str] = field(default_factory=dict)
    held: dict[str, dict[Owned, _Given]] = field(default_factory=dict)
    """Member → partition → when the member was told that it owns the partition."""
    released: dict[str, set[Owned]] = field(default_factory=dict)
    """Member → partitions that it held and that a request of it, answered or not, no longer reported."""


class _Beat(NamedTuple):
    """Holds a heartbeat of a consumer group or a streams group, and its answer."""

    group_id: str
    who: str
    error_code: int
    epoch: int
    joins: bool  # the request has no member epoch: the member starts, or starts again
    reported: set[Owned] | None  # by the member; None if the request leaves them out
    assigned: list[Owned] | None  # to the member; None if they stay the same


def _consumer_beat(request: ConsumerGroupHeartbeatRequest, answer: ConsumerGroupHeartbeatResponse) -> _Beat:
    def listed(topics: Sequence[TopicPartitions]) -> list[Owned]:
        return sorted((each.topic_id, index) for each in topics for index in each.partitions)

    return _Beat(
        request.group_id,
        request.instance_id or answer.member_id or request.member_id,
        answer.error_code,
        answer.member_epoch,
        request.member_epoch == 0,
        None if request.topic_partitions is None else set(listed(request.topic_partitions)),
        None if answer.assignment is None else listed(answer.assignment.topic_partitions),
    )


def _streams_beat(request: StreamsGroupHeartbeatRequest, answer: StreamsGroupHeartbeatResponse) -> _Beat:
    """Returns a heartbeat with the active tasks as partitions. Leaves out standby tasks, because several members may
    have the same standby task."""

    def listed(tasks: Sequence[TaskIds] | None) -> list[Owned] | None:
        if tasks is None:
            return None
        return sorted((each.subtopology_id, index) for each in tasks for index in each.partitions)

    reported = listed(request.active_tasks)
    return _Beat(
        request.group_id,
        request.member_id,
        answer.error_code,
        answer.member_epoch,
        request.member_epoch == 0,
        None if reported is None else set(reported),
        listed(answer.active_tasks),
    )


class GroupOwnership:
    def __init__(
        self,
        machines: Sequence[Machine],
        now: Callable[[], float],
        violated: Callable[[str, str], None],
        *,
        excused: Callable[[], bool],
    ) -> None:
        """Creates the check. `excused` returns True if a power loss may have erased the state of coordinators."""
        self._machines = machines
        self._now = now
        self._violated = violated
        self._excused = excused
        self._groups: dict[str, _Holdings] = {}
        self._reported: set[tuple[str, str]] = set()

    def taps(self) -> list[Tap]:
        return [Tap(BrokerConnection, "request", self._asked, answer=True)]

    def _broken(self, rule: str, group: str, what: str) -> None:
        """Reports the first violation of `rule` in each group; ignores later violations."""
        if (rule, group) not in self._reported and not self._excused():
            self._reported.add((rule, group))
            self._violated(rule, what)

    # What members were told.

    def _asked(self, connection: BrokerConnection, message: Message, **_: object) -> Callable[[Any], None] | None:
        began, coordinator = self._now(), str(connection.address)
        match message:
            case ConsumerGroupHeartbeatRequest():
                earlier = self._release(_consumer_beat(message, ConsumerGroupHeartbeatResponse()))
                return lambda answer: self._heartbeat(_consumer_beat(message, answer), earlier, began, coordinator)
            case StreamsGroupHeartbeatRequest():
                earlier = self._release(_streams_beat(message, StreamsGroupHeartbeatResponse()))
                return lambda answer: self._heartbeat(_streams_beat(message, answer), earlier, began, coordinator)
            case SyncGroupRequest():
                return lambda answer: self._synced(message, answer)
            case DeleteGroupsRequest():
                for group in message.groups_names:
                    self._groups.pop(group, None)  # a new group of this name starts again with the first epoch
        return None

    def _synced(self, request: SyncGroupRequest, answer: SyncGroupResponse) -> None:
        if answer.error_code or not answer.assignment:
            return
        who = request.group_instance_id or request.member_id
        self._told(request.group_id, request.generation_id, who, classic_assignment(answer.assignment))

    def _release(self, sent: _Beat) -> frozenset[Owned]:
        """Notes the partitions that the member no longer reports in this heartbeat: the member has released them.

        Returns the partitions that the member had released in earlier heartbeats. The coordinator may know these
        releases, even if its answers were lost.
        """
        group = self._groups.setdefault(sent.group_id, _Holdings())
        released = group.released.setdefault(sent.who, set())
        earlier = frozenset(released)
        if sent.reported is not None:
            released |= group.held.get(sent.who, {}).keys() - sent.reported
        return earlier

    def _heartbeat(self, told: _Beat, released: frozenset[Owned], began: float, coordinator: str) -> None:
        group = self._groups.setdefault(told.group_id, _Holdings())
        who = told.who
        if told.error_code or told.epoch <= 0:
            group.held.pop(who, None)
            group.released.pop(who, None)
            return
        before = {each: since for each, since in group.held.get(who, {}).items() if each not in released}
        given = _Given(began, self._now(), coordinator)
        # A member that joins again may have lost its partitions, without knowing it, when its session expired.
        for partition, since in () if told.joins else before.items():
            self._still_held(told.group_id, group, who, partition, since, given)
        # A partition that the member was told to give up is its own until a request no longer reports it.
        kept = before
        if told.reported is not None:
            kept = {partition: since for partition, since in before.items() if partition in told.reported}
        if told.assigned is not None:
            self._told(told.group_id, told.epoch, who, told.assigned)
            kept = {**kept, **{partition: before.get(partition, given) for partition in told.assigned}}
            group.released.get(who, set()).difference_update(told.assigned)
        group.held[who] = kept

    def _told(self, group_id: str, epoch: int, who: str, partitions: Sequence[Owned]) -> None:
        group = self._groups.setdefault(group_id, _Holdings())
        if epoch < group.epoch:
            # The group had no member left, was replaced by one of the other protocol, and counts from the start.
            group.by_epoch.clear()
        group.epoch = epoch
        for partition in partitions:
            owner = group.by_epoch.setdefault((epoch, partition), who)
            if owner != who:
                what = f"{group_id} gives partition {_shown(partition)} to {owner} and to {who} in epoch {epoch}"
                self._broken("one owner per epoch", group_id, what)

    def _still_held(
        self, group_id: str, group: _Holdings, who: str, partition: Owned, since: _Given, answer: _Given
    ) -> None:
        """Reports a violation if the partition was assigned to another member while the member `who` owned it.

        `since` is the answer that assigned the partition to `who`; `answer` is the last answer to `who`.
        """
        for other, held in group.held.items():
            given = held.get(partition)
            if other == who or given is None or given.coordinator != answer.coordinator:
                continue
            if since.ended < given.began and given.ended < answer.began:
                what = f"{group_id} has given partition {_shown(partition)} to {other} at {given.ended:.3f} s"
                self._broken("one owner at a time", group_id, f"{what}; {who} had not released it")

    # What coordinators know.

    def look(self) -> None:
        for machine in self._machines:
            broker = machine.broker
            if broker is None or machine.state is not State.SERVING or not machine.holds_partitions:
                continue
            for coordinator in broker.groups.coordinators():
                if coordinator.phase is Phase.ACTIVE:
                    for group in coordinator.machine.groups.values():
                        self._state(machine.name, group)

    def _state(self, coordinator: str, group: ConsumerGroup | StreamsGroup | ClassicGroup | Any) -> None:
        owners: dict[Owned, str] = {}
        for member_id, partition in _held_by_state(group):
            owner = owners.setdefault(partition, member_id)
            if owner != member_id:
                what = f"on {coordinator}, {group.group_id} has partition {_shown(partition)} assigned"
                self._broken("one owner by state", group.group_id, f"{what} to {owner} and to {member_id}")


def _held_by_state(group: ConsumerGroup | StreamsGroup | ClassicGroup | Any) -> Iterator[tuple[str, Owned]]:
    if isinstance(group, ConsumerGroup):
        for member in group.members.values():
            for assigned in (member.assigned, member.pending_revocation):
                for topic_id, partitions in assigned.items():
                    for index in partitions:
                        yield member.member_id, (topic_id, index)
    elif isinstance(group, StreamsGroup):
        for streams in group.members.values():
            for key, index in streams.tasks():
                if key.role is Role.ACTIVE:
                    yield streams.member_id, (key.subtopology, index)
    elif isinstance(group, ClassicGroup) and group.state is ClassicState.STABLE and group.uses_consumer_protocol:
        for classic in group.members.values():
            for partition in classic_assignment(classic.assignment):
                yield classic.member_id, partition


def classic_assignment(data: bytes) -> list[Owned]:
    """Returns the partitions of a classic member's assignment; an empty list if the bytes are not a consumer
    assignment."""
    try:
        version = int.from_bytes(data[:2], "big", signed=True)
        found, _ = decode_prefix(ConsumerProtocolAssignment, min(version, NEWEST_ASSIGNMENT), data, 2)
    except (DecodeError, KeyError, ValueError):
        return []
    return [(each.topic, index) for each in found.assigned_partitions for index in each.partitions]


def _shown(partition: Owned) -> str:
    topic, index = partition
    return f"{topic if isinstance(topic, str) else topic.hex()[:8]}-{index}"
