"""Defines the topology of a streams application: its subtopologies and their topics.

Members send the topology, and the group's log stores it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.groups import sizes
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.persisted.group.streams_group_topology import (
    CopartitionGroup,
    StreamsGroupTopologyValue,
    Subtopology,
    TopicConfig,
    TopicInfo,
)

if TYPE_CHECKING:
    from penstock.protocol.messages import api_88_streams_group_heartbeat as wire


@dataclass(slots=True, eq=False)
class Topology:
    """Holds a topology. Two topologies are equal if their epochs and subtopologies are equal, in any order."""

    epoch: int
    subtopologies: dict[str, Subtopology]
    readers: dict[str, str] = field(init=False)  # source or repartition topic → the subtopology that reads it
    required: frozenset[str] = field(init=False)  # all topics that the tasks need
    held_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.readers = {}
        changelogs: set[str] = set()
        for each in self.subtopologies.values():
            names = [*each.source_topics, *(topic.name for topic in each.repartition_source_topics)]
            self.readers.update(dict.fromkeys(names, each.subtopology_id))
            changelogs.update(topic.name for topic in each.state_changelog_topics)
        self.required = frozenset(self.readers) | changelogs
        self.held_bytes = sum(map(_size, self.subtopologies.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and (self.epoch, self.subtopologies) == (other.epoch, other.subtopologies)

    def __hash__(self) -> int:
        return hash((self.epoch, tuple(self.subtopologies)))


def _size(subtopology: Subtopology) -> int:
    topics = (*subtopology.repartition_source_topics, *subtopology.state_changelog_topics)
    names = (*subtopology.source_topics, *subtopology.repartition_sink_topics, *(each.name for each in topics))
    configs = [text for each in topics for config in each.topic_configs for text in (config.key, config.value)]
    groups = sizes.ENTRY_BYTES * sum(
        1 + len(each.source_topics) + len(each.repartition_source_topics) for each in subtopology.copartition_groups
    )
    return sizes.texts(subtopology.subtopology_id) + sizes.topics(names) + sizes.topics(configs) + groups


def from_record(value: StreamsGroupTopologyValue) -> Topology:
    return Topology(value.epoch, {each.subtopology_id: each for each in value.subtopologies})


def from_request(topology: wire.Topology) -> Topology:
    """Returns the topology of a heartbeat.

    Raises STREAMS_INVALID_TOPOLOGY if the epoch is negative, if a subtopology is given twice, or if a copartition group
    names a topic that its subtopology does not have.
    """
    if topology.epoch < 0:  # -1 stands for a topology that is not validated yet
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY, f"The topology epoch {topology.epoch} is negative: give 0 or more."
        )
    found = {each.subtopology_id: _subtopology(each) for each in topology.subtopologies}
    if len(found) != len(topology.subtopologies):
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY, "Two subtopologies have the same id: give each its own id."
        )
    return Topology(topology.epoch, found)


def _subtopology(given: wire.Subtopology) -> Subtopology:
    if any(topic.partitions < 0 for topic in given.repartition_source_topics):
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            f"A repartition topic of subtopology {given.subtopology_id} has fewer than 0 partitions: give 0 or more.",
        )
    sources, repartitions = len(given.source_topics), len(given.repartition_source_topics)
    for group in given.copartition_groups:
        if not all(0 <= each < sources for each in group.source_topics) or not all(
            0 <= each < repartitions for each in group.repartition_source_topics
        ):
            raise KafkaError(
                ErrorCode.STREAMS_INVALID_TOPOLOGY,
                f"A copartition group of subtopology {given.subtopology_id} names a topic that the subtopology does "
                "not read: give indexes of its source topics.",
            )
    return Subtopology(
        subtopology_id=given.subtopology_id,
        source_topics=given.source_topics,
        source_topic_regex=given.source_topic_regex,
        state_changelog_topics=[_topic(each) for each in given.state_changelog_topics],
        repartition_sink_topics=given.repartition_sink_topics,
        repartition_source_topics=[_topic(each) for each in given.repartition_source_topics],
        copartition_groups=[
            CopartitionGroup(
                source_topics=each.source_topics,
                source_topic_regex=each.source_topic_regex,
                repartition_source_topics=each.repartition_source_topics,
            )
            for each in given.copartition_groups
        ],
    )


def _topic(given: wire.TopicInfo) -> TopicInfo:
    return TopicInfo(
        name=given.name,
        partitions=given.partitions,
        replication_factor=given.replication_factor,
        topic_configs=[TopicConfig(key=each.key, value=each.value) for each in given.topic_configs],
    )


def copartitioned(subtopology: Subtopology) -> list[frozenset[str]]:
    """Returns the topics of each copartition group, which need the same number of partitions."""
    return [
        frozenset(subtopology.source_topics[each] for each in group.source_topics)
        | frozenset(subtopology.repartition_source_topics[each].name for each in group.repartition_source_topics)
        for group in subtopology.copartition_groups
    ]
