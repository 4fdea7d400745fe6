"""Plans a read on the driver: asks the brokers for partitions, their offsets, and the directories of their logs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from penstock.client.cluster import TopicInfo
from penstock.client.sync import Client
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.protocol.messages.api_35_describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from penstock.protocol.primitives import EncodeError
from penstock.protocol.uuid import ZERO_UUID, uuid_to_str
from penstock.protocol.vocabulary import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from penstock.security.vocabulary import Operation
from penstock.spark.errors import SourceError, in_one_sentence
from penstock.spark.java_patterns import java_pattern
from penstock.spark.options import Position, SourceOptions
from penstock.spark.ranges import OffsetRange, Offsets
from penstock.spark.sink_decisions import PREFIX as DECISIONS

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileHint:
    """Holds the log directory in which the leader of a partition keeps its replica.

    A task on the leader's machine can read the files of this directory.
    """

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
    """Batches in which all records are older are skipped; older records in other batches are not removed."""
    topic_id: str | None = None
    """The id of the topic for which the offsets are valid; a topic that was created again has another id."""

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}:{self.end}]"


def matching(pattern: str, topics: Iterable[TopicInfo]) -> list[str]:
    """Returns the names of the topics that match a pattern, without internal topics, as in Spark's own source.

    Internal topics are the brokers' own topics, such as `__consumer_offsets`, and the topics in which the exactly-once
    sink records its commits. A query reads them only if option `subscribe` names them.
    """
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
        """Returns the partitions to read now.

        Raises SourceError if the options name a topic or partition that does not exist.
        """
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
                    raise SourceError(f"Topic {topic!r} has {has} and no partition {partition}: correct option assign.")
            return sorted(options.assigned)
        return sorted((name, partition) for name in names for partition in known[name].partitions)

    def topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """Returns topic ids by name, from the newest metadata. Brokers before Kafka 2.8 have no topic ids."""
        known = self._client.cluster.topics
        found = {topic: known[topic].topic_id for topic, _ in partitions if topic in known}
        return {topic: uuid_to_str(each) for topic, each in found.items() if each != ZERO_UUID}

    def existing(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Returns the given partitions that exist now.

        Repeats the request for an unknown topic, because a broker may not know a new topic yet.
        """
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
        """Returns the offset at which reading ends, for each partition.

        This is the high watermark; with read_committed, the last stable offset.
        """
        return self._listed(dict.fromkeys(partitions, LATEST))

    def high_watermarks(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Returns the high watermark of each partition, even if the options set read_committed."""
        return self._listed(dict.fromkeys(partitions, LATEST), READ_UNCOMMITTED)

    def _listed(self, wanted: Mapping[TopicPartition, int], isolation_level: int | None = None) -> Offsets:
        if not wanted:
            return {}
        with in_one_sentence(f"The offsets of {self._options.wanted} could not be listed"):
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
                    "set startingOffsetsByTimestampStrategy=latest to start at the partition's end."
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
        """Returns, for each partition, the offset of the first record at or after the given time.

        If all records of a partition are older, returns the partition's end offset.
        """
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
            raise SourceError(f"Option {name} does not name {topic}-{partition}: it has to name every partition.")
        unknown = [each for each in given if each not in set(partitions)]
        if unknown:
            topic, partition = unknown[0]
            raise SourceError(
                f"Option {name} names {topic}-{partition}, which does not exist: remove this partition from the option."
            )
        return dict(given)

    def ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """Returns the offset ranges that a batch reads.

        Raises SourceError if some of the offsets do not exist. With failOnDataLoss=false, missing offsets are skipped
        instead.
        """
        first, last = self.earliest(start), self.latest(start)
        found = []
        for each in sorted(start):
            topic, partition = each
            low, high = start[each], end[each]
            if not (first[each] <= low <= last[each] and high <= last[each]):
                there = f"{first[each]} to {last[each]}"
                self.data_loss(f"{topic}-{partition} holds offsets {there}, but {low} to {high} were requested")
                low, high = min(max(low, first[each]), last[each]), min(high, last[each])
            found.append(OffsetRange(topic, partition, low, max(low, high)))
        return found

    def data_loss(self, loss: str) -> None:
        """Raises SourceError about lost records. With failOnDataLoss=false, logs a warning instead."""
        if self._options.fail_on_data_loss:
            raise SourceError(f"{loss}: set failOnDataLoss=false to skip the missing records.")
        logger.warning("%s: the missing records are skipped (failOnDataLoss=false)", loss)

    # Files

    def file_hints(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, FileHint]:
        """Returns the log directory of each partition on its leader.

        Leaves out partitions whose directory is not known: tasks fetch these partitions from the leaders. Leaves out
        topics that the client may not READ, because their files would show records that the authorizer refuses.
        """
        wanted = sorted(set(partitions))
        if self._options.read_mode == "wire" or not wanted:
            return {}
        found: dict[TopicPartition, FileHint] = {}
        try:
            readable = self._readable({topic for topic, _ in wanted})
            wanted = [each for each in wanted if each[0] in readable]
            by_leader: dict[int, list[TopicPartition]] = {}
            for topic, partition in wanted:
                by_leader.setdefault(self._client.leader(topic, partition), []).append((topic, partition))
            for node, members in by_leader.items():
                found |= self._hints_of(node, members)
        except KafkaError as error:
            if self._options.read_mode == "files":
                why = error.message or error.code.name
                raise SourceError(
                    f"The brokers' log directories can't be listed ({why}): use read.mode=wire."
                ) from None
        return found

    def _readable(self, topics: set[str]) -> set[str]:
        """Returns the topics that this client may READ; all topics if there is no authorizer.

        Returns no topics if the broker is older than Kafka 2.3, because it can't report the client's permissions.
        Raises KafkaError if read.mode=files and the client may not read one of the topics.
        """
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in sorted(topics)],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        try:
            answer: MetadataResponse = self._client.request(request)
        except EncodeError:
            answer = MetadataResponse()
        granted = {
            topic.name
            for topic in answer.topics
            if topic.name and not topic.error_code and topic.topic_authorized_operations & (1 << Operation.READ)
        }
        if self._options.read_mode == "files" and granted != topics:
            refused = ", ".join(sorted(topics - granted))
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"the client has no READ permission on {refused}")
        return granted

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
