"""Tests the metadata APIs: responses by version, pages, errors, and the cached response for all topics."""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.controlplane.auto_topics import TopicCreator
from penstock.broker.controlplane.metadata_log import QuorumView
from penstock.broker.handlers import (
    api_03_metadata,
    api_19_create_topics,
    api_20_delete_topics,
    api_55_describe_quorum,
    api_60_describe_cluster,
    api_75_describe_topic_partitions,
)
from penstock.broker.limits.quotas import Quotas
from penstock.broker.peers.suspected_nodes import SuspectedNodes
from penstock.broker.requests.context import RequestContext
from penstock.broker.requests.fault_rules import Faults
from penstock.broker.requests.local_connection import LocalConnection
from penstock.disk.memory import MemoryDisk
from penstock.metadata.apply import apply
from penstock.metadata.configs.settings import Settings
from penstock.metadata.decision import Decision
from penstock.metadata.image import EMPTY_IMAGE, BrokerImage, Endpoint, MetadataImage, PartitionImage, TopicImage
from penstock.metadata.voters import Voter
from penstock.net.later import settled
from penstock.protocol.codec import decode, encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.protocol.messages.api_19_create_topics import CreatableTopic, CreateTopicsRequest
from penstock.protocol.messages.api_20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.protocol.messages.api_55_describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from penstock.protocol.messages.api_60_describe_cluster import DescribeClusterRequest
from penstock.protocol.messages.api_75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)

LISTENER = "PLAINTEXT"
DIRECTORY = bytes([4] * 16)


def topic(name: str, number: int, *partitions: PartitionImage) -> TopicImage:
    return TopicImage(name, bytes([number] * 16), dict(enumerate(partitions)))


def on_one(partitions: int = 1) -> list[PartitionImage]:
    return [PartitionImage((1,), (1,), 1, leader_epoch=3, directories=(DIRECTORY,)) for _ in range(partitions)]


def image_with(*topics: TopicImage, **brokers: BrokerImage) -> MetadataImage:
    first = BrokerImage(1, 5, bytes(16), {LISTENER: Endpoint("one", 9092, 0)}, "r", fenced=False, log_dirs=(DIRECTORY,))
    return replace(
        EMPTY_IMAGE,
        brokers={1: first, **{broker.broker_id: broker for broker in brokers.values()}},
        topics={one.name: one for one in topics},
        topics_by_id={one.topic_id: one for one in topics},
    )


