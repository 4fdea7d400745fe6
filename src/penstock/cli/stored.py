"""Reads and writes a group's committed offsets without joining the group.

Uses request versions that have topic names instead of topic ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.cli.connect import Broker, failure
from penstock.cli.exit import Exit, Failure
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_08_offset_commit as commit
from penstock.protocol.messages import api_09_offset_fetch as fetch
from penstock.protocol.vocabulary import TopicPartition

LAST_VERSION_WITH_NAMES = 9


def stored_offsets(broker: Broker, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the group's committed offset of each partition."""
    topics = [
        fetch.OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
        for name, indexes in _by_topic(partitions).items()
    ]
    request = fetch.OffsetFetchRequest(groups=[fetch.OffsetFetchRequestGroup(group_id=group, topics=topics)])
    (answer,) = broker.ask_coordinator(group, request, at_most=LAST_VERSION_WITH_NAMES).groups
    if answer.error_code:
        raise failure(f"group {group}", answer.error_code, None)
    return {
        (topic.name, part.partition_index): part.committed_offset
        for topic in answer.topics
        for part in topic.partitions
        if part.committed_offset >= 0
    }


def store_offsets(broker: Broker, group: str, positions: Mapping[TopicPartition, int]) -> None:
    topics = [
        commit.OffsetCommitRequestTopic(
            name=name,
            partitions=[
                commit.OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=positions[name, index], committed_metadata=""
                )
                for index in indexes
            ],
        )
        for name, indexes in _by_topic(positions).items()
    ]
    request = commit.OffsetCommitRequest(group_id=group, topics=topics)
    for topic in broker.ask_coordinator(group, request, at_most=LAST_VERSION_WITH_NAMES).topics:
        for part in topic.partitions:
            if part.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                raise Failure(
                    f"group {group} has members, which commit its offsets: stop them, or leave --commit out",
                    Exit.FAILED,
                )
            if part.error_code:
                raise failure(f"{topic.name}-{part.partition_index}", part.error_code, None)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped
