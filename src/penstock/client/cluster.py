"""Caches the cluster's nodes, topics and leaders from Metadata responses. No I/O."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from penstock.client.errors import code_of
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_03_metadata import MetadataResponse
from penstock.protocol.uuid import ZERO_UUID


@dataclass(frozen=True, slots=True)
class Node:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    index: int
    leader: int
    """The leader's node id; -1 if there is none."""
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: dict[int, PartitionInfo]


class LeaderHint(Protocol):
    """Holds the new leader of a partition, from the response of a broker that no longer leads the partition
    (KIP-951)."""

    leader_id: int
    leader_epoch: int


class Endpoint(Protocol):
    """Holds the address of a new leader, from the same response as its LeaderHint (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(slots=True)
class Cluster:
    cluster_id: str | None = None
    controller_id: int = -1
    nodes: dict[int, Node] = field(default_factory=dict)
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    names_by_id: dict[bytes, str] = field(default_factory=dict)

    def update(self, answer: MetadataResponse, *, all_topics: bool = False) -> None:
        """Updates nodes and topics from a Metadata response.

        Keeps topics that the response does not contain, unless the request was for all topics.
        """
        for _ in self.updating(answer, all_topics=all_topics):
            pass

    def updating(self, answer: MetadataResponse, *, all_topics: bool = False) -> Iterator[None]:
        """Updates nodes and topics like `update`. Yields once for each partition, so that the caller can pause.

        The cluster's data stays unchanged until the last yield.
        """
        found: dict[str, TopicInfo] = {}
        for topic in answer.topics:
            if topic.name is not None and not topic.error_code:
                partitions: dict[int, PartitionInfo] = {}
                for each in sorted(topic.partitions, key=lambda part: part.partition_index):
                    partitions[each.partition_index] = PartitionInfo(
                        each.partition_index,
                        each.leader_id,
                        each.leader_epoch,
                        tuple(each.replica_nodes),
                        tuple(each.isr_nodes),
                        tuple(each.offline_replicas),
                        code_of(each.error_code),
                    )
                    yield
                found[topic.name] = TopicInfo(topic.name, topic.topic_id, topic.is_internal, partitions)
        if all_topics:
            self.topics.clear()
            self.names_by_id.clear()
        self.cluster_id = answer.cluster_id
        self.controller_id = answer.controller_id
        self.nodes = {each.node_id: Node(each.node_id, each.host, each.port, each.rack) for each in answer.brokers}
        for topic in answer.topics:
            if topic.name is None:
                continue
            if topic.error_code:
                self.forget(topic.name)
            else:
                self._take(found[topic.name])

    def _take(self, topic: TopicInfo) -> None:
        """Updates a topic from a Metadata response.

        A partition with an older leader epoch is ignored: the node that responded lags behind.
        """
        before = self.topics.get(topic.name)
        self.forget(topic.name)
        if before is not None and before.topic_id == topic.topic_id:
            for index, known in before.partitions.items():
                told = topic.partitions.get(index)
                if told is not None and 0 <= told.leader_epoch < known.leader_epoch:
                    topic.partitions[index] = known
        self.topics[topic.name] = topic
        if topic.topic_id != ZERO_UUID:
            self.names_by_id[topic.topic_id] = topic.name

    def take_hint(self, partition: tuple[str, int], hint: LeaderHint, endpoints: Iterable[Endpoint]) -> bool:
        """Applies a leader hint if it is newer than the known leader. Returns True if it was applied."""
        topic = self.topics.get(partition[0])
        known = topic.partitions.get(partition[1]) if topic else None
        if topic is None or known is None or hint.leader_id < 0 or hint.leader_epoch <= known.leader_epoch:
            return False
        for each in endpoints:
            self.nodes[each.node_id] = Node(each.node_id, each.host, each.port, each.rack)
        if hint.leader_id not in self.nodes:
            return False
        moved = replace(known, leader=hint.leader_id, leader_epoch=hint.leader_epoch)
        topic.partitions[partition[1]] = moved
        return True

    def forget(self, name: str) -> None:
        known = self.topics.pop(name, None)
        if known is not None:
            self.names_by_id.pop(known.topic_id, None)

    def topic_id(self, name: str) -> bytes:
        topic = self.topics.get(name)
        return topic.topic_id if topic else ZERO_UUID

    def leader(self, name: str, partition: int) -> int | None:
        """Returns the node id of the partition's leader; None if there is no leader or the partition is unknown."""
        topic = self.topics.get(name)
        known = topic.partitions.get(partition) if topic else None
        return known.leader if known is not None and known.leader in self.nodes else None
