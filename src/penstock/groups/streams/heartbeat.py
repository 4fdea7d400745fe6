"""Handles StreamsGroupHeartbeat v0. With this request a member joins, stays in, or leaves a streams group.

A member joins with epoch 0 and its topology, and leaves with -1. Other requests report the owned tasks, and the
response contains the next tasks when they change. A status in the response says why a member has no tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.groups.consumer.subscribe import metadata_hash
from penstock.groups.reconciliation import JOIN_EPOCH, check_member_epoch, indexes_of, reconcile
from penstock.groups.streams import journal
from penstock.groups.streams.endpoints import partitions_by_endpoint
from penstock.groups.streams.group import (
    NOT_VALIDATED,
    Role,
    StreamsGroup,
    StreamsMember,
    TaskKey,
    Tasks,
)
from penstock.groups.streams.target import StreamsLimits, Target, assign_target
from penstock.groups.streams.topics import ConfiguredTopology, InternalTopic, Problem, Status, configure, partitions_in
from penstock.groups.streams.topology import Topology, from_request
from penstock.groups.timing import arm_revocation, arm_session
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_88_streams_group_heartbeat as wire
from penstock.protocol.messages.api_88_streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TaskIds,
)

if TYPE_CHECKING:
    from penstock.groups.turn import Caller, Turn
    from penstock.metadata.image import MetadataImage


class Answer(NamedTuple):
    """Holds the response to a heartbeat, and the internal topics that must be created."""

    response: StreamsGroupHeartbeatResponse
    missing: Mapping[str, InternalTopic]


def heartbeat(
    turn: Turn,
    image: MetadataImage,
    limits: StreamsLimits,
    group: StreamsGroup,
    request: StreamsGroupHeartbeatRequest,
    caller: Caller,
) -> Answer:
    """Handles the heartbeat of a member that joins or stays.

    If the group is new, the record of its first epoch creates the group.
    """
    owned = _owned(request)
    member = _find(turn, group, request, owned)
    updated = _updated(member, request, caller)
    changed = updated != member or updated.member_id not in group.members
    if changed:
        journal.record_member(turn, group.group_id, updated)
    problems = _stale(group, updated)
    topology = _topology(turn, group, request)
    configured, digest = _configure(image, group, topology)
    if configured.is_ready:
        _check_tasks(configured, owned)
    epoch = _group_epoch(turn, group, configured, digest, limits, changed)
    group.metadata_changed = False
    target, delayed = _target(turn, group, configured, updated, epoch, limits)
    held = partial(group.is_held, updated.process_id)
    stepped = reconcile(updated, target.epoch, target.tasks, owned, held)
    if stepped != updated:
        journal.record_current(turn, group.group_id, stepped)
    arm_session(turn, group, stepped.member_id, limits.timing.session_timeout_ms)
    arm_revocation(turn, group, stepped)
    if request.shutdown_application and group.shutdown_by is None:
        group.shutdown_by = stepped.member_id
    problems += delayed
    problems += [each for each in (configured.problem, configured.notice) if each is not None]
    problems += _shutdown(group)
    response = StreamsGroupHeartbeatResponse(
        member_id=stepped.member_id,
        member_epoch=stepped.epoch,
        heartbeat_interval_ms=limits.timing.heartbeat_interval_ms,
        status=[wire.Status(status_code=each.status, status_detail=each.detail) for each in problems],
    )
    if request.member_epoch == JOIN_EPOCH or stepped.assigned != member.assigned:
        _list_tasks(response, stepped)
        if stepped.endpoint is not None:
            group.endpoint_epoch += 1
    if group.endpoint_epoch != request.endpoint_information_epoch:
        members = [*(each for key, each in group.members.items() if key != stepped.member_id), stepped]
        response.partitions_by_user_endpoint = partitions_by_endpoint(members, configured, partitions_in(image))
    response.endpoint_information_epoch = group.endpoint_epoch
    return Answer(response, configured.missing)


# --- the member


def _owned(request: StreamsGroupHeartbeatRequest) -> Tasks | None:
    """Returns the tasks that the member reports; None if the request leaves them out."""
    given = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if any(each is None for each in given):
        return None
    return {
        TaskKey(role, each.subtopology_id): frozenset(each.partitions)
        for role, listed in zip(Role, given)
        for each in listed or ()
    }


def _find(turn: Turn, group: StreamsGroup, request: StreamsGroupHeartbeatRequest, owned: Tasks | None) -> StreamsMember:
    """Returns the member as it was before this request."""
    if request.member_epoch != JOIN_EPOCH or request.member_id in group.members:
        member = group.members.find(request.member_id)
        check_member_epoch(member, request.member_epoch, owned)
        return member
    most = turn.config.streams_max_size
    if len(group.members) >= most:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The group is full with {most} members: raise group.streams.max.size or stop a member.",
        )
    return StreamsMember(request.member_id)


def _updated(member: StreamsMember, request: StreamsGroupHeartbeatRequest, caller: Caller) -> StreamsMember:
    """Returns the member with the fields of the request. A field that the request leaves out stays unchanged."""
    endpoint, timeout_ms = request.user_endpoint, request.rebalance_timeout_ms
    return replace(
        member,
        rack_id=request.rack_id or member.rack_id,
        rebalance_timeout_ms=timeout_ms if timeout_ms != -1 else member.rebalance_timeout_ms,
        topology_epoch=request.topology.epoch if request.topology is not None else member.topology_epoch,
        process_id=request.process_id if request.process_id is not None else member.process_id,
        endpoint=(endpoint.host, endpoint.port) if endpoint is not None else member.endpoint,
        tags={each.key: each.value for each in request.client_tags} if request.client_tags is not None else member.tags,
        client_id=caller.client_id,
        client_host=caller.client_host,
    )


# --- the topology


def _stale(group: StreamsGroup, member: StreamsMember) -> list[Problem]:
    if group.topology is None or member.topology_epoch >= group.topology.epoch:
        return []
    detail = (
        f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch "
        f"{group.topology.epoch}."
    )
    return [Problem(Status.STALE_TOPOLOGY, detail)]


def _shutdown(group: StreamsGroup) -> list[Problem]:
    if group.shutdown_by is None:
        return []
    detail = (
        f"Streams group member {group.shutdown_by} encountered a fatal error and requested a shutdown for the entire "
        "application."
    )
    return [Problem(Status.SHUTDOWN_APPLICATION, detail)]


def _topology(turn: Turn, group: StreamsGroup, request: StreamsGroupHeartbeatRequest) -> Topology:
    """Returns the group's topology. The first member's topology becomes the group's topology."""
    if request.topology is None:
        if group.topology is None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The group has no topology: delete it and start again.")
        return group.topology
    given = from_request(request.topology)
    if group.topology is None:
        journal.record_topology(turn, group.group_id, given)
        return given
    if group.topology.epoch <= given.epoch and group.topology != given:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "The group has another topology, and topologies can't be changed yet: use another application.id, or "
            "delete the group.",
        )
    return group.topology


