"""Manages the cluster itself: quorum, reassignments, leader elections, brokers and their log directories.

All requests are Kafka's own, so any Kafka cluster can be managed. Each call is one request and raises KafkaError for
the first refused item. A partition is written as (topic, partition).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.client.client import AsyncClient
from penstock.client.errors import code_of
from penstock.net.yielding import yield_between_slices
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.protocol.messages.api_32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.protocol.messages.api_34_alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from penstock.protocol.messages.api_35_describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from penstock.protocol.messages.api_43_elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from penstock.protocol.messages.api_45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.protocol.messages.api_46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from penstock.protocol.messages.api_55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
    TopicData,
)
from penstock.protocol.messages.api_60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.protocol.messages.api_64_unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from penstock.protocol.messages.api_80_add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse, Listener
from penstock.protocol.messages.api_81_remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from penstock.protocol.vocabulary import DEBUGGING_REPLICA, LATEST, METADATA_TOPIC, ResourceType, TopicPartition

#: Partitions of one reassignment or election: a request for more would hold the controller's event loop for too long.
PARTITIONS_AT_ONCE = 1_000
PREFERRED = 0
UNCLEAN = 1
# The preferred leader leads already: the election has succeeded.
_FINE = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)


@dataclass(frozen=True, slots=True)
class Reassignment:
    """Describes a reassignment in progress."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.replicas if broker not in self.removing)


@dataclass(frozen=True, slots=True)
class HeldReplica:
    """Describes a replica in a log directory, as its node reports it."""

    directory: str
    size: int


@dataclass(frozen=True, slots=True)
class FutureReplica:
    """Describes a replica's future log: the copy that a node is making in another of its log directories."""

    directory: str
    size: int
    #: Number of offsets that the copy lacks.
    lag: int


@dataclass(frozen=True, slots=True)
class Directory:
    path: str
    error: ErrorCode
    total_bytes: int
    usable_bytes: int
    cordoned: bool = False


@dataclass(frozen=True, slots=True)
class Holdings:
    directories: list[Directory]
    replicas: dict[TopicPartition, HeldReplica]
    futures: dict[TopicPartition, FutureReplica] = field(default_factory=dict)

    @property
    def cordoned(self) -> bool:
        """Returns True if the node gets no new replicas, because all its working directories are cordoned."""
        working = [directory for directory in self.directories if not directory.error]
        return bool(working) and all(directory.cordoned for directory in working)

    @property
    def size(self) -> int:
        return sum(replica.size for replica in self.replicas.values())


def _refused(what: str, code: int, message: str | None) -> None:
    if code:
        raise KafkaError(code_of(code), f"{what}: {message or code_of(code).name}")


