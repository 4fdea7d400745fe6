"""Derives a streams group's tasks from its topology, and the internal topics that must be created.

Checks that copartitioned topics have the same partition count. A changelog topic gets one partition for each task of
its subtopology. A repartition topic without a fixed count is sized by the subtopology that writes to it: it gets the
largest partition count of the topics that this subtopology reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from penstock.groups.streams.topology import Topology, copartitioned
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.persisted.group.streams_group_topology import Subtopology, TopicInfo

if TYPE_CHECKING:
    from penstock.metadata.image import MetadataImage

SHOWN_TOPICS = 3
#: Tasks of a topology, and partitions of the topics that they use: a member may have all tasks, and each of its
#: heartbeats would hold the event loop for too long if there were more. The coordinator creates the internal topics.
MAX_TASKS = 5000
MAX_PARTITIONS = 50_000
Count = Callable[[str], int | None]  # the number of partitions of a topic; None if it does not exist


class Status(IntEnum):
    """Holds the reason why a member can't run all of its tasks. The response to a heartbeat contains the status."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class Problem(NamedTuple):
    status: Status
    detail: str


class InternalTopic(NamedTuple):
    """Describes a repartition or changelog topic with its current settings, or with the settings for its creation."""

    name: str
    partitions: int
    replication_factor: int  # 0 for the cluster's default
    configs: Mapping[str, str]

    @classmethod
    def requested(cls, topic: TopicInfo) -> InternalTopic:
        """Returns the topic as a member sent it. 0 partitions means that the group decides the number."""
        configs = {each.key: each.value for each in topic.topic_configs}
        return cls(topic.name, topic.partitions, topic.replication_factor, configs)


@dataclass(frozen=True, slots=True)
class ConfiguredSubtopology:
    tasks: int
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    repartitions: tuple[InternalTopic, ...] = ()
    changelogs: tuple[InternalTopic, ...] = ()

    @property
    def is_stateful(self) -> bool:
        return bool(self.changelogs)

    @property
    def inputs(self) -> list[str]:
        return sorted({*self.sources, *(topic.name for topic in self.repartitions)})


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    epoch: int
    subtopologies: Mapping[str, ConfiguredSubtopology] = field(default_factory=dict)
    missing: Mapping[str, InternalTopic] = field(default_factory=dict)
    problem: Problem | None = None
    #: Says that the group keeps its tasks, although its topics have more partitions now.
    notice: Problem | None = None

    @property
    def is_ready(self) -> bool:
        return self.problem is None


def partitions_in(image: MetadataImage) -> Count:
    """Returns a function that counts the partitions of a topic of the image."""

    def count(topic: str) -> int | None:
        found = image.topics.get(topic)
        return len(found.partitions) if found is not None else None

    return count


class _Refused(Exception):
    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.problem = Problem(status, detail)


class _TooLarge(Exception):
    """Raised for a topology with too many tasks. The text says how many there are, and how many are allowed."""


def configure(topology: Topology, existing: Count, former: Mapping[str, int] | None = None) -> ConfiguredTopology:
    """Returns the topology with its tasks. Raises STREAMS_INVALID_TOPOLOGY if the topology itself is wrong.

    `former` maps each subtopology of a running group to its number of tasks; it is None for a new group. A topic may
    get so many new partitions that the limit of tasks is exceeded. A running group then keeps its tasks, and does not
    read the new partitions; a notice says so.
    """
    try:
        return _configure(topology, existing)
    except _TooLarge as refused:
        reason = str(refused)
    if former is None:
        raise _invalid(f"{reason}: read topics with fewer partitions, or divide the application.")
    try:
        kept = _configure(topology, _as_before(topology, existing, former))
    except _TooLarge:  # the group has no tasks yet
        return ConfiguredTopology(topology.epoch, problem=Problem(Status.INCORRECTLY_PARTITIONED_TOPICS, f"{reason}."))
    notice = f"{reason}. New partitions are not read: divide the application, and start it with new topics."
    return replace(kept, notice=Problem(Status.ASSIGNMENT_DELAYED, notice))


def _as_before(topology: Topology, existing: Count, former: Mapping[str, int]) -> Count:
    """Returns a function that counts only those partitions of a topic that the present tasks read."""

    def count(topic: str) -> int | None:
        found, read = existing(topic), former.get(topology.readers.get(topic, ""))
        return found if found is None or read is None else min(found, read)

    return count


