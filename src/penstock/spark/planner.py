"""What the driver asks the brokers before tasks run: which partitions, from where to where, where their files are."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from penstock.client.cluster import TopicInfo
from penstock.client.sync import Client
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_35_describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from penstock.protocol.uuid import ZERO_UUID, uuid_to_str
from penstock.protocol.vocabulary import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from penstock.spark.errors import SourceError, in_one_sentence
from penstock.spark.java_patterns import java_pattern
from penstock.spark.options import Position, SourceOptions
from penstock.spark.ranges import OffsetRange, Offsets
from penstock.spark.sink_decisions import PREFIX as DECISIONS

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileHint:
    """Where the leader of a partition keeps it; a task that runs there may read the files itself."""

    log_dir: str
    cluster_id: str
    node_id: int
    topic_id: str


@dataclass(slots=True)
class ReadTask(InputPartition):
    topic: str
    partition: int
    start: int
    end: int
    hint: FileHint | None = None
    min_timestamp_ms: int | None = None
    """Older records aren't wanted; some may come all the same."""
    topic_id: str | None = None
    """Of the topic that the offsets are of; a topic made again has another one."""

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}:{self.end}]"


def matching(pattern: str, topics: Iterable[TopicInfo]) -> list[str]:
    """Names of the topics that a pattern means. Topics that brokers and this sink keep for themselves are left out, as
    Spark's own source leaves them out; their names in `subscribe` give them all the same."""
    wanted = java_pattern(pattern)
    own = [each.name for each in topics if not each.is_internal and not each.name.startswith(DECISIONS)]
    return [name for name in own if wanted.fullmatch(name)]