class FakeMetadata:
    """Replaces the metadata log: commits every change at once."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.answers: dict[Any, Any] = {}

    async def submit(self, decide: Callable[[MetadataImage], Decision[Any]]) -> Any:
        decision = decide(self.image)
        self.image = apply(self.image, decision.records)
        return decision.reply

    def quorum(self) -> QuorumView:
        return QuorumView(1, 7, 40, 41, (Voter(1, DIRECTORY, (("CONTROLLER", "one", 9093),)),))


def broker_with(image: MetadataImage, **properties: str) -> Any:
    settings = Settings({name.replace("_", "."): value for name, value in properties.items()})
    broker = SimpleNamespace(
        access=None,
        audit=None,
        quotas=Quotas(settings),
        node_id=1,
        cluster_id="cluster",
        settings=settings,
        metadata=FakeMetadata(image),
        random=Random(1),
        faults=Faults(),
        controller_listeners=frozenset(),
        peers=SimpleNamespace(suspects=SuspectedNodes()),
        logs=SimpleNamespace(environment=SimpleNamespace(disk=MemoryDisk())),
    )
    channel: Any = SimpleNamespace(forward=partial(api_19_create_topics.handle, broker))
    lifecycle: Any = SimpleNamespace(sees=lambda condition, limit_s: asyncio.sleep(0, condition(image)))
    broker.topic_creator = TopicCreator(settings, cast(Any, broker.metadata), channel, lifecycle)
    return broker


def ask(handler: Any, broker: Any, request: Any, version: int, api_key: int = 3) -> Any:
    ctx = RequestContext(api_key, version, 7, "client", LocalConnection(LISTENER), 77)
    reply = handler.handle(broker, ctx, request)
    if inspect.isawaitable(reply):

        async def wait() -> Any:
            return await reply

        reply = asyncio.run(wait())
    return reply


def metadata(broker: Any, request: MetadataRequest, version: int = 13) -> MetadataResponse:
    reply = ask(api_03_metadata, broker, request, version)
    body = encode(reply, version) if isinstance(reply, MetadataResponse) else reply.body
    return decode(MetadataResponse, version, body)


def named(*names: str, **fields: Any) -> MetadataRequest:
    fields.setdefault("allow_auto_topic_creation", False)
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **fields)


# --- Metadata -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
def test_every_metadata_version_returns_the_brokers_and_all_topics(version: int) -> None:
    broker = broker_with(image_with(topic("a", 1, *on_one(2)), topic("__consumer_offsets", 2, *on_one())))
    reply = metadata(broker, MetadataRequest(topics=None if version else []), version)
    assert [(one.node_id, one.host, one.port) for one in reply.brokers] == [(1, "one", 9092)]
    assert [(one.name, len(one.partitions)) for one in reply.topics] == [("a", 2), ("__consumer_offsets", 1)]
    assert [one.is_internal for one in reply.topics] == ([False, True] if version else [False, False])
    assert reply.controller_id == (1 if version else -1)


def test_empty_topic_list_in_metadata_means_no_topics_since_version_1() -> None:
    broker = broker_with(image_with(topic("a", 1, *on_one())))
    assert metadata(broker, MetadataRequest(topics=[]), 1).topics == []


def test_metadata_response_for_all_topics_is_encoded_once_per_image() -> None:
    broker = broker_with(image_with(topic("a", 1, *on_one())))
    first = ask(api_03_metadata, broker, MetadataRequest(topics=None), 12)
    assert ask(api_03_metadata, broker, MetadataRequest(topics=None), 12) is first
    other = ask(api_03_metadata, broker, MetadataRequest(topics=None, include_topic_authorized_operations=True), 12)
    assert other is not first
    broker.metadata.answers.clear()  # as the metadata log does when the image changes
    assert ask(api_03_metadata, broker, MetadataRequest(topics=None), 12) is not first


@pytest.mark.parametrize("partitions", [1_500, 5_000])
@pytest.mark.parametrize("request_", [MetadataRequest(topics=None), named("wide", "b")], ids=["all", "named"])
def test_metadata_with_many_partitions_is_complete_and_never_from_an_older_image(
    partitions: int, request_: MetadataRequest
) -> None:
    wide = topic("wide", 1, *on_one(partitions))
    broker = broker_with(replace(image_with(wide), partition_count=partitions))
    made = []

    def counted(broker: Any, ctx: Any, request: Any, topics: Any, original: Any = api_03_metadata._answer) -> Any:
        made.append(len(topics))
        return original(broker, ctx, request, topics)

    async def scenario() -> tuple[list[Any], Any]:
        ctx = RequestContext(3, 13, 7, "client", LocalConnection(LISTENER), 77)
        asked = [settled(api_03_metadata.handle(broker, ctx, request_)) for _ in range(3)]
        waiting = [asyncio.ensure_future(each) for each in asked]
        await asyncio.sleep(0)  # the first passes of the handler
        newer = image_with(wide, topic("b", 2, *on_one()))
        broker.metadata.image = replace(newer, partition_count=partitions + 1)
        broker.metadata.answers.clear()
        before = await asyncio.gather(*waiting)
        return before, await settled(api_03_metadata.handle(broker, ctx, request_))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api_03_metadata, "_answer", counted)
        before, after = asyncio.run(scenario())
    decoded = [_read(each) for each in (*before, after)]
    assert all(len(each.topics[0].partitions) == partitions for each in decoded)
    assert [one.name for one in decoded[-1].topics if not one.error_code] == ["wide", "b"]
    if request_.topics is None:
        assert len(made) <= 3, "waiting clients share an answer"


def _read(reply: Any) -> MetadataResponse:
    return decode(MetadataResponse, 13, encode(reply, 13) if isinstance(reply, MetadataResponse) else reply.body)


def test_metadata_finds_topics_by_id_and_returns_each_once() -> None:
    known = topic("a", 1, *on_one())
    broker = broker_with(image_with(known))
    by_id = [MetadataRequestTopic(name=None, topic_id=known.topic_id)] * 2
    unknown = MetadataRequestTopic(name=None, topic_id=bytes([9] * 16))
    reply = metadata(broker, MetadataRequest(topics=[*by_id, unknown]))
    assert len(reply.topics) == 2
    assert {(one.name, one.error_code) for one in reply.topics} == {
        ("a", ErrorCode.NONE),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    }


def test_metadata_refuses_topic_ids_before_version_12() -> None:
    broker = broker_with(image_with())
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="a", topic_id=bytes([9] * 16))])
    with pytest.raises(KafkaError) as refusal:
        ask(api_03_metadata, broker, asked, 11)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


def test_metadata_refuses_unknown_and_illegal_topic_names_with_different_errors() -> None:
    broker = broker_with(image_with())
    reply = metadata(broker, named("missing", "bad name", "", "__transaction_state"))
    assert [(one.name, one.error_code, one.is_internal) for one in reply.topics] == [
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION, False),
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION, False),
        ("__transaction_state", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
    ]


def test_metadata_creates_a_missing_topic_and_returns_it_in_the_same_response() -> None:
    broker = broker_with(image_with(), num_partitions="4")
    reply = metadata(broker, named("new", "bad name", allow_auto_topic_creation=True))
    assert [(one.name, one.error_code, len(one.partitions)) for one in reply.topics] == [
        ("new", ErrorCode.NONE, 4),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
    ]


def test_internal_topics_are_created_with_their_own_partition_counts_and_configs() -> None:
    broker = broker_with(image_with(), offsets_topic_replication_factor="1")
    reply = metadata(broker, named("__consumer_offsets", allow_auto_topic_creation=True))
    assert len(reply.topics[0].partitions) == 50
    assert broker.metadata.image.topic_config("__consumer_offsets") == {
        "compression.type": "producer",
        "cleanup.policy": "compact",
        "segment.bytes": "104857600",
    }


@pytest.mark.parametrize(
    ("allowed", "properties"), [(False, {}), (True, {"auto_create_topics_enable": "false"})], ids=["client", "broker"]
)
def test_metadata_creates_a_missing_topic_only_if_client_and_broker_allow_it(
    allowed: bool, properties: dict[str, str]
) -> None:
    broker = broker_with(image_with(), **properties)
    reply = metadata(broker, named("new", allow_auto_topic_creation=allowed))
    assert reply.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.metadata.image.topics == {}


def test_metadata_reports_a_topic_that_cannot_be_created_as_unknown() -> None:
    broker = broker_with(image_with(), default_replication_factor="3")
    reply = metadata(broker, named("new", allow_auto_topic_creation=True))
    assert reply.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_metadata_returns_authorized_operations_on_request() -> None:
    broker = broker_with(image_with(topic("a", 1, *on_one())))
    reply = metadata(
        broker,
        named("a", include_topic_authorized_operations=True, include_cluster_authorized_operations=True),
        10,
    )
    assert reply.topics[0].topic_authorized_operations == 3576
    assert reply.cluster_authorized_operations == 8096
    silent = metadata(broker, named("a"), 10)
    assert silent.topics[0].topic_authorized_operations == silent.cluster_authorized_operations == -(2**31)


def partition_reply(image: MetadataImage, version: int) -> tuple[int, int, list[int], list[int]]:
    one: MetadataResponseTopic = metadata(broker_with(image), named("a"), version).topics[0]
    found = one.partitions[0]
    return found.error_code, found.leader_id, found.replica_nodes, found.offline_replicas


def test_metadata_returns_an_error_for_partitions_whose_leader_or_replicas_are_not_available() -> None:
    fenced = BrokerImage(2, 5, bytes(16), {LISTENER: Endpoint("two", 9092, 0)}, fenced=True)
    elsewhere = BrokerImage(3, 5, bytes(16), {"OTHER": Endpoint("three", 9092, 0)}, fenced=False)
    leaderless = image_with(topic("a", 1, PartitionImage((1, 2), (1,), -1)), two=fenced)
    assert partition_reply(leaderless, 9) == (ErrorCode.LEADER_NOT_AVAILABLE, -1, [1, 2], [2])
    hidden = image_with(topic("a", 1, PartitionImage((3, 1), (3, 1), 3)), three=elsewhere)
    assert partition_reply(hidden, 9) == (ErrorCode.LISTENER_NOT_FOUND, -1, [3, 1], [3])
    assert partition_reply(hidden, 5)[0] == ErrorCode.LEADER_NOT_AVAILABLE
    lost = image_with(topic("a", 1, PartitionImage((1,), (1,), 1, directories=(bytes([8] * 16),))))
    assert partition_reply(lost, 9) == (ErrorCode.NONE, 1, [1], [1])
    replica_gone = image_with(topic("a", 1, PartitionImage((1, 2), (1,), 1)), two=fenced)
    assert partition_reply(replica_gone, 0) == (ErrorCode.REPLICA_NOT_AVAILABLE, 1, [1], [])


# --- topics ---------------------------------------------------------------------------------------


def test_create_topics_returns_configs_since_version_5() -> None:
    broker = broker_with(image_with())
    for version, name in [(4, "old"), (5, "new")]:
        request = CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)])
        result = ask(api_19_create_topics, broker, request, version, 19).topics[0]
        configs = {config.name: config.value for config in result.configs}
        assert ("cleanup.policy" in configs) is (version >= 5)
        assert (result.error_code, result.num_partitions) == (0, 1)


def test_delete_topics_takes_names_until_version_5_and_topic_states_from_version_6() -> None:
    broker = broker_with(image_with(topic("a", 1, *on_one()), topic("b", 2, *on_one())))
    ask(api_20_delete_topics, broker, DeleteTopicsRequest(topic_names=["a"]), 5, 20)
    assert set(broker.metadata.image.topics) == {"b"}
    ask(api_20_delete_topics, broker, DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=bytes([2] * 16))]), 6, 20)
    assert broker.metadata.image.topics == {}


@pytest.mark.parametrize(("version", "code"), [(2, ErrorCode.INVALID_REQUEST), (6, ErrorCode.TOPIC_DELETION_DISABLED)])
def test_delete_topics_is_refused_if_topic_deletion_is_disabled(version: int, code: ErrorCode) -> None:
    broker = broker_with(image_with(topic("a", 1, *on_one())), delete_topic_enable="false")
    with pytest.raises(KafkaError) as refusal:
        ask(api_20_delete_topics, broker, DeleteTopicsRequest(topic_names=["a"]), version, 20)
    assert refusal.value.code is code


# --- DescribeTopicPartitions ----------------------------------------------------------------------


def page(
    broker: Any, names: list[str], limit: int, cursor: tuple[str, int] | None = None
) -> tuple[list[tuple[str | None, list[int]]], tuple[str, int] | None]:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    reply: DescribeTopicPartitionsResponse = ask(api_75_describe_topic_partitions, broker, request, 0, 75)
    listed = [(one.name, [partition.partition_index for partition in one.partitions]) for one in reply.topics]
    following = reply.next_cursor
    return listed, None if following is None else (following.topic_name, following.partition_index)


def three_topics() -> Any:
    return broker_with(image_with(topic("b", 2, *on_one(3)), topic("a", 1, *on_one(2)), topic("c", 3, *on_one(1))))


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
def test_pages_of_describe_topic_partitions_contain_every_partition_once_and_in_order(limit: int) -> None:
    broker = three_topics()
    seen: list[tuple[str | None, int]] = []
    cursor: tuple[str, int] | None = None
    for _ in range(20):
        listed, cursor = page(broker, [], limit, cursor)
        seen += [(name, index) for name, indexes in listed for index in indexes]
        assert sum(len(indexes) for _, indexes in listed) <= limit
        if cursor is None:
            break
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]


def test_page_of_describe_topic_partitions_ends_before_the_first_topic_that_does_not_fit() -> None:
    broker = three_topics()
    assert page(broker, ["a", "b", "x"], 2) == ([("a", [0, 1])], ("b", 0))
    assert page(broker, ["a", "b", "x"], 4) == ([("a", [0, 1]), ("b", [0, 1])], ("b", 2))
    assert page(broker, ["a", "x"], 2) == ([("a", [0, 1])], ("x", 0))
    assert page(broker, ["b", "x", "c"], 9, ("b", 3)) == ([("b", []), ("c", [0]), ("x", [])], None)
    assert page(broker, ["a"], 0) == ([("a", [0])], ("a", 1))
    assert page(broker, [], 9, ("bb", 1)) == ([("c", [0])], None)


def test_broker_limits_the_page_size_of_describe_topic_partitions() -> None:
    broker = broker_with(image_with(topic("a", 1, *on_one(5))), max_request_partition_size_limit="2")
    assert page(broker, [], 100) == ([("a", [0, 1])], ("a", 2))


@pytest.mark.parametrize("cursor", [("zzz", 1), ("a", -1)])
def test_describe_topic_partitions_with_an_invalid_cursor_is_refused(cursor: tuple[str, int]) -> None:
    with pytest.raises(KafkaError) as refusal:
        page(three_topics(), ["a", "b"], 9, cursor)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


# --- DescribeCluster and DescribeQuorum -----------------------------------------------------------


def test_describe_cluster_returns_fenced_brokers_on_request() -> None:
    fenced = BrokerImage(2, 5, bytes(16), {LISTENER: Endpoint("two", 9092, 0)}, fenced=True)
    broker = broker_with(image_with(two=fenced))
    reply = ask(api_60_describe_cluster, broker, DescribeClusterRequest(), 2, 60)
    assert [(one.broker_id, one.is_fenced) for one in reply.brokers] == [(1, False)]
    reply = ask(api_60_describe_cluster, broker, DescribeClusterRequest(include_fenced_brokers=True), 2, 60)
    assert [(one.broker_id, one.is_fenced) for one in reply.brokers] == [(1, False), (2, True)]
    assert (reply.cluster_id, reply.controller_id) == ("cluster", 1)


@pytest.mark.parametrize(
    ("endpoint_type", "code"), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
def test_describe_cluster_at_a_broker_refuses_to_list_controllers(endpoint_type: int, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refusal:
        ask(
            api_60_describe_cluster,
            broker_with(image_with()),
            DescribeClusterRequest(endpoint_type=endpoint_type),
            1,
            60,
        )
    assert refusal.value.code is code


@pytest.mark.parametrize("version", [0, 1, 2])
def test_describe_quorum_accepts_only_the_metadata_partition(version: int) -> None:
    wanted = TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])
    request = DescribeQuorumRequest(topics=[wanted])
    reply = ask(api_55_describe_quorum, broker_with(image_with()), request, version, 55)
    encode(reply, version)
    found = reply.topics[0].partitions[0]
    assert (found.leader_id, found.leader_epoch, found.high_watermark) == (1, 7, 40)
    assert [(one.replica_id, one.log_end_offset, one.last_fetch_timestamp) for one in found.current_voters] == [
        (1, 41, 77)
    ]
    assert (found.current_voters[0].replica_directory_id == DIRECTORY) is (version == 2)
    assert len(reply.nodes) == (1 if version == 2 else 0)
    request.topics.append(TopicData(topic_name="t", partitions=[PartitionData(partition_index=0)]))
    reply = ask(api_55_describe_quorum, broker_with(image_with()), request, version, 55)
    codes = [topic.partitions[0].error_code for topic in reply.topics]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
