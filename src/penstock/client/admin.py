"""Manages topics, configs and offsets. Each call is one request and raises KafkaError for the first refused item."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.client.client import AsyncClient
from penstock.client.cluster import Node, TopicInfo
from penstock.client.errors import code_of
from penstock.client.offsets import FoundOffset, list_offsets
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.protocol.messages.api_20_delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.protocol.messages.api_21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.protocol.messages.api_32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from penstock.protocol.messages.api_37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.protocol.messages.api_44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.protocol.messages.api_60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.protocol.schema import Message
from penstock.protocol.vocabulary import READ_UNCOMMITTED, ResourceType

# Only the node itself can answer for these.
_NODE_RESOURCES = (ResourceType.BROKER, ResourceType.BROKER_LOGGER)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """Describes a topic to create. -1 partitions or replicas means the cluster's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[Sequence[int]] = ()
    """The replica ids of each partition, in place of a number of partitions and replicas."""
    configs: Mapping[str, str | None] | None = None


class _Result(Protocol):
    error_code: int
    error_message: str | None


def _raise_first(results: Iterable[tuple[str, _Result]]) -> None:
    for what, result in results:
        if result.error_code:
            raise KafkaError(
                code_of(result.error_code), f"{what}: {result.error_message or code_of(result.error_code).name}"
            )


