"""Tests the decisions on CreateTopics, DeleteTopics and CreatePartitions: (image, request) → (records, reply)."""

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.controller.partitions import create_partitions
from penstock.metadata.controller.topics import TopicDefaults, create_topics, delete_topics
from penstock.metadata.decision import MAX_RECORDS_PER_REQUEST, Decision
from penstock.metadata.image import EMPTY_IMAGE, BrokerImage, MetadataImage
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.protocol.messages.api_20_delete_topics import DeleteTopicsResponse, DeleteTopicState
from penstock.protocol.messages.api_37_create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)

DEFAULTS = TopicDefaults(num_partitions=3, replication_factor=1)
DIRECTORY = bytes([9] * 16)


def cluster(*broker_ids: int, fenced: frozenset[int] = frozenset()) -> MetadataImage:
    from dataclasses import replace

    brokers = {
        broker_id: BrokerImage(
            broker_id, 1, bytes(16), {}, fenced=broker_id in fenced, log_dirs=(DIRECTORY,) if broker_id == 1 else ()
        )
        for broker_id in broker_ids
    }
    return replace(EMPTY_IMAGE, brokers=brokers)


def wanted(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    assignments: Mapping[int, list[int]] | list[tuple[int, list[int]]] | None = None,
    configs: Mapping[str, str | None] | None = None,
) -> CreatableTopic:
    pairs = assignments.items() if isinstance(assignments, Mapping) else assignments or ()
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in pairs],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )


def create(
    image: MetadataImage, *topics: CreatableTopic, validate_only: bool = False
) -> Decision[CreateTopicsResponse]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return create_topics(image, request, DEFAULTS, Random(5))


def with_topics(image: MetadataImage, *topics: CreatableTopic) -> MetadataImage:
    decision = create(image, *topics)
    assert all(result.error_code == ErrorCode.NONE for result in decision.reply.topics)
    return apply(image, decision.records)


def test_value_minus_one_in_a_create_topics_request_means_the_broker_default() -> None:
    decision = create(cluster(1), wanted("t", -1, -1))
    result = decision.reply.topics[0]
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 1)
    image = apply(cluster(1), decision.records)
    assert image.topics["t"].topic_id == result.topic_id
    assert [image.topics["t"].partitions[index].leader for index in range(3)] == [1, 1, 1]
    assert image.topics["t"].partitions[0].directories == (DIRECTORY,)


def test_configs_of_a_new_topic_become_config_records() -> None:
    image = with_topics(cluster(1), wanted("t", configs={"cleanup.policy": "compact", "retention.ms": "5"}))
    assert image.topic_config("t") == {"cleanup.policy": "compact", "retention.ms": "5"}


def test_validate_only_create_topics_request_gets_the_same_answer_and_writes_no_record() -> None:
    real, dry = create(cluster(1), wanted("t", 2)), create(cluster(1), wanted("t", 2), validate_only=True)
    assert dry.records == []
    assert dry.reply == real.reply


def test_new_topic_keeps_its_manual_assignment_unchanged() -> None:
    image = with_topics(cluster(1, 2, 3), wanted("t", -1, -1, {1: [3, 1], 0: [2, 3]}))
    assert [image.topics["t"].partitions[index].replicas for index in range(2)] == [(2, 3), (3, 1)]
    assert [image.topics["t"].partitions[index].leader for index in range(2)] == [2, 3]


def test_fenced_broker_is_neither_leader_of_a_new_partition_nor_in_its_isr() -> None:
    image = with_topics(cluster(1, 2, fenced=frozenset({1})), wanted("t", -1, -1, {0: [1, 2]}))
    partition = image.topics["t"].partitions[0]
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 2), (2,), 2)