def _configure(topology: Topology, existing: Count) -> ConfiguredTopology:
    try:
        counts = _decide_counts(topology, existing)
        found = {
            name: _configured(topology.subtopologies[name], counts, existing) for name in sorted(topology.subtopologies)
        }
        missing = _missing_topics(found.values(), existing)
    except _Refused as refused:
        return ConfiguredTopology(topology.epoch, problem=refused.problem)
    problem = None
    if missing:
        problem = Problem(Status.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {_named(missing)}")
    return ConfiguredTopology(topology.epoch, found, missing, problem)


def _named(topics: Iterable[str]) -> str:
    names = sorted(topics)
    more = len(names) - SHOWN_TOPICS
    return ", ".join(names[:SHOWN_TOPICS]) + (f" and {more} additional topics" if more > 0 else "")


def _decide_counts(topology: Topology, existing: Count) -> dict[str, int]:
    """Returns the partition counts of all internal topics that the topology needs."""
    subtopologies = [topology.subtopologies[name] for name in sorted(topology.subtopologies)]
    absent = {topic for each in subtopologies for topic in each.source_topics if existing(topic) is None}
    if absent:
        raise _Refused(Status.MISSING_SOURCE_TOPICS, f"Source topics {_named(absent)} are missing.")
    counts = _repartition_counts(topology, subtopologies, existing)

    def count(topic: str) -> int:
        found = existing(topic)
        return found if found is not None else counts[topic]

    fixed = {topic.name for each in subtopologies for topic in each.repartition_source_topics if topic.partitions}
    repartitions = {topic.name for each in subtopologies for topic in each.repartition_source_topics}
    for each in subtopologies:
        for topics in copartitioned(each):
            counts.update(_copartition({topic: count(topic) for topic in topics}, fixed, repartitions))
    total = partitions = 0
    for each in subtopologies:
        inputs = _inputs(each)
        if not inputs:
            raise _invalid(f"Subtopology {each.subtopology_id} reads no topics: give it a source topic.")
        tasks = max(map(count, inputs))
        counts.update({topic.name: tasks for topic in each.state_changelog_topics})
        total += tasks
        partitions += sum(map(count, set(inputs))) + tasks * len(each.state_changelog_topics)
    if total > MAX_TASKS:
        raise _TooLarge(f"The topology has {total} tasks, more than the limit of {MAX_TASKS}")
    if partitions > MAX_PARTITIONS:
        raise _TooLarge(f"The topology uses {partitions} partitions, more than the limit of {MAX_PARTITIONS}")
    return counts


def _inputs(subtopology: Subtopology) -> list[str]:
    return [*subtopology.source_topics, *(topic.name for topic in subtopology.repartition_source_topics)]


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, reason)


def _repartition_counts(topology: Topology, subtopologies: list[Subtopology], existing: Count) -> dict[str, int]:
    """Returns the partition count of each repartition topic.

    Follows the topology from its source topics. A repartition topic gets its count from the subtopology that writes to
    it: the largest partition count of the topics that this subtopology reads.
    """
    counts = {
        topic.name: topic.partitions
        for each in subtopologies
        for topic in each.repartition_source_topics
        if topic.partitions
    }
    waiting = deque(subtopologies)
    sized: set[str] = set()  # subtopologies whose sinks all have a count
    while waiting:
        each = waiting.popleft()
        if each.subtopology_id in sized:
            continue
        inputs = [counts.get(topic.name) for topic in each.repartition_source_topics]
        known = [count for count in (*inputs, *map(existing, each.source_topics)) if count is not None]
        if not known:
            continue  # it comes again once one of its inputs has a count
        sized.add(each.subtopology_id)
        largest = max(known)
        for sink in each.repartition_sink_topics:
            if sink not in counts:
                counts[sink] = largest
                reader = topology.readers.get(sink)
                if reader is not None:
                    waiting.append(topology.subtopologies[reader])
    if any(sink not in counts for each in subtopologies for sink in each.repartition_sink_topics):
        raise _invalid(
            "The partition count of a repartition topic can't be determined: remove the loop from the topology."
        )
    if any(topic.name not in counts for each in subtopologies for topic in each.repartition_source_topics):
        raise _invalid(
            "No subtopology writes to one of the repartition topics: add the topic to a subtopology's sinks."
        )
    return counts


def _copartition(topics: Mapping[str, int], fixed: set[str], repartition_topics: set[str]) -> dict[str, int]:
    """Returns the partition count of each repartition topic in a copartition group.

    This is the partition count of the group's other topics, which must all have the same count.
    """
    repartitions = topics.keys() & repartition_topics
    decisive = {topic: topics[topic] for topic in (topics.keys() - repartitions) or (topics.keys() & fixed)}
    if len(set(decisive.values())) > 1:
        shown = ", ".join(f"{topic}={count}" for topic, count in sorted(decisive.items()))
        raise _Refused(
            Status.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{shown}}}]",
        )
    wanted = max((decisive or topics).values(), default=0)
    for topic in sorted(repartitions & fixed):
        if topics[topic] != wanted:
            raise _Refused(
                Status.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{topics[topic]}] of repartition topic [{topic}] doesn't match number of "
                f"partitions [{wanted}] of the source topic.",
            )
    return dict.fromkeys(repartitions, wanted)


def _configured(subtopology: Subtopology, counts: Mapping[str, int], existing: Count) -> ConfiguredSubtopology:
    def internal(topic: TopicInfo) -> InternalTopic:
        return InternalTopic.requested(topic)._replace(partitions=topic.partitions or counts[topic.name])

    found = [(existing(topic), counts.get(topic, 0)) for topic in _inputs(subtopology)]
    return ConfiguredSubtopology(
        tasks=max(decided if actual is None else actual for actual, decided in found),
        sources=tuple(sorted(set(subtopology.source_topics))),
        sinks=tuple(sorted(set(subtopology.repartition_sink_topics))),
        repartitions=tuple(internal(topic) for topic in subtopology.repartition_source_topics),
        changelogs=tuple(internal(topic) for topic in subtopology.state_changelog_topics),
    )


def _missing_topics(subtopologies: Iterable[ConfiguredSubtopology], existing: Count) -> dict[str, InternalTopic]:
    missing: dict[str, InternalTopic] = {}
    for topic in (topic for each in subtopologies for topic in (*each.repartitions, *each.changelogs)):
        actual = existing(topic.name)
        if actual is None:
            missing[topic.name] = topic
        elif actual != topic.partitions:
            raise _Refused(
                Status.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {topic.name} has different number of partitions: expected {topic.partitions}, found "
                f"{actual}",
            )
    return missing
