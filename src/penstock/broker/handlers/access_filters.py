"""Filters responses: removes the items that the client may not see. `access.py` lists these filters by API."""

from __future__ import annotations

from typing import Any

from penstock.broker.handlers.access_rules import (
    BATCHED_OFFSET_FETCH,
    CLUSTER,
    DENIALS,
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    Asker,
    named_topics,
)
from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import NO_LEADER_EPOCH, NO_OFFSET
from penstock.security.vocabulary import CLUSTER_NAME, Operation


def visible_topics(asker: Asker, request: Any, response: Any) -> None:
    """Filters a Metadata response about all topics: removes the topics that the client may not describe."""
    response.topics = [topic for topic in response.topics if topic.error_code or asker.sees(TOPIC, topic.name)]
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            if topic.name and not topic.error_code:
                topic.topic_authorized_operations = asker.access.operations(asker.ctx, TOPIC, topic.name)
    cluster_operations(asker, request, response)


def cluster_operations(asker: Asker, request: Any, response: Any) -> None:
    if request.include_cluster_authorized_operations:
        visible = asker.may_cluster(Operation.DESCRIBE)
        operations = asker.access.operations(asker.ctx, CLUSTER, CLUSTER_NAME) if visible else 0
        response.cluster_authorized_operations = operations


def topic_operations(asker: Asker, request: Any, response: Any) -> None:
    for topic in response.topics:
        if topic.name:
            topic.topic_authorized_operations = asker.access.operations(asker.ctx, TOPIC, topic.name)


def visible_groups(asker: Asker, request: Any, response: Any) -> None:
    """Filters a ListGroups response of another node: removes the groups that the client may not describe."""
    if not asker.access.sees(asker.ctx, Operation.DESCRIBE, CLUSTER, CLUSTER_NAME):
        response.groups = [group for group in response.groups if asker.sees(GROUP, group.group_id)]


def group_operations(asker: Asker, request: Any, response: Any) -> None:
    if request.include_authorized_operations:
        for group in response.groups:
            if not group.error_code:
                group.authorized_operations = asker.access.operations(asker.ctx, GROUP, group.group_id)


def described_members(asker: Asker, request: Any, response: Any) -> None:
    """Hides the members of a consumer or share group unless the client may describe all topics of the group."""
    group_operations(asker, request, response)
    for group in response.groups:
        if not all(asker.sees(TOPIC, name) for name in _assigned_topics(group)):
            _hide_topics(group)


def described_topologies(asker: Asker, request: Any, response: Any) -> None:
    """Filters a StreamsGroupDescribe response.

    Hides the members and the topology of a group unless the client may describe all topics of the topology.
    """
    group_operations(asker, request, response)
    for group in response.groups:
        if not all(asker.sees(TOPIC, name) for name in named_topics(group.topology)):
            _hide_topics(group)
            group.topology = None


def _hide_topics(group: Any) -> None:
    group.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    group.error_message = "The group uses topics that the client is not authorized to describe."
    group.members = []


def _assigned_topics(group: Any) -> set[str]:
    names: set[str] = set()
    for member in group.members:
        names.update(member.subscribed_topic_names)
        for assignment in (member.assignment, getattr(member, "target_assignment", None)):
            if assignment is not None:
                names.update(topic.topic_name for topic in assignment.topic_partitions)
    return names


def visible_offsets(asker: Asker, request: Any, response: Any) -> None:
    """Filters an OffsetFetch response: hides the topics that the client may not describe.

    A topic that the request named gets an error; any other topic is removed.
    """
    if asker.ctx.api_version < BATCHED_OFFSET_FETCH:
        response.topics = _offsets(asker, response.topics, named_topics=request.topics is not None)
        return
    asked = {group.group_id: group.topics for group in request.groups}
    for group in response.groups:
        group.topics = _offsets(asker, group.topics, named_topics=asked.get(group.group_id) is not None)


def _offsets(asker: Asker, topics: Any, *, named_topics: bool) -> list[Any]:
    kept = []
    for topic in topics:
        name = asker.topic(topic)
        if name is None or asker.sees(TOPIC, name):
            kept.append(topic)
        elif named_topics:
            for partition in topic.partitions:
                partition.committed_offset, partition.committed_leader_epoch, partition.metadata = (
                    NO_OFFSET,
                    NO_LEADER_EPOCH,
                    "",
                )
                partition.error_code = DENIALS[TOPIC]
            kept.append(topic)
    return kept


def visible_share_offsets(asker: Asker, request: Any, response: Any) -> None:
    """Filters a DescribeShareGroupOffsets response: hides the topics that the client may not describe.

    A topic that the request named gets an error; any other topic is removed.
    """
    asked = {group.group_id: group.topics for group in request.groups}
    for group in response.groups:
        hidden = [topic for topic in group.topics if not asker.sees(TOPIC, topic.topic_name)]
        if asked.get(group.group_id) is None:
            group.topics = [topic for topic in group.topics if topic not in hidden]
            continue
        for topic in hidden:
            for partition in topic.partitions:
                partition.start_offset, partition.lag = NO_OFFSET, NO_OFFSET
                partition.error_code = DENIALS[TOPIC]


def visible_transactions(asker: Asker, request: Any, response: Any) -> None:
    response.transaction_states = [
        state for state in response.transaction_states if asker.sees(TRANSACTIONAL_ID, state.transactional_id)
    ]


def visible_transaction_topics(asker: Asker, request: Any, response: Any) -> None:
    for state in response.transaction_states:
        state.topics = [topic for topic in state.topics if asker.sees(TOPIC, topic.topic)]


def created_configs(asker: Asker, request: Any, response: Any) -> None:
    """Filters a CreateTopics response: hides configs and counts of a topic if the client lacks DESCRIBE_CONFIGS."""
    for topic in response.topics:
        if topic.error_code or asker.access.sees(asker.ctx, Operation.DESCRIBE_CONFIGS, TOPIC, topic.name):
            continue
        topic.topic_config_error_code = DENIALS[TOPIC]
        topic.num_partitions = topic.replication_factor = -1
        topic.configs = []