REFUSALS = [
    (wanted(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "at least one character"),
    (wanted("."), ErrorCode.INVALID_TOPIC_EXCEPTION, "'.' has a special meaning in file systems."),
    (wanted(".."), ErrorCode.INVALID_TOPIC_EXCEPTION, "'..' has a special meaning in file systems."),
    (wanted("a" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, "has 250 characters, and at most 249 are allowed"),
    (wanted("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "has characters other than a-z"),
    (wanted("naïve"), ErrorCode.INVALID_TOPIC_EXCEPTION, "has characters other than a-z"),
    (wanted("line\n"), ErrorCode.INVALID_TOPIC_EXCEPTION, "has characters other than a-z"),
    (wanted("__cluster_metadata"), ErrorCode.INVALID_REQUEST, "is reserved for the controllers"),
    (wanted("old.topic"), ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'old.topic' already exists: choose another name."),
    (
        wanted("old_topic"),
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "'old_topic' and topic 'old.topic' have the same name in metrics",
    ),
    (wanted("t", 0), ErrorCode.INVALID_PARTITIONS, "can't have 0 partitions"),
    (wanted("t", -2), ErrorCode.INVALID_PARTITIONS, "can't have -2 partitions"),
    (wanted("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "can't be 0: give 1 or more"),
    (wanted("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR, "can't be -2: give 1 or more"),
    (
        wanted("t", 1, 3),
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "3 replicas need as many brokers, but only 2 can take one",
    ),
    (wanted("t", 5_001), ErrorCode.POLICY_VIOLATION, "creates more than 5000 partitions"),
    (wanted("t", -1, 1, {0: [1]}), ErrorCode.INVALID_REQUEST, "determine the replication factor"),
    (wanted("t", 1, -1, {0: [1]}), ErrorCode.INVALID_REQUEST, "determine the number of partitions"),
    (wanted("t", -1, -1, {0: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "is assigned no replicas"),
    (
        wanted("t", -1, -1, {0: [7]}),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Broker 7 is assigned a replica but is not registered",
    ),
    (
        wanted("t", -1, -1, {0: [1, 1]}),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Broker 1 is assigned the same partition twice",
    ),
    (wanted("t", -1, -1, {1: [1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "skip a partition"),
    (
        wanted("t", -1, -1, [(0, [1]), (0, [2])]),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Partition 0 has two assignments",
    ),
    (
        wanted("t", -1, -1, {0: [1], 1: [1, 2]}),
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "assigned 2 replica(s) and another 1",
    ),
    (wanted("t", configs={"nosuch": "1"}), ErrorCode.INVALID_CONFIG, "There is no topic config 'nosuch'"),
    (wanted("t", configs={"retention.ms": "x"}), ErrorCode.INVALID_CONFIG, "write a whole number that fits LONG."),
    (wanted("t", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG, "No value is given for retention.ms"),
]


@pytest.mark.parametrize(
    ("topic", "code", "message"), REFUSALS, ids=[f"{r[0].name[:12]!r} {r[2][:20]}" for r in REFUSALS]
)
def test_an_invalid_topic_is_refused(topic: CreatableTopic, code: ErrorCode, message: str) -> None:
    image = with_topics(cluster(1, 2), wanted("old.topic"))
    decision = create(image, topic)
    result = decision.reply.topics[0]
    assert decision.records == []
    assert result.error_code == code
    assert message in (result.error_message or "")


def test_a_topic_whose_replicas_are_all_fenced_is_refused() -> None:
    decision = create(cluster(1, 2, fenced=frozenset({1})), wanted("t", -1, -1, {0: [1]}))
    assert decision.reply.topics[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_create_topics_creates_the_valid_topics_of_a_request_that_also_has_invalid_topics() -> None:
    decision = create(cluster(1), wanted("bad name"), wanted("good"), wanted("twice"), wanted("twice"))
    codes = {result.name: result.error_code for result in decision.reply.topics}
    assert codes == {
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "good": ErrorCode.NONE,
        "twice": ErrorCode.INVALID_REQUEST,
    }
    assert len(decision.reply.topics) == 3
    assert set(apply(cluster(1), decision.records).topics) == {"good"}


# --- delete ---------------------------------------------------------------------------------------


def delete(image: MetadataImage, *topics: DeleteTopicState) -> Decision[DeleteTopicsResponse]:
    return delete_topics(image, topics)


def test_topics_are_deleted_by_name_and_by_id() -> None:
    image = with_topics(cluster(1), wanted("a"), wanted("b"), wanted("c"))
    by_id = image.topics["b"].topic_id
    decision = delete(image, DeleteTopicState(name="a"), DeleteTopicState(topic_id=by_id))
    assert [(one.name, one.error_code) for one in decision.reply.responses] == [("a", 0), ("b", 0)]
    assert decision.reply.responses[1].topic_id == by_id
    assert set(apply(image, decision.records).topics) == {"c"}


def test_invalid_topic_deletion_is_refused_with_an_error_code() -> None:
    image = with_topics(cluster(1), wanted("a"), wanted("b"))
    known = image.topics["b"].topic_id
    cases: list[tuple[list[Any], list[ErrorCode]]] = [
        ([DeleteTopicState(name="x")], [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
        ([DeleteTopicState(topic_id=bytes([5] * 16))], [ErrorCode.UNKNOWN_TOPIC_ID]),
        ([DeleteTopicState()], [ErrorCode.INVALID_REQUEST]),
        ([DeleteTopicState(name="a", topic_id=known)], [ErrorCode.INVALID_REQUEST]),
        ([DeleteTopicState(name="a"), DeleteTopicState(name="a")], [ErrorCode.INVALID_REQUEST]),
        ([DeleteTopicState(topic_id=known), DeleteTopicState(topic_id=known)], [ErrorCode.INVALID_REQUEST]),
        ([DeleteTopicState(name="b"), DeleteTopicState(topic_id=known)], [ErrorCode.INVALID_REQUEST]),
    ]
    for topics, codes in cases:
        decision = delete(image, *topics)
        assert [one.error_code for one in decision.reply.responses] == codes
        assert len(decision.records) == codes.count(ErrorCode.NONE)


# --- partitions -----------------------------------------------------------------------------------


def grow(
    image: MetadataImage, name: str, count: int, assignments: list[list[int]] | None = None, validate_only: bool = False
) -> Decision[CreatePartitionsResponse]:
    listed = None
    if assignments is not None:
        listed = [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    topic = CreatePartitionsTopic(name=name, count=count, assignments=listed)
    return create_partitions(image, CreatePartitionsRequest(topics=[topic], validate_only=validate_only), Random(5))


def test_new_partitions_get_the_next_indexes_and_the_same_replication_factor() -> None:
    image = with_topics(cluster(1, 2, 3), wanted("t", 2, 2))
    grown = apply(image, grow(image, "t", 5).records)
    assert sorted(grown.topics["t"].partitions) == [0, 1, 2, 3, 4]
    assert all(len(one.replicas) == 2 for one in grown.topics["t"].partitions.values())
    assert grown.topics["t"].partitions[0] is image.topics["t"].partitions[0]
    assert grown.partition_count == 5


def test_new_partitions_follow_a_manual_assignment() -> None:
    image = with_topics(cluster(1, 2), wanted("t", 1, 1))
    grown = apply(image, grow(image, "t", 3, [[2], [1]]).records)
    assert [grown.topics["t"].partitions[index].leader for index in (1, 2)] == [2, 1]


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code", "message"),
    [
        ("nosuch", 5, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        (
            "t",
            2,
            None,
            ErrorCode.INVALID_PARTITIONS,
            "The topic already has 2 partition(s): request a higher number.",
        ),
        ("t", 1, None, ErrorCode.INVALID_PARTITIONS, "can't shrink from 2 partition(s) to 1: request a higher number."),
        (
            "t",
            -1,
            None,
            ErrorCode.INVALID_PARTITIONS,
            "can't shrink from 2 partition(s) to -1: request a higher number.",
        ),
        ("t", 20_000, None, ErrorCode.POLICY_VIOLATION, "creates more than 5000 partitions"),
        ("t", 4, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "There are 1 assignment(s) for 2 new partition(s)"),
        ("t", 3, [[9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Broker 9 is assigned a replica but is not registered"),
        ("t", 3, [[]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "is assigned no replicas"),
        ("t", 3, [[1, 2]], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "assigned 2 replica(s) and another 1"),
    ],
)
def test_invalid_new_partitions_are_refused(
    name: str, count: int, assignments: list[list[int]] | None, code: ErrorCode, message: str | None
) -> None:
    image = with_topics(cluster(1, 2), wanted("t", 2, 1))
    decision = grow(image, name, count, assignments)
    result = decision.reply.results[0]
    assert (decision.records, result.error_code) == ([], code)
    assert (message is None and result.error_message is None) or (message or "") in (result.error_message or "")


def test_validate_only_create_partitions_request_adds_no_partitions() -> None:
    image = with_topics(cluster(1), wanted("t"))
    decision = grow(image, "t", 4, validate_only=True)
    assert decision.records == []
    assert decision.reply.results[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("last", "code"), [(0, ErrorCode.NONE), (1, ErrorCode.POLICY_VIOLATION)], ids=["at the limit", "beyond"]
)
def test_number_of_partitions_that_one_request_creates_is_bounded(last: int, code: ErrorCode) -> None:
    half = MAX_RECORDS_PER_REQUEST // 2
    decision = create(cluster(1), wanted("a", half), wanted("b", MAX_RECORDS_PER_REQUEST - half + last))
    assert [result.error_code for result in decision.reply.topics] == [code, code]
    assert bool(decision.records) == (code is ErrorCode.NONE)