class Admin:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    @property
    def _timeout_ms(self) -> int:
        return int(self._client.settings.request_timeout_s * 1000)

    async def _change(self, request: Message, *, node: int | None = None) -> Any:
        """Sends a request to any node, which forwards it to the controller, and returns the response.

        Repeats the request while there is no controller.
        """

        async def ask() -> Any:
            answer = await self._client.request(request, node=node)
            if ErrorCode.NOT_CONTROLLER in _codes_in(answer):
                raise KafkaError(
                    ErrorCode.NOT_CONTROLLER, "The cluster has no active controller at the moment: try again."
                )
            return answer

        async def attempt() -> Any:
            try:
                return await ask()
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise _FinalError(error) from None  # the outcome is unknown: the caller has to check it
                raise

        try:
            return await self._client.retrying(attempt)
        except _FinalError as final:
            raise final.error from None

    # Topics

    async def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> CreateTopicsResponse:
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics], timeout_ms=self._timeout_ms, validate_only=validate_only
        )
        answer: CreateTopicsResponse = await self._change(request)
        _raise_first((f"Topic {topic.name!r}", topic) for topic in answer.topics)
        return answer

    async def create_topic(
        self, name: str, partitions: int = -1, replication_factor: int = -1, **configs: str | None
    ) -> None:
        """Creates a topic. Configs are passed as keywords, with underscores instead of dots: `retention_ms="1000"`."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        await self.create_topics([NewTopic(name, partitions, replication_factor, configs=named)])

    async def delete_topics(self, names: Iterable[str] = (), *, ids: Iterable[bytes] = ()) -> None:
        names = list(names)
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in names] + [DeleteTopicState(topic_id=each) for each in ids],
            topic_names=names,
            timeout_ms=self._timeout_ms,
        )
        answer: DeleteTopicsResponse = await self._change(request)
        for name in names:
            self._client.cluster.forget(name)
        _raise_first((f"Topic {topic.name!r}", topic) for topic in answer.responses)

    async def list_topics(self, *, internal: bool = False) -> list[TopicInfo]:
        await self._client.metadata(None)
        topics = self._client.cluster.topics.values()
        return sorted((topic for topic in topics if internal or not topic.is_internal), key=lambda topic: topic.name)

    async def describe_topics(self, names: Iterable[str]) -> list[TopicInfo]:
        """Returns the topics' partitions and leaders, as a broker reports them now (not from the cache).

        Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION) if a topic does not exist.
        """
        names = list(names)
        for name in names:
            self._client.cluster.forget(name)
        return [await self._client.topic(name) for name in names]

    async def create_partitions(self, topic: str, total: int, *, validate_only: bool = False) -> None:
        grown = CreatePartitionsTopic(name=topic, count=total, assignments=None)
        request = CreatePartitionsRequest(topics=[grown], timeout_ms=self._timeout_ms, validate_only=validate_only)
        answer: CreatePartitionsResponse = await self._change(request)
        self._client.cluster.forget(topic)
        _raise_first((f"Topic {result.name!r}", result) for result in answer.results)

    # Offsets and records

    async def list_offsets(
        self, wanted: Mapping[tuple[str, int], int], *, isolation_level: int = READ_UNCOMMITTED
    ) -> dict[tuple[str, int], FoundOffset]:
        """Returns the offsets of partitions.

        `wanted` maps (topic, partition) to a timestamp or a position such as EARLIEST.
        """
        return await list_offsets(self._client, wanted, isolation_level=isolation_level)

    async def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Deletes the records before the given offsets (-1: all records). Returns the new log start offsets."""
        low_watermarks: dict[tuple[str, int], int] = {}

        async def ask_the_rest() -> None:
            missing = [each for each in before if each not in low_watermarks]
            for node, partitions in (await self._client.by_leader(missing)).items():
                topics: dict[str, DeleteRecordsTopic] = {}
                for name, index in partitions:
                    topic = topics.setdefault(name, DeleteRecordsTopic(name=name, partitions=[]))
                    topic.partitions.append(DeleteRecordsPartition(partition_index=index, offset=before[name, index]))
                request = DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=self._timeout_ms)
                answer: DeleteRecordsResponse = await self._client.request(request, node=node)
                for result in answer.topics:
                    for part in result.partitions:
                        if part.error_code:
                            sentence = f"Records of {result.name}-{part.partition_index} can't be deleted."
                            raise KafkaError(code_of(part.error_code), sentence)
                        low_watermarks[result.name, part.partition_index] = part.low_watermark

        await self._client.retrying(ask_the_rest, refresh=sorted({topic for topic, _ in before}))
        return low_watermarks

    # Configs

    async def describe_configs(
        self,
        kind: int,
        name: str,
        *,
        keys: Sequence[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> list[DescribeConfigsResourceResult]:
        resource = DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None if keys is None else list(keys)
        )
        request = DescribeConfigsRequest(
            resources=[resource], include_synonyms=synonyms, include_documentation=documentation
        )
        answer: DescribeConfigsResponse = await self._client.request(request, node=_node_of(kind, name))
        _raise_first((f"Configs of {result.resource_name!r}", result) for result in answer.results)
        return answer.results[0].configs

    async def alter_configs(
        self, kind: int, name: str, changes: Iterable[tuple[str, int, str | None]], *, validate_only: bool = False
    ) -> None:
        """Changes configs of a resource. Each change is (key, ConfigOperation, value)."""
        configs = [AlterableConfig(name=key, config_operation=how, value=value) for key, how, value in changes]
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        answer: IncrementalAlterConfigsResponse = await self._change(request, node=_node_of(kind, name))
        _raise_first((f"Configs of {result.resource_name!r}", result) for result in answer.responses)

    # Cluster

    async def describe_cluster(self) -> DescribeClusterResponse:
        answer: DescribeClusterResponse = await self._client.request(DescribeClusterRequest())
        _raise_first([("The cluster", answer)])
        return answer

    async def nodes(self) -> list[Node]:
        await self._client.refresh([])
        return sorted(self._client.cluster.nodes.values(), key=lambda node: node.node_id)


class _FinalError(Exception):
    def __init__(self, error: KafkaError) -> None:
        self.error = error


def _codes_in(answer: Any) -> set[int]:
    """Returns the error codes of the response and of its items."""
    items = getattr(answer, "topics", None) or getattr(answer, "responses", None) or getattr(answer, "results", None)
    return {getattr(answer, "error_code", 0), *(item.error_code for item in items or ())}


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if topic.assignments else topic.partitions,
        replication_factor=-1 if topic.assignments else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in enumerate(topic.assignments)
        ],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (topic.configs or {}).items()],
    )


def _node_of(kind: int, name: str) -> int | None:
    return int(name) if kind in _NODE_RESOURCES and name else None
