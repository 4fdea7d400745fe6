"""Checks the fields of a StreamsGroupHeartbeat request that do not depend on the group, in Kafka's order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.reconciliation import JOIN_EPOCH, LEAVE_STATIC_EPOCH
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.protocol.messages.api_88_streams_group_heartbeat import StreamsGroupHeartbeatRequest, Topology

#: Limits on what a member sends, so that no heartbeat holds the event loop. Applications have some hundred topics.
MAX_TOPICS = 5000
MAX_MEMBER_CHARACTERS = 65_536


def check_size(request: StreamsGroupHeartbeatRequest) -> None:
    """Raises STREAMS_INVALID_TOPOLOGY if the topology has too many entries, INVALID_REQUEST if the member's data is too
    long."""
    if request.topology is not None and _topics(request.topology) > MAX_TOPICS:
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            f"The topology has more than {MAX_TOPICS} topics, topic configs and copartition groups: divide the "
            "application.",
        )
    endpoint = request.user_endpoint.host if request.user_endpoint is not None else None
    tags = request.client_tags or ()
    texts = (request.member_id, request.rack_id, request.process_id, endpoint)
    size = sum(len(text) for text in texts if text) + sum(2 + len(tag.key) + len(tag.value) for tag in tags)
    if size > MAX_MEMBER_CHARACTERS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The member's ids, endpoint and client tags have {size} characters, more than the limit of "
            f"{MAX_MEMBER_CHARACTERS}: use fewer or shorter client tags.",
        )


def _topics(topology: Topology) -> int:
    """Returns the number of entries in a topology: subtopologies, topics, topic configs and copartition groups."""
    total = len(topology.subtopologies)
    for each in topology.subtopologies:
        internal = (*each.repartition_source_topics, *each.state_changelog_topics)
        total += len(each.source_topics) + len(each.repartition_sink_topics)
        total += sum(1 + len(topic.topic_configs) for topic in internal)
        total += sum(
            1 + len(group.source_topics) + len(group.repartition_source_topics) for group in each.copartition_groups
        )
    return total


def check_request(request: StreamsGroupHeartbeatRequest) -> None:
    """Raises INVALID_REQUEST or STREAMS_INVALID_TOPOLOGY, with the reason, for an invalid StreamsGroupHeartbeat."""
    reason = _unsupported(request) or _invalid(request)
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
    for subtopology in request.topology.subtopologies if request.topology is not None else ():
        for topic in subtopology.state_changelog_topics:
            if topic.partitions:
                raise KafkaError(
                    ErrorCode.STREAMS_INVALID_TOPOLOGY,
                    f"Changelog topic {topic.name} has {topic.partitions} partitions in the topology: send 0, because "
                    "the topic gets one partition for each task.",
                )


def _unsupported(request: StreamsGroupHeartbeatRequest) -> str | None:
    """Returns the reason for refusing a request that uses an unsupported feature; None if it uses none.

    Kafka 4.3 refuses the same features.
    """
    if request.instance_id is not None:
        return "Streams groups have no static members yet: give no instance id."
    if request.task_offsets is not None or request.task_end_offsets is not None:
        return "Offsets of tasks are not used yet: give none."
    if request.warmup_tasks:
        return "Warm-up tasks are not assigned yet: give none."
    if request.topology is not None and any(each.source_topic_regex for each in request.topology.subtopologies):
        return "Patterns of source topics are not supported yet: give topic names."
    return None


def _invalid(request: StreamsGroupHeartbeatRequest) -> str | None:
    epoch = request.member_epoch
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    reason = None
    if not request.member_id:
        reason = "The member id is empty: give a member id."
    elif not request.group_id:
        reason = "The group id is empty: give a group id."
    elif request.rack_id == "":
        reason = "The rack id is empty: give a rack, or null for no rack."
    elif epoch == JOIN_EPOCH and request.rebalance_timeout_ms == -1:
        reason = "The joining member has no rebalance timeout: set the timeout."
    elif epoch == JOIN_EPOCH and any(each is None or each for each in tasks):
        reason = "The joining member reports owned tasks: send empty lists."
    elif epoch == JOIN_EPOCH and request.topology is None:
        reason = "The joining member has no topology: send the topology."
    elif epoch == LEAVE_STATIC_EPOCH:
        reason = "Only a static member can leave temporarily: give -1 to leave."
    elif epoch < LEAVE_STATIC_EPOCH:
        reason = f"There is no member epoch {epoch}: give -1 or more."
    elif any(each is None for each in tasks) and any(each is not None for each in tasks):
        reason = "Some kinds of tasks are left out: give active, standby and warm-up tasks, or none of them."
    elif epoch != JOIN_EPOCH and request.topology is not None:
        reason = "A topology is only accepted from a joining member: leave it out."
    return reason
