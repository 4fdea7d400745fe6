"""Handles StreamsGroupHeartbeat and StreamsGroupDescribe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups import room
from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.journal import record_deletion
from penstock.groups.reconciliation import JOIN_EPOCH, LEAVE_EPOCH, indexes_of
from penstock.groups.streams.checks import check_request
from penstock.groups.streams.group import Role, StreamsGroup, StreamsMember, Tasks
from penstock.groups.streams.heartbeat import Answer, heartbeat
from penstock.groups.streams.target import remove
from penstock.groups.streams.topics import InternalTopic
from penstock.groups.undo import add_group, keep_soft_state
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_88_streams_group_heartbeat import StreamsGroupHeartbeatResponse
from penstock.protocol.messages.api_89_streams_group_describe import (
    Assignment,
    DescribedGroup,
    Endpoint,
    KeyValue,
    Member,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.groups.shard import GroupShard
    from penstock.groups.turn import Caller, Turn
    from penstock.protocol.messages.api_88_streams_group_heartbeat import StreamsGroupHeartbeatRequest


def streams_heartbeat(shard: GroupShard, turn: Turn, request: StreamsGroupHeartbeatRequest, caller: Caller) -> Answer:
    """Handles a StreamsGroupHeartbeat request. A request that is refused writes no record."""
    try:
        check_request(request)
        room.check_streams_heartbeat(shard, turn, request, caller)
        if request.member_epoch == LEAVE_EPOCH:
            return Answer(_leave(shard, turn, request), {})
        group = _group(shard, turn, request)
        keep_soft_state(turn, group, request.member_id)
        limits = shard.streams_limits(request.group_id)
        answer = heartbeat(turn, shard.image, limits, group, request, caller)
    except KafkaError as error:
        turn.records.clear()
        return Answer(StreamsGroupHeartbeatResponse(error_code=error.code, error_message=error.message), {})
    if shard.groups.get(request.group_id) is not group:
        add_group(shard.groups, turn, group)
        group.endpoint_epoch = answer.response.endpoint_information_epoch = 0
    return answer


def _group(shard: GroupShard, turn: Turn, request: StreamsGroupHeartbeatRequest) -> StreamsGroup:
    group = shard.groups.get(request.group_id)
    joins = request.member_epoch == JOIN_EPOCH
    if group is None and joins:
        return StreamsGroup(request.group_id)
    if isinstance(group, ClassicGroup) and joins and not group.members and not group.pending_members:
        record_deletion(turn, group)  # an empty classic group becomes a streams group with the same offsets
        return StreamsGroup(request.group_id)
    return streams_group(shard, request.group_id)


def streams_group(shard: GroupShard, group_id: str) -> StreamsGroup:
    """Returns the streams group. Raises GROUP_ID_NOT_FOUND if it does not exist or is a group of another type."""
    group = shard.groups.get(group_id)
    if not isinstance(group, StreamsGroup):
        reason = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a streams group."
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, reason)
    return group


def _leave(shard: GroupShard, turn: Turn, request: StreamsGroupHeartbeatRequest) -> StreamsGroupHeartbeatResponse:
    group = streams_group(shard, request.group_id)
    member = group.members.find(request.member_id)
    if request.shutdown_application and group.shutdown_by is None:
        group.shutdown_by = member.member_id
    remove(turn, group, [member.member_id])
    return StreamsGroupHeartbeatResponse(member_id=member.member_id, member_epoch=LEAVE_EPOCH, status=[])


# --- describe


def describe_streams_group(shard: GroupShard, turn: Turn, group_id: str) -> DescribedGroup:
    try:
        group = streams_group(shard, group_id)
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        topology=_topology(group),
        members=[_member(member, group.target.get(member.member_id, {})) for member in group.members.values()],
    )


def _topology(group: StreamsGroup) -> Topology | None:
    """Returns the topology for the response.

    While topics are missing, the topology is as the members sent it. Once all topics exist, it has the partition counts
    of its internal topics.
    """
    if group.configured is not None and group.configured.is_ready:
        return Topology(
            epoch=group.configured.epoch,
            subtopologies=[
                Subtopology(
                    subtopology_id=name,
                    source_topics=list(each.sources),
                    repartition_sink_topics=list(each.sinks),
                    state_changelog_topics=_internal(each.changelogs),
                    repartition_source_topics=_internal(each.repartitions),
                )
                for name, each in group.configured.subtopologies.items()
            ],
        )
    if group.topology is None:
        return None
    return Topology(
        epoch=group.topology.epoch,
        subtopologies=[
            Subtopology(
                subtopology_id=name,
                source_topics=sorted(each.source_topics),
                repartition_sink_topics=sorted(each.repartition_sink_topics),
                state_changelog_topics=_internal(map(InternalTopic.requested, each.state_changelog_topics)),
                repartition_source_topics=_internal(map(InternalTopic.requested, each.repartition_source_topics)),
            )
            for name, each in sorted(group.topology.subtopologies.items())
        ],
    )


def _internal(topics: Iterable[InternalTopic]) -> list[TopicInfo]:
    return [
        TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=_pairs(topic.configs),
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]


def _pairs(values: Mapping[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=value) for key, value in values.items()]


def _member(member: StreamsMember, target: Tasks) -> Member:
    endpoint = member.endpoint
    return Member(
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=Endpoint(host=endpoint[0], port=endpoint[1]) if endpoint is not None else None,
        client_tags=_pairs(member.tags),
        assignment=_assignment(indexes_of(member.assigned)),
        target_assignment=_assignment(target),
    )


def _assignment(tasks: Tasks) -> Assignment:
    def listed(role: Role) -> list[TaskIds]:
        return [
            TaskIds(subtopology_id=key.subtopology, partitions=sorted(indexes))
            for key, indexes in sorted(tasks.items())
            if key.role is role
        ]

    return Assignment(
        active_tasks=listed(Role.ACTIVE), standby_tasks=listed(Role.STANDBY), warmup_tasks=listed(Role.WARMUP)
    )