class Planner:
    def __init__(self, client: Client, options: SourceOptions) -> None:
        self._client = client
        self._options = options

    @property
    def isolation_level(self) -> int:
        return READ_COMMITTED if self._options.read_committed else READ_UNCOMMITTED

    # Partitions

    def partitions(self) -> list[TopicPartition]:
        """What is read now. Topics and partitions that were asked for by name have to be there."""
        options = self._options
        with in_one_sentence(f"The partitions of {options.wanted} could not be listed"):
            if options.pattern is not None:
                self._client.metadata(None)
                names = matching(options.pattern, self._client.cluster.topics.values())
            else:
                names = list(options.topics or dict.fromkeys(topic for topic, _ in options.assigned))
                self._client.metadata(names)
        known = self._client.cluster.topics
        for name in names:
            if name not in known:
                raise SourceError(f"There is no topic {name!r}: create it first, or check the name.")
        if options.assigned:
            for topic, partition in options.assigned:
                if partition not in known[topic].partitions:
                    count = len(known[topic].partitions)
                    has = "1 partition" if count == 1 else f"{count} partitions"
                    raise SourceError(f"Topic {topic!r} has {has} and no partition {partition}.")
            return sorted(options.assigned)
        return sorted((name, partition) for name in names for partition in known[name].partitions)

    def topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """By name, as the last answer about them had it; brokers from before Kafka 2.8 have none."""
        known = self._client.cluster.topics
        found = {topic: known[topic].topic_id for topic, _ in partitions if topic in known}
        return {topic: uuid_to_str(each) for topic, each in found.items() if each != ZERO_UUID}

    def existing(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those that the brokers have now, asked more than once: one may not have heard of a topic yet."""
        wanted = set(partitions)
        with in_one_sentence(f"The topics of {self._options.wanted} could not be looked up"):
            self._client.metadata(sorted({topic for topic, _ in wanted}))
            return {each for each in wanted if each[1] in self._partitions_of(each[0])}

    def _partitions_of(self, topic: str) -> Collection[int]:
        try:
            return self._client.run(self._client.asynchronous.topic(topic)).partitions
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return ()

    # Offsets

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._listed(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The high watermark, or for committed reads the last stable offset: nothing is read past it."""
        return self._listed(dict.fromkeys(partitions, LATEST))

    def high_watermarks(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Where partitions end, whatever is committed."""
        return self._listed(dict.fromkeys(partitions, LATEST), READ_UNCOMMITTED)

    def _listed(self, wanted: Mapping[TopicPartition, int], isolation_level: int | None = None) -> Offsets:
        if not wanted:
            return {}
        with in_one_sentence(f"The offsets of {self._options.wanted} could not be had"):
            level = self.isolation_level if isolation_level is None else isolation_level
            found = self._client.list_offsets(wanted, isolation_level=level)
        return {partition: each.offset for partition, each in found.items()}

    def start(self, position: Position, partitions: list[TopicPartition]) -> Offsets:
        if position.everywhere is not None:
            return self._listed(dict.fromkeys(partitions, position.everywhere))
        times = self._times(position, partitions, "starting")
        if times is not None:
            found = self._listed(times)
            late = [each for each in partitions if found[each] < 0]
            if late and self._options.strict_start_time:
                topic, partition = late[0]
                raise SourceError(
                    f"{topic}-{partition} has no record at or after {times[late[0]]} ms: choose an earlier time, or "
                    "startingOffsetsByTimestampStrategy=latest to start at its end."
                )
            return found | self.latest(late)
        offsets = self._named(position.offsets or {}, partitions, "startingOffsets")
        return offsets | self._listed({each: offset for each, offset in offsets.items() if offset < 0})

    def end(self, position: Position, partitions: list[TopicPartition]) -> Offsets:
        if position.everywhere is not None:
            return self._listed(dict.fromkeys(partitions, position.everywhere))
        times = self._times(position, partitions, "ending")
        if times is not None:
            found = self._listed(times)
            return found | self.latest([each for each in partitions if found[each] < 0])
        offsets = self._named(position.offsets or {}, partitions, "endingOffsets")
        return offsets | self._listed({each: offset for each, offset in offsets.items() if offset < 0})

    def since(self, timestamp_ms: int, partitions: list[TopicPartition]) -> Offsets:
        """For each partition an offset before which everything is older than this; its end if everything is."""
        found = self._listed(dict.fromkeys(partitions, timestamp_ms))
        return found | self.latest([each for each in partitions if found[each] < 0])

    def _times(
        self, position: Position, partitions: list[TopicPartition], what: str
    ) -> Mapping[TopicPartition, int] | None:
        if position.timestamp_ms is not None:
            return dict.fromkeys(partitions, position.timestamp_ms)
        if position.timestamps is not None:
            return self._named(position.timestamps, partitions, f"{what}OffsetsByTimestamp")
        return None

    @staticmethod
    def _named(given: Mapping[TopicPartition, int], partitions: list[TopicPartition], name: str) -> Offsets:
        missing = [each for each in partitions if each not in given]
        if missing:
            topic, partition = missing[0]
            raise SourceError(f"Option {name} says nothing of {topic}-{partition}: it has to name every partition.")
        unknown = [each for each in given if each not in set(partitions)]
        if unknown:
            topic, partition = unknown[0]
            raise SourceError(f"Option {name} names {topic}-{partition}, which is not there.")
        return dict(given)

    def ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """What a batch reads. Offsets that are gone are an error or left out, as failOnDataLoss says."""
        first, last = self.earliest(start), self.latest(start)
        found = []
        for each in sorted(start):
            topic, partition = each
            low, high = start[each], end[each]
            if not (first[each] <= low <= last[each] and high <= last[each]):
                there = f"{first[each]} to {last[each]}"
                self.data_loss(f"{topic}-{partition} holds offsets {there}, and {low} to {high} was asked for")
                low, high = min(max(low, first[each]), last[each]), min(high, last[each])
            found.append(OffsetRange(topic, partition, low, max(low, high)))
        return found

    def data_loss(self, what: str) -> None:
        """Raises SourceError, or says it in the log when the user can live with it."""
        if self._options.fail_on_data_loss:
            raise SourceError(f"{what}: set failOnDataLoss=false to read what is there.")
        logger.warning("%s: going on with what is there", what)

    # Files

    def file_hints(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, FileHint]:
        """Where leaders keep these partitions. Without an answer there is no hint, and tasks ask the broker."""
        wanted = sorted(set(partitions))
        if self._options.read_mode == "wire" or not wanted:
            return {}
        found: dict[TopicPartition, FileHint] = {}
        try:
            by_leader: dict[int, list[TopicPartition]] = {}
            for topic, partition in wanted:
                by_leader.setdefault(self._client.leader(topic, partition), []).append((topic, partition))
            for node, members in by_leader.items():
                found |= self._hints_of(node, members)
        except KafkaError as error:
            if self._options.read_mode == "files":
                why = error.message or error.code.name
                raise SourceError(f"The brokers don't say where their files are ({why}): use read.mode=wire.") from None
        return found

    def _hints_of(self, node: int, members: list[TopicPartition]) -> dict[TopicPartition, FileHint]:
        topics: dict[str, DescribableLogDirTopic] = {}
        for topic, partition in members:
            described = topics.setdefault(topic, DescribableLogDirTopic(topic=topic, partitions=[]))
            described.partitions.append(partition)
        answer: DescribeLogDirsResponse = self._client.request(
            DescribeLogDirsRequest(topics=list(topics.values())), node=node
        )
        cluster = self._client.cluster
        return {
            (topic.name, part.partition_index): FileHint(
                result.log_dir, cluster.cluster_id or "", node, uuid_to_str(cluster.topic_id(topic.name))
            )
            for result in answer.results
            if not result.error_code
            for topic in result.topics
            for part in topic.partitions
            if not part.is_future_key
        }
