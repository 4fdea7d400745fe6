"""Writes and applies the records of streams groups. No other module writes or applies them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.groups.reconciliation import JOIN_EPOCH, MemberState
from penstock.groups.streams.group import (
    FIRST_EPOCH,
    AssignedTasks,
    Role,
    StreamsGroup,
    StreamsMember,
    TaskKey,
    Tasks,
)
from penstock.groups.streams.topology import Topology, from_record
from penstock.protocol.persisted.group import streams_group_current_member_assignment as current
from penstock.protocol.persisted.group import streams_group_target_assignment_member as targets
from penstock.protocol.persisted.group.streams_group_current_member_assignment import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
)
from penstock.protocol.persisted.group.streams_group_member_metadata import (
    Endpoint,
    KeyValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
)
from penstock.protocol.persisted.group.streams_group_metadata import (
    LastAssignmentConfig,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
)
from penstock.protocol.persisted.group.streams_group_target_assignment_member import (
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
)
from penstock.protocol.persisted.group.streams_group_target_assignment_metadata import (
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
)
from penstock.protocol.persisted.group.streams_group_topology import (
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)

if TYPE_CHECKING:
    from penstock.groups.turn import JournalRecord, Turn

STREAMS_KEYS = (
    StreamsGroupMetadataKey,
    StreamsGroupMemberMetadataKey,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupTopologyKey,
)
#: Kafka numbers the states of a streams group's member from 1, those of a consumer group's member from 0.
FIRST_STATE = 1

# --- writing


def record_member(turn: Turn, group_id: str, member: StreamsMember) -> None:
    turn.record(
        StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        StreamsGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topology_epoch=member.topology_epoch,
            process_id=member.process_id,
            user_endpoint=None
            if member.endpoint is None
            else Endpoint(host=member.endpoint[0], port=member.endpoint[1]),
            client_tags=[KeyValue(key=key, value=value) for key, value in sorted(member.tags.items())],
        ),
    )


def record_topology(turn: Turn, group_id: str, topology: Topology) -> None:
    turn.record(
        StreamsGroupTopologyKey(group_id=group_id),
        StreamsGroupTopologyValue(epoch=topology.epoch, subtopologies=list(topology.subtopologies.values())),
    )


def record_epoch(
    turn: Turn, group_id: str, epoch: int, metadata_hash: int, validated_epoch: int, configs: Mapping[str, str]
) -> None:
    turn.record(
        StreamsGroupMetadataKey(group_id=group_id),
        StreamsGroupMetadataValue(
            epoch=epoch,
            metadata_hash=metadata_hash,
            validated_topology_epoch=validated_epoch,
            last_assignment_configs=[LastAssignmentConfig(key=key, value=configs[key]) for key in sorted(configs)],
        ),
    )


def record_target(turn: Turn, group_id: str, member_id: str, tasks: Tasks) -> None:
    def listed(role: Role) -> list[targets.TaskIds]:
        return [
            targets.TaskIds(subtopology_id=key.subtopology, partitions=sorted(indexes))
            for key, indexes in sorted(tasks.items())
            if key.role is role
        ]

    turn.record(
        StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        StreamsGroupTargetAssignmentMemberValue(
            active_tasks=listed(Role.ACTIVE), standby_tasks=listed(Role.STANDBY), warmup_tasks=listed(Role.WARMUP)
        ),
    )


def record_target_epoch(turn: Turn, group_id: str, epoch: int) -> None:
    turn.record(
        StreamsGroupTargetAssignmentMetadataKey(group_id=group_id),
        StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=turn.wall_ms),
    )


def record_current(turn: Turn, group_id: str, member: StreamsMember) -> None:
    def listed(tasks: AssignedTasks, role: Role) -> list[current.TaskIds]:
        """Lists the tasks of one role; only active tasks have epochs."""
        return [
            current.TaskIds(
                subtopology_id=key.subtopology,
                partitions=sorted(since),
                assignment_epochs=[since[index] for index in sorted(since)] if role is Role.ACTIVE else [],
            )
            for key, since in sorted(tasks.items())
            if key.role is role and since
        ]

    held, revoked = member.assigned, member.pending_revocation
    turn.record(
        StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state + FIRST_STATE,
            active_tasks=listed(held, Role.ACTIVE),
            standby_tasks=listed(held, Role.STANDBY),
            warmup_tasks=listed(held, Role.WARMUP),
            active_tasks_pending_revocation=listed(revoked, Role.ACTIVE),
            standby_tasks_pending_revocation=listed(revoked, Role.STANDBY),
            warmup_tasks_pending_revocation=listed(revoked, Role.WARMUP),
        ),
    )


def erase_member(turn: Turn, group_id: str, member_id: str) -> None:
    turn.record(StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None)
    turn.record(StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None)
    turn.record(StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None)


def erase_group(turn: Turn, group: StreamsGroup) -> None:
    for member_id in group.members:
        erase_member(turn, group.group_id, member_id)
    turn.record(StreamsGroupTargetAssignmentMetadataKey(group_id=group.group_id), None)
    turn.record(StreamsGroupTopologyKey(group_id=group.group_id), None)
    turn.record(StreamsGroupMetadataKey(group_id=group.group_id), None)


# --- applying


def apply(group: StreamsGroup, record: JournalRecord) -> None:
    """Applies a record to a group. The record that deletes a group is applied by `GroupShard`."""
    key, value = record
    match key:
        case StreamsGroupMetadataKey():
            if value is not None:
                group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
                group.validated_epoch = value.validated_topology_epoch
                group.assignment_configs = {each.key: each.value for each in value.last_assignment_configs or ()}
        case StreamsGroupTopologyKey():
            group.topology = from_record(value) if value is not None else None
        case StreamsGroupMemberMetadataKey():
            _apply_member(group, key.member_id, value)
        case StreamsGroupTargetAssignmentMetadataKey():
            group.assignment_epoch = value.assignment_epoch if value is not None else FIRST_EPOCH
            group.assignment_ms = value.assignment_timestamp if value is not None else 0
        case StreamsGroupTargetAssignmentMemberKey():
            if value is None:
                group.target.pop(key.member_id, None)
            else:
                group.target[key.member_id] = _read_target(value)
        case StreamsGroupCurrentMemberAssignmentKey():
            _apply_current(group, key.member_id, value)


def _apply_member(group: StreamsGroup, member_id: str, value: StreamsGroupMemberMetadataValue | None) -> None:
    if value is None:
        group.drop(member_id)
        for timers in (group.sessions, group.revocations):
            timer = timers.pop(member_id, None)
            if timer is not None:
                timer.cancel()
        return
    endpoint = value.user_endpoint
    group.put(
        replace(
            group.members.get(member_id) or StreamsMember(member_id),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            endpoint=(endpoint.host, endpoint.port) if endpoint is not None else None,
            tags={each.key: each.value for each in value.client_tags},
        )
    )


def _apply_current(group: StreamsGroup, member_id: str, value: StreamsGroupCurrentMemberAssignmentValue | None) -> None:
    known = group.members.get(member_id)
    if value is None:
        if known is not None:
            left = replace(known, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH, assigned={}, pending_revocation={})
            group.put(left)
        return
    group.put(
        replace(
            known or StreamsMember(member_id),
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state - FIRST_STATE),
            assigned=_read_tasks(
                (value.active_tasks, value.standby_tasks, value.warmup_tasks), unknown_since=value.member_epoch
            ),
            pending_revocation=_read_tasks(
                (
                    value.active_tasks_pending_revocation,
                    value.standby_tasks_pending_revocation,
                    value.warmup_tasks_pending_revocation,
                ),
                unknown_since=value.member_epoch,
            ),
        )
    )


def _read_tasks(by_role: Iterable[Iterable[current.TaskIds]], *, unknown_since: int) -> AssignedTasks:
    """Reads assigned tasks.

    Kafka before 4.3 wrote active tasks without epochs. Such tasks count as assigned in the member's epoch.
    """
    found: dict[TaskKey, dict[int, int]] = {}
    for role, listed in zip(Role, by_role):
        for each in listed:
            since = each.assignment_epochs or [unknown_since if role is Role.ACTIVE else 0] * len(each.partitions)
            found[TaskKey(role, each.subtopology_id)] = dict(zip(each.partitions, since))
    return found


def _read_target(value: StreamsGroupTargetAssignmentMemberValue) -> Tasks:
    return {
        TaskKey(role, each.subtopology_id): frozenset(each.partitions)
        for role, listed in zip(Role, (value.active_tasks, value.standby_tasks, value.warmup_tasks))
        for each in listed
    }