def _configure(image: MetadataImage, group: StreamsGroup, topology: Topology) -> tuple[ConfiguredTopology, int]:
    """Returns the topology with its tasks, and the hash of its topics.

    Derives the tasks again only after a topic change.
    """
    if group.configured is not None and not group.metadata_changed:
        return group.configured, group.metadata_hash
    digest = metadata_hash(image, topology.required)
    if group.configured is None or digest != group.metadata_hash:
        former = group.assigned_tasks() if group.members else None
        group.configured = configure(topology, partitions_in(image), former)
    return group.configured, digest


def _check_tasks(configured: ConfiguredTopology, owned: Tasks | None) -> None:
    for key, indexes in (owned or {}).items():
        subtopology = configured.subtopologies.get(key.subtopology)
        if subtopology is None or not all(0 <= index < subtopology.tasks for index in indexes):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"The member reports tasks of subtopology {key.subtopology}, but the topology does not have these "
                "tasks: report only assigned tasks.",
            )


# --- epochs and tasks


def _group_epoch(
    turn: Turn, group: StreamsGroup, configured: ConfiguredTopology, digest: int, limits: StreamsLimits, changed: bool
) -> int:
    """Returns the group epoch. Records a new epoch after a change of members, topics, topology or configs."""
    validated = configured.epoch if configured.is_ready else NOT_VALIDATED
    changed = (
        changed
        or digest != group.metadata_hash
        or validated != group.validated_epoch
        or limits.assignment_configs != group.assignment_configs
    )
    if not changed:
        return group.epoch
    journal.record_epoch(turn, group.group_id, group.epoch + 1, digest, validated, limits.assignment_configs)
    return group.epoch + 1


def _target(
    turn: Turn,
    group: StreamsGroup,
    configured: ConfiguredTopology,
    member: StreamsMember,
    epoch: int,
    limits: StreamsLimits,
) -> tuple[Target, list[Problem]]:
    """Returns the member's target assignment, and the problems that delay a new target assignment."""
    if not group.members and limits.initial_delay_ms > 0 and not group.initial_delay.armed:
        turn.arm(group.initial_delay, limits.initial_delay_ms)
    if group.initial_delay.armed:
        detail = "Assignment delayed due to the configured initial rebalance delay."
        return Target(group.assignment_epoch, {}), [Problem(Status.ASSIGNMENT_DELAYED, detail)]
    found = assign_target(turn, group, configured, {**group.members, member.member_id: member}, epoch, limits)
    last = Target(group.assignment_epoch, group.target.get(member.member_id, {}))
    if found is not None:
        return Target(epoch, found[member.member_id]), []
    if group.computing is not None:
        return last, [Problem(Status.ASSIGNMENT_DELAYED, "Assignment delayed because it has many tasks.")]
    if epoch > group.assignment_epoch:
        detail = "Assignment delayed due to the configured assignment interval."
        return last, [Problem(Status.ASSIGNMENT_DELAYED, detail)]
    return last, []


def _list_tasks(response: StreamsGroupHeartbeatResponse, member: StreamsMember) -> None:
    def listed(role: Role) -> list[TaskIds]:
        return [
            TaskIds(subtopology_id=key.subtopology, partitions=sorted(indexes))
            for key, indexes in sorted(indexes_of(member.assigned).items())
            if key.role is role
        ]

    response.active_tasks = listed(Role.ACTIVE)
    response.standby_tasks = listed(Role.STANDBY)
    response.warmup_tasks = listed(Role.WARMUP)