class ClusterAdmin:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    @property
    def _timeout_ms(self) -> int:
        return int(self._client.settings.request_timeout_s * 1000)

    # --- brokers and the quorum ----------------------------------------------------------------------------------

    async def describe_brokers(self) -> DescribeClusterResponse:
        """Returns all brokers. Includes fenced brokers if the responding broker supports DescribeCluster v2."""
        connection = await self._client.connection()
        version = connection.version_of(DescribeClusterRequest.API_KEY)
        request = DescribeClusterRequest(include_fenced_brokers=version >= 2)
        answer: DescribeClusterResponse = await connection.request(request, version=version)
        _refused("The cluster", answer.error_code, answer.error_message)
        return answer

    async def describe_quorum(self) -> DescribeQuorumResponse:
        topic = TopicData(topic_name=METADATA_TOPIC, partitions=[PartitionData(partition_index=0)])

        async def ask() -> DescribeQuorumResponse:
            answer: DescribeQuorumResponse = await self._client.request(DescribeQuorumRequest(topics=[topic]))
            _refused("The quorum", answer.error_code, answer.error_message)
            for found in answer.topics:
                for part in found.partitions:
                    _refused("The quorum", part.error_code, part.error_message)
            return answer

        return await self._client.retrying(ask)

    async def add_voter(
        self, node_id: int, directory_id: bytes, listeners: Iterable[tuple[str, str, int]], *, cluster_id: str | None
    ) -> None:
        """Adds a voter to the quorum, and waits until the change is committed. `listeners` contains (name, host,
        port)."""
        request = AddRaftVoterRequest(
            cluster_id=cluster_id,
            timeout_ms=self._timeout_ms,
            voter_id=node_id,
            voter_directory_id=directory_id,
            listeners=[Listener(name=name, host=host, port=port) for name, host, port in listeners],
        )
        answer: AddRaftVoterResponse = await self._client.request(request)
        _refused(f"Voter {node_id}", answer.error_code, answer.error_message)

    async def remove_voter(self, node_id: int, directory_id: bytes, *, cluster_id: str | None) -> None:
        request = RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=node_id, voter_directory_id=directory_id)
        answer: RemoveRaftVoterResponse = await self._client.request(request)
        _refused(f"Voter {node_id}", answer.error_code, answer.error_message)

    async def unregister_broker(self, node_id: int) -> None:
        answer: UnregisterBrokerResponse = await self._client.request(UnregisterBrokerRequest(broker_id=node_id))
        _refused(f"Broker {node_id}", answer.error_code, answer.error_message)

    # --- moving replicas -----------------------------------------------------------------------------------------

    async def reassign(self, wanted: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        """Starts reassignments. `wanted` maps a partition to its new replicas, the preferred leader first.

        None instead of replicas cancels the partition's reassignment.
        """
        partitions = list(wanted)
        answers = []
        for start in range(0, len(partitions), PARTITIONS_AT_ONCE):
            some = partitions[start : start + PARTITIONS_AT_ONCE]
            answers.append(await self._reassign({each: wanted[each] for each in some}))
            await asyncio.sleep(0)  # a controller in the same process may answer without a pause
        over = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        for answer in answers:
            _refused("The reassignment", answer.error_code, answer.error_message)
            for topic in answer.responses:
                for part in topic.partitions:
                    if part.error_code == over and wanted.get((topic.name, part.partition_index)) is None:
                        continue  # the reassignment had finished before it could be cancelled
                    _refused(f"{topic.name}-{part.partition_index}", part.error_code, part.error_message)

    async def _reassign(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None]
    ) -> AlterPartitionReassignmentsResponse:
        topics: dict[str, ReassignableTopic] = {}
        for (name, index), replicas in wanted.items():
            each = ReassignablePartition(
                partition_index=index, replicas=None if replicas is None else [int(broker) for broker in replicas]
            )
            topics.setdefault(name, ReassignableTopic(name=name, partitions=[])).partitions.append(each)
        request = AlterPartitionReassignmentsRequest(topics=list(topics.values()), timeout_ms=self._timeout_ms)
        answer: AlterPartitionReassignmentsResponse = await self._client.request(request)
        return answer

    async def reassignments(self) -> dict[TopicPartition, Reassignment]:
        """Returns all reassignments in progress."""
        request = ListPartitionReassignmentsRequest(topics=None, timeout_ms=self._timeout_ms)
        answer: ListPartitionReassignmentsResponse = await self._client.request(request)
        _refused("Reassignments", answer.error_code, answer.error_message)
        return {
            (topic.name, part.partition_index): Reassignment(
                tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
            )
            for topic in answer.topics
            for part in topic.partitions
        }

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, kind: int = PREFERRED
    ) -> dict[TopicPartition, ErrorCode]:
        """Elects leaders of the given partitions (default: all partitions).

        Returns the error codes of partitions that failed. ELECTION_NOT_NEEDED does not count as a failure.
        """
        if partitions is None:
            return await self._elect_leaders(None, kind)
        asked = list(partitions)
        failed: dict[TopicPartition, ErrorCode] = {}
        for start in range(0, len(asked), PARTITIONS_AT_ONCE):
            failed |= await self._elect_leaders(asked[start : start + PARTITIONS_AT_ONCE], kind)
            await asyncio.sleep(0)  # a controller in the same process may answer without a pause
        return failed

    async def _elect_leaders(
        self, partitions: Sequence[TopicPartition] | None, kind: int
    ) -> dict[TopicPartition, ErrorCode]:
        topics: dict[str, TopicPartitions] = {}
        for name, index in partitions or ():
            topics.setdefault(name, TopicPartitions(topic=name, partitions=[])).partitions.append(index)
        request = ElectLeadersRequest(
            election_type=kind,
            topic_partitions=None if partitions is None else list(topics.values()),
            timeout_ms=self._timeout_ms,
        )
        answer: ElectLeadersResponse = await self._client.request(request)
        _refused("The election", answer.error_code, None)
        return {
            (result.topic, each.partition_id): code_of(each.error_code)
            for result in answer.replica_election_results
            for each in result.partition_result
            if each.error_code not in _FINE
        }

    # --- replicas of nodes ---------------------------------------------------------------------------------------

    async def holdings(self, node: int, partitions: Iterable[TopicPartition] | None = None) -> Holdings:
        """Returns a node's log directories and replicas. `partitions` limits the replicas; None means all."""
        topics: dict[str, DescribableLogDirTopic] = {}
        for name, index in partitions or ():
            topics.setdefault(name, DescribableLogDirTopic(topic=name, partitions=[])).partitions.append(index)
        request = DescribeLogDirsRequest(topics=None if partitions is None else list(topics.values()))
        answer: DescribeLogDirsResponse = await self._client.request(request, node=node)
        _refused(f"Node {node}", answer.error_code, None)
        directories = []
        replicas: dict[TopicPartition, HeldReplica] = {}
        futures: dict[TopicPartition, FutureReplica] = {}
        number = 0
        for result in answer.results:
            code = code_of(result.error_code)
            space = (result.total_bytes, result.usable_bytes)
            directories.append(Directory(result.log_dir, code, *space, result.is_cordoned))
            for topic in result.topics:
                for part in topic.partitions:
                    await yield_between_slices(number)
                    number += 1
                    key = (topic.name, part.partition_index)
                    if part.is_future_key:
                        futures[key] = FutureReplica(result.log_dir, part.partition_size, part.offset_lag)
                    else:
                        replicas[key] = HeldReplica(result.log_dir, part.partition_size)
        return Holdings(directories, replicas, futures)

    async def move_replicas(self, node: int, wanted: Mapping[TopicPartition, str]) -> dict[TopicPartition, ErrorCode]:
        """Starts to move a node's replicas between its log directories. Returns the error of each refused move.

        A move to the replica's current directory cancels a running move.
        """
        directories: dict[str, dict[str, AlterReplicaLogDirTopic]] = {}
        for (name, index), path in wanted.items():
            topics = directories.setdefault(path, {})
            topics.setdefault(name, AlterReplicaLogDirTopic(name=name, partitions=[])).partitions.append(index)
        request = AlterReplicaLogDirsRequest(
            dirs=[AlterReplicaLogDir(path=path, topics=list(topics.values())) for path, topics in directories.items()]
        )
        answer: AlterReplicaLogDirsResponse = await self._client.request(request, node=node)
        return {
            (topic.topic_name, part.partition_index): code_of(part.error_code)
            for topic in answer.results
            for part in topic.partitions
            if part.error_code
        }

    async def end_offsets(self, node: int, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the end offsets of a node's replicas. Leaves out partitions without a replica on this node."""
        topics: dict[str, ListOffsetsTopic] = {}
        for name, index in partitions:
            wanted = ListOffsetsPartition(partition_index=index, timestamp=LATEST)
            topics.setdefault(name, ListOffsetsTopic(name=name, partitions=[])).partitions.append(wanted)
        request = ListOffsetsRequest(
            replica_id=DEBUGGING_REPLICA, topics=list(topics.values()), timeout_ms=self._timeout_ms
        )
        answer: ListOffsetsResponse = await self._client.request(request, node=node)
        return {
            (topic.name, part.partition_index): part.offset
            for topic in answer.topics
            for part in topic.partitions
            if not part.error_code
        }

    async def topic_configs(self, names: Iterable[str], *keys: str) -> dict[str, dict[str, str | None]]:
        """Returns the given configs of many topics, with one request. Leaves out topics that were deleted meanwhile."""
        resources = [
            DescribeConfigsResource(resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=list(keys))
            for name in names
        ]
        answer: DescribeConfigsResponse = await self._client.request(DescribeConfigsRequest(resources=resources))
        found: dict[str, dict[str, Any]] = {}
        for result in answer.results:
            if result.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                _refused(f"Configs of {result.resource_name!r}", result.error_code, result.error_message)
                found[result.resource_name] = {config.name: config.value for config in result.configs}
        return found
