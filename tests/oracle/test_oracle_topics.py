"""CreateTopics, DeleteTopics and CreatePartitions: accepted requests and every refusal."""

from __future__ import annotations

from typing import Any

import pytest
from oracle_peer import Peer
from oracle_transcript import render

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_03_metadata import MetadataRequest, MetadataRequestTopic
from penstock.protocol.messages.api_19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from penstock.protocol.messages.api_20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.protocol.messages.api_37_create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)

UNKNOWN_ID = bytes(15) + b"\x07"


def create(*topics: CreatableTopic, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=list(topics), timeout_ms=20_000, validate_only=validate_only)


def topic(name: str, partitions: int = 1, factor: int = 1, **options: Any) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **options)


def assigned(name: str, *replicas: list[int], first: int = 0, counts: tuple[int, int] = (-1, -1)) -> CreatableTopic:
    assignments = [
        CreatableReplicaAssignment(partition_index=first + index, broker_ids=brokers)
        for index, brokers in enumerate(replicas)
    ]
    return topic(name, *counts, assignments=assignments)


def configured(name: str, **configs: str | None) -> CreatableTopic:
    pairs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    return topic(name, configs=pairs)


def ask_create(peer: Peer, *topics: CreatableTopic, version: int = 7, validate_only: bool = False) -> Any:
    """Creates topics without recording the list of configs, which another test covers."""
    answer = peer.quietly(create(*topics, validate_only=validate_only), version)
    for each in answer.topics:
        each.configs = None if each.configs is None else []
    answer.topics.sort(key=lambda each: each.name)
    peer.note(render(answer, version, peer.masks))
    return answer


# --- CreateTopics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 4, 5, 6, 7])
def test_every_version_of_create_topics_creates_a_topic(peer: Peer, version: int) -> None:
    ask_create(peer, topic(peer.unique("a"), 3), topic(peer.unique("b"), 1), version=version)
    match version:
        case 2:
            peer.said("""
                CreateTopics v2
                  topics: name=a error_message=null
                  topics: name=b error_message=null
            """)
        case 4:
            peer.said("""
                CreateTopics v4
                  topics: name=a error_message=null
                  topics: name=b error_message=null
            """)
        case 5:
            peer.said("""
                CreateTopics v5
                  topics: name=a error_message=null num_partitions=3 replication_factor=1
                  topics: name=b error_message=null num_partitions=1 replication_factor=1
            """)
        case 7:
            peer.said("""
                CreateTopics v7
                  topics: name=a topic_id=<uuid 1> error_message=null num_partitions=3 replication_factor=1
                  topics: name=b topic_id=<uuid 2> error_message=null num_partitions=1 replication_factor=1
            """)


def test_create_topics_with_minus_one_uses_the_broker_defaults(peer: Peer) -> None:
    ask_create(peer, topic(peer.unique("a"), -1, -1), version=4)
    ask_create(peer, topic(peer.unique("b"), -1, 1))
    ask_create(peer, topic(peer.unique("c"), 2, -1))
    peer.said("""
        CreateTopics v4
          topics: name=a error_message=null
        CreateTopics v7
          topics: name=b topic_id=<uuid 1> error_message=null num_partitions=1 replication_factor=1
        CreateTopics v7
          topics: name=c topic_id=<uuid 2> error_message=null num_partitions=2 replication_factor=1
    """)


def test_create_topics_with_invalid_partition_and_replica_counts_is_refused(peer: Peer) -> None:
    for partitions, factor in ((0, 1), (-2, 1), (1, 0), (1, -2), (1, 2), (0, 0), (1, 32767)):
        ask_create(peer, topic(peer.unique("a"), partitions, factor))
    peer.said("""
        CreateTopics v7
          topics: name=a error_code=INVALID_PARTITIONS
        CreateTopics v7
          topics: name=a error_code=INVALID_PARTITIONS
        CreateTopics v7
          topics: name=a error_code=INVALID_REPLICATION_FACTOR
        CreateTopics v7
          topics: name=a error_code=INVALID_REPLICATION_FACTOR
        CreateTopics v7
          topics: name=a error_code=INVALID_REPLICATION_FACTOR
        CreateTopics v7
          topics: name=a error_code=INVALID_REPLICATION_FACTOR
        CreateTopics v7
          topics: name=a error_code=INVALID_REPLICATION_FACTOR
    """)


def test_create_topics_with_invalid_names_is_refused(peer: Peer) -> None:
    for name in ("", ".", "..", "a b", "a/b", "é", "x" * 250, "a:b", "__cluster_metadata"):
        ask_create(peer, topic(name))
    peer.said("""
        CreateTopics v7
          topics: error_code=INVALID_TOPIC_EXCEPTION
        CreateTopics v7
          topics: name=. error_code=INVALID_TOPIC_EXCEPTION
        CreateTopics v7
          topics: name=.. error_code=INVALID_TOPIC_EXCEPTION
        CreateTopics v7
          topics: name=a b error_code=INVALID_TOPIC_EXCEPTION
        CreateTopics v7
          topics: name=a/b error_code=INVALID_TOPIC_EXCEPTION
        CreateTopics v7
          topics: name=é error_code=INVALID_TOPIC_EXCEPTION
        CreateTopics v7
          topics: name=xxxxxxxx…(250) error_code=INVALID_TOPIC_EXCEPTION
        CreateTopics v7
          topics: name=a:b error_code=INVALID_TOPIC_EXCEPTION
        CreateTopics v7
          topics: name=__cluster_metadata error_code=INVALID_REQUEST
    """)


def test_create_topics_with_existing_or_colliding_names_is_refused(peer: Peer) -> None:
    name = peer.topic("with.dot")
    ask_create(peer, topic(name))
    ask_create(peer, topic(name), validate_only=True)
    ask_create(peer, topic(name.replace("with.dot", "with_dot")))
    twice = peer.unique("twice")
    ask_create(peer, topic(twice), topic(twice), topic(peer.unique("other")))
    peer.said("""
        CreateTopics v7
          topics: name=with.dot error_code=TOPIC_ALREADY_EXISTS
        CreateTopics v7
          topics: name=with.dot error_code=TOPIC_ALREADY_EXISTS
        CreateTopics v7
          topics: name=with_dot error_code=INVALID_TOPIC_EXCEPTION
        CreateTopics v7
          topics: name=other topic_id=<uuid 1> error_message=null num_partitions=1 replication_factor=1
          topics: name=twice error_code=INVALID_REQUEST
    """)


def test_create_topics_with_validate_only_creates_no_topic(peer: Peer) -> None:
    name = peer.unique("a")
    ask_create(peer, topic(name, 2), validate_only=True)
    ask_create(peer, topic(name, 2), validate_only=True)
    ask_create(peer, topic(name, 0), validate_only=True)
    peer.ask(create(), 7)
    peer.said("""
        CreateTopics v7
          topics: name=a topic_id=<uuid 1> error_message=null num_partitions=2 replication_factor=1
        CreateTopics v7
          topics: name=a topic_id=<uuid 2> error_message=null num_partitions=2 replication_factor=1
        CreateTopics v7
          topics: name=a error_code=INVALID_PARTITIONS
        CreateTopics v7
    """)


def test_penstock_answers_create_topics_with_replica_assignments_like_kafka(peer: Peer) -> None:
    ask_create(peer, assigned(peer.unique("good"), [1], [1]))
    ask_create(peer, assigned(peer.unique("counts-too"), [1], counts=(1, 1)))
    ask_create(peer, assigned(peer.unique("partitions-too"), [1], counts=(1, -1)))
    ask_create(peer, assigned(peer.unique("factor-too"), [1], counts=(-1, 1)))
    ask_create(peer, assigned(peer.unique("unknown-broker"), [9]))
    ask_create(peer, assigned(peer.unique("one-known-broker"), [1, 9]))
    ask_create(peer, assigned(peer.unique("twice-the-same"), [1, 1]))
    ask_create(peer, assigned(peer.unique("no-brokers"), []))
    ask_create(peer, assigned(peer.unique("not-from-0"), [1], first=1))
    ask_create(peer, assigned(peer.unique("negative"), [1], first=-1))
    ask_create(peer, assigned(peer.unique("negative-broker"), [-1]))
    ask_create(peer, assigned(peer.unique("uneven"), [1], [1, 9]))
    double = assigned(peer.unique("double"), [1], [1])
    double.assignments[1].partition_index = 0
    ask_create(peer, double)
    peer.said("""
        CreateTopics v7
          topics: name=good topic_id=<uuid 1> error_message=null num_partitions=2 replication_factor=1
        CreateTopics v7
          topics: name=counts-too error_code=INVALID_REQUEST
        CreateTopics v7
          topics: name=partitions-too error_code=INVALID_REQUEST
        CreateTopics v7
          topics: name=factor-too error_code=INVALID_REQUEST
        CreateTopics v7
          topics: name=unknown-broker error_code=INVALID_REPLICA_ASSIGNMENT
        CreateTopics v7
          topics: name=one-known-broker error_code=INVALID_REPLICA_ASSIGNMENT
        CreateTopics v7
          topics: name=twice-the-same error_code=INVALID_REPLICA_ASSIGNMENT
        CreateTopics v7
          topics: name=no-brokers error_code=INVALID_REPLICA_ASSIGNMENT
        CreateTopics v7
          topics: name=not-from-0 error_code=INVALID_REPLICA_ASSIGNMENT
        CreateTopics v7
          topics: name=negative error_code=INVALID_REPLICA_ASSIGNMENT
        CreateTopics v7
          topics: name=negative-broker error_code=INVALID_REPLICA_ASSIGNMENT
        CreateTopics v7
          topics: name=uneven error_code=INVALID_REPLICA_ASSIGNMENT
        CreateTopics v7
          topics: name=double error_code=INVALID_REPLICA_ASSIGNMENT
    """)


def test_penstock_answers_create_topics_with_invalid_configs_like_kafka(peer: Peer) -> None:
    for name, value in (
        ("no.such", "1"),
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("retention.ms", ""),
        ("retention.ms", None),
        ("retention.ms", " 5000 "),
        ("cleanup.policy", "shred"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact,delete"),
        ("cleanup.policy", "compact,compact"),
        ("min.insync.replicas", "0"),
        ("min.insync.replicas", "2"),
        ("segment.bytes", "13"),
        ("segment.bytes", "2147483648"),
        ("max.message.bytes", "-1"),
        ("compression.type", "rar"),
        ("compression.type", "zstd"),
        ("compression.zstd.level", "99"),
        ("message.timestamp.type", "Now"),
        ("unclean.leader.election.enable", "maybe"),
        ("unclean.leader.election.enable", "TRUE"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("message.format.version", "3.0"),
        ("leader.replication.throttled.replicas", "0:1,1:1"),
        ("leader.replication.throttled.replicas", "x"),
        ("leader.replication.throttled.replicas", "*"),
        ("remote.storage.enable", "true"),
        ("remote.storage.enable", "false"),
        ("local.retention.ms", "5"),
        ("local.retention.ms", "-2"),
        ("flush.messages", "0"),
        ("index.interval.bytes", "-1"),
        ("segment.index.bytes", "3"),
        ("segment.ms", "0"),
        ("segment.jitter.ms", "-1"),
        ("max.compaction.lag.ms", "0"),
        ("", "x"),
    ):
        wanted = topic(peer.unique("a"), configs=[CreatableTopicConfig(name=name, value=value)])
        answer = peer.quietly(create(wanted, validate_only=True))
        shown = ErrorCode(answer.topics[0].error_code).name
        peer.note(f"{name}={value} {shown}")
    peer.said("""
        no.such=1 INVALID_CONFIG
        retention.ms=soon INVALID_CONFIG
        retention.ms=-2 INVALID_CONFIG
        retention.ms= INVALID_CONFIG
        retention.ms=None INVALID_CONFIG
        retention.ms= 5000  NONE
        cleanup.policy=shred INVALID_CONFIG
        cleanup.policy= NONE
        cleanup.policy=compact,delete NONE
        cleanup.policy=compact,compact NONE
        min.insync.replicas=0 INVALID_CONFIG
        min.insync.replicas=2 NONE
        segment.bytes=13 INVALID_CONFIG
        segment.bytes=2147483648 INVALID_CONFIG
        max.message.bytes=-1 INVALID_CONFIG
        compression.type=rar INVALID_CONFIG
        compression.type=zstd NONE
        compression.zstd.level=99 INVALID_CONFIG
        message.timestamp.type=Now INVALID_CONFIG
        unclean.leader.election.enable=maybe INVALID_CONFIG
        unclean.leader.election.enable=TRUE NONE
        min.cleanable.dirty.ratio=1.5 INVALID_CONFIG
        message.format.version=3.0 INVALID_CONFIG
        leader.replication.throttled.replicas=0:1,1:1 NONE
        leader.replication.throttled.replicas=x INVALID_CONFIG
        leader.replication.throttled.replicas=* NONE
        remote.storage.enable=true INVALID_CONFIG
        remote.storage.enable=false NONE
        local.retention.ms=5 NONE
        local.retention.ms=-2 NONE
        flush.messages=0 INVALID_CONFIG
        index.interval.bytes=-1 INVALID_CONFIG
        segment.index.bytes=3 INVALID_CONFIG
        segment.ms=0 INVALID_CONFIG
        segment.jitter.ms=-1 INVALID_CONFIG
        max.compaction.lag.ms=0 INVALID_CONFIG
        =x INVALID_CONFIG
    """)


def test_penstock_answers_create_topics_with_contradicting_configs_like_kafka(peer: Peer) -> None:
    ask_create(peer, configured(peer.unique("lag"), min_compaction_lag_ms="10", max_compaction_lag_ms="5"))
    ask_create(peer, configured(peer.unique("local"), local_retention_ms="10", retention_ms="5"))
    twice = topic(peer.unique("twice"))
    twice.configs = [CreatableTopicConfig(name="retention.ms", value=value) for value in ("1", "2")]
    ask_create(peer, twice)
    peer.said("""
        CreateTopics v7
          topics: name=lag error_code=INVALID_CONFIG
        CreateTopics v7
          topics: name=local topic_id=<uuid 1> error_message=null num_partitions=1 replication_factor=1
        CreateTopics v7
          topics: name=twice topic_id=<uuid 2> error_message=null num_partitions=1 replication_factor=1
    """)


def test_response_of_create_topics_lists_the_configs_of_the_new_topic(peer: Peer) -> None:
    wanted = configured(peer.unique("a"), retention_ms="5000", cleanup_policy="compact")
    answer = peer.quietly(create(wanted))
    shared = [config for config in answer.topics[0].configs if not config.name.startswith("penstock.")]
    answer.topics[0].configs = sorted(shared, key=lambda config: config.name)
    peer.note(render(answer, 7, peer.masks))
    peer.said("""
        CreateTopics v7
          topics: name=a topic_id=<uuid 1> error_message=null num_partitions=1 replication_factor=1
            configs: name=cleanup.policy value=compact config_source=1
            configs: name=compression.gzip.level value=-1 config_source=5
            configs: name=compression.lz4.level value=9 config_source=5
            configs: name=compression.type value=producer config_source=5
            configs: name=compression.zstd.level value=3 config_source=5
            configs: name=delete.retention.ms value=86400000 config_source=5
            configs: name=file.delete.delay.ms value=60000 config_source=5
            configs: name=flush.messages value=9223372036854775807 config_source=5
            configs: name=flush.ms value=9223372036854775807 config_source=5
            configs: name=follower.replication.throttled.replicas config_source=5
            configs: name=index.interval.bytes value=4096 config_source=5
            configs: name=leader.replication.throttled.replicas config_source=5
            configs: name=local.retention.bytes value=-2 config_source=5
            configs: name=local.retention.ms value=-2 config_source=5
            configs: name=max.compaction.lag.ms value=9223372036854775807 config_source=5
            configs: name=max.message.bytes value=1048588 config_source=5
            configs: name=message.timestamp.after.max.ms value=3600000 config_source=5
            configs: name=message.timestamp.before.max.ms value=9223372036854775807 config_source=5
            configs: name=message.timestamp.type value=CreateTime config_source=5
            configs: name=min.cleanable.dirty.ratio value=0.5 config_source=5
            configs: name=min.compaction.lag.ms value=0 config_source=5
            configs: name=min.insync.replicas value=1 config_source=3
            configs: name=preallocate value=false config_source=5
            configs: name=remote.log.copy.disable value=false config_source=5
            configs: name=remote.log.delete.on.disable value=false config_source=5
            configs: name=remote.storage.enable value=false config_source=5
            configs: name=retention.bytes value=-1 config_source=5
            configs: name=retention.ms value=5000 config_source=1
            configs: name=segment.bytes value=1073741824 config_source=5
            configs: name=segment.index.bytes value=10485760 config_source=5
            configs: name=segment.jitter.ms value=0 config_source=5
            configs: name=segment.ms value=604800000 config_source=5
            configs: name=unclean.leader.election.enable value=false config_source=5
    """)


# --- DeleteTopics -----------------------------------------------------------------------------------------------


def by_state(*states: tuple[str | None, bytes]) -> DeleteTopicsRequest:
    topics = [DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in states]
    return DeleteTopicsRequest(topics=topics, timeout_ms=20_000)


def by_name(*names: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topic_names=list(names), timeout_ms=20_000)


def ask_delete(peer: Peer, request: DeleteTopicsRequest, version: int = 6) -> None:
    """Deletes topics; sorts the answer, because Kafka shuffles it."""
    answer = peer.quietly(request, version)
    answer.responses.sort(key=lambda each: (each.name or "", each.topic_id, each.error_code))
    peer.note(render(answer, version, peer.masks))


def gone(peer: Peer, name: str) -> bool:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    return bool(peer.quietly(request, 12).topics[0].error_code)


@pytest.mark.parametrize("version", [1, 3, 4, 5])
def test_delete_topics_deletes_topics_by_name(peer: Peer, version: int) -> None:
    name = peer.topic("a")
    ask_delete(peer, by_name(name, peer.unique("nope")), version)
    peer.settle(lambda: gone(peer, name))
    ask_delete(peer, by_name(name), version)
    match version:
        case 1:
            peer.said("""
                DeleteTopics v1
                  responses: name=a
                  responses: name=nope error_code=UNKNOWN_TOPIC_OR_PARTITION
                DeleteTopics v1
                  responses: name=a error_code=UNKNOWN_TOPIC_OR_PARTITION
            """)
        case 5:
            peer.said("""
                DeleteTopics v5
                  responses: name=a
                  responses: name=nope error_code=UNKNOWN_TOPIC_OR_PARTITION
                DeleteTopics v5
                  responses: name=a error_code=UNKNOWN_TOPIC_OR_PARTITION
            """)


def test_delete_topics_since_version_6_deletes_topics_by_name_or_id(peer: Peer) -> None:
    name, other = peer.topic("a"), peer.topic("b")
    ids = peer.topic_id(name), peer.topic_id(other)
    ask_delete(peer, by_state((None, ids[0]), (other, bytes(16))))
    peer.settle(lambda: gone(peer, name) and gone(peer, other))
    ask_delete(peer, by_state((None, ids[0]), (other, bytes(16)), (None, UNKNOWN_ID)))
    peer.said("""
        DeleteTopics v6
          responses: name=a topic_id=<id of a>
          responses: name=b topic_id=<id of b>
        DeleteTopics v6
          responses: name=null topic_id=AAAAAAAAAAAAAAAAAAAABw error_code=UNKNOWN_TOPIC_ID
          responses: name=null topic_id=<id of a> error_code=UNKNOWN_TOPIC_ID
          responses: name=b error_code=UNKNOWN_TOPIC_OR_PARTITION
    """)


def test_invalid_delete_topics_requests_are_refused(peer: Peer) -> None:
    name = peer.topic("a")
    topic_id, nope = peer.topic_id(name), peer.unique("nope")
    for states in (
        [(None, bytes(16))],
        [(name, topic_id)],
        [(name, bytes(16)), (name, bytes(16))],
        [(None, topic_id), (None, topic_id)],
        [(name, bytes(16)), (None, topic_id)],
        [(None, UNKNOWN_ID), (None, UNKNOWN_ID)],
        [(nope, bytes(16)), (nope, bytes(16))],
        [(nope, UNKNOWN_ID), (nope, bytes(16))],
        [("", bytes(16))],
        [("a b", bytes(16))],
    ):
        ask_delete(peer, by_state(*states))
    peer.ask(by_state())
    ask_delete(peer, by_name(name, name), 5)
    peer.said("""
        DeleteTopics v6
          responses: name=null error_code=INVALID_REQUEST
        DeleteTopics v6
          responses: name=a topic_id=<id of a> error_code=INVALID_REQUEST
        DeleteTopics v6
          responses: name=a error_code=INVALID_REQUEST
        DeleteTopics v6
          responses: name=null topic_id=<id of a> error_code=INVALID_REQUEST
        DeleteTopics v6
          responses: name=a topic_id=<id of a> error_code=INVALID_REQUEST
        DeleteTopics v6
          responses: name=null topic_id=AAAAAAAAAAAAAAAAAAAABw error_code=INVALID_REQUEST
        DeleteTopics v6
          responses: name=nope error_code=INVALID_REQUEST
        DeleteTopics v6
          responses: name=nope error_code=UNKNOWN_TOPIC_OR_PARTITION
          responses: name=nope topic_id=AAAAAAAAAAAAAAAAAAAABw error_code=INVALID_REQUEST
        DeleteTopics v6
          responses: error_code=UNKNOWN_TOPIC_OR_PARTITION
        DeleteTopics v6
          responses: name=a b error_code=UNKNOWN_TOPIC_OR_PARTITION
        DeleteTopics v6
        DeleteTopics v5
          responses: name=a error_code=INVALID_REQUEST
    """)
    assert not gone(peer, name)


# --- CreatePartitions -------------------------------------------------------------------------------------------


def grow(name: str, count: int, *replicas: list[int]) -> CreatePartitionsTopic:
    assignments = [CreatePartitionsAssignment(broker_ids=brokers) for brokers in replicas] or None
    return CreatePartitionsTopic(name=name, count=count, assignments=assignments)


def ask_grow(peer: Peer, *topics: CreatePartitionsTopic, version: int = 3, validate_only: bool = False) -> None:
    request = CreatePartitionsRequest(topics=list(topics), timeout_ms=20_000, validate_only=validate_only)
    answer = peer.quietly(request, version)
    answer.results.sort(key=lambda each: each.name)
    peer.note(render(answer, version, peer.masks))


def test_create_partitions_adds_partitions_to_a_topic(peer: Peer) -> None:
    name, other = peer.topic("a"), peer.topic("b", 2)
    ask_grow(peer, grow(name, 3), validate_only=True)
    ask_grow(peer, grow(name, 3), grow(other, 3, [1]))
    ask_grow(peer, grow(name, 3), grow(name, 4), version=0)
    ask_grow(peer)
    peer.said("""
        CreatePartitions v3
          results: name=a
        CreatePartitions v3
          results: name=a
          results: name=b
        CreatePartitions v0
          results: name=a error_code=INVALID_REQUEST
        CreatePartitions v3
    """)


def test_penstock_answers_invalid_create_partitions_requests_like_kafka(peer: Peer) -> None:
    name = peer.topic("a", 2)
    for wanted in (
        grow(peer.unique("nope"), 3),
        grow(name, 2),
        grow(name, 1),
        grow(name, 0),
        grow(name, -1),
        grow(name, 3, [1], [1]),
        grow(name, 4, [1]),
        grow(name, 3, [9]),
        grow(name, 3, [1, 1]),
        grow(name, 3, [1, 9]),
        grow(name, 3, []),
        grow("", 3),
        grow("a b", 3),
        grow(name, 2, [1]),
    ):
        ask_grow(peer, wanted)
    peer.said("""
        CreatePartitions v3
          results: name=nope error_code=UNKNOWN_TOPIC_OR_PARTITION
        CreatePartitions v3
          results: name=a error_code=INVALID_PARTITIONS
        CreatePartitions v3
          results: name=a error_code=INVALID_PARTITIONS
        CreatePartitions v3
          results: name=a error_code=INVALID_PARTITIONS
        CreatePartitions v3
          results: name=a error_code=INVALID_PARTITIONS
        CreatePartitions v3
          results: name=a error_code=INVALID_REPLICA_ASSIGNMENT
        CreatePartitions v3
          results: name=a error_code=INVALID_REPLICA_ASSIGNMENT
        CreatePartitions v3
          results: name=a error_code=INVALID_REPLICA_ASSIGNMENT
        CreatePartitions v3
          results: name=a error_code=INVALID_REPLICA_ASSIGNMENT
        CreatePartitions v3
          results: name=a error_code=INVALID_REPLICA_ASSIGNMENT
        CreatePartitions v3
          results: name=a error_code=INVALID_REPLICA_ASSIGNMENT
        CreatePartitions v3
          results: error_code=UNKNOWN_TOPIC_OR_PARTITION
        CreatePartitions v3
          results: name=a b error_code=UNKNOWN_TOPIC_OR_PARTITION
        CreatePartitions v3
          results: name=a error_code=INVALID_PARTITIONS
    """)
    empty = CreatePartitionsTopic(name=name, count=3, assignments=[])
    ask_grow(peer, empty, validate_only=True)
    peer.said("""
        CreatePartitions v3
          results: name=a error_code=INVALID_REPLICA_ASSIGNMENT
    """)


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_create_topics_with_an_expired_timeout_fails_in_kafka_but_not_in_penstock(peer: Peer, timeout_ms: int) -> None:
    wanted = {"kafka": ErrorCode.REQUEST_TIMED_OUT, "penstock": ErrorCode.NONE}[peer.name]
    name = peer.topic("a")
    made = CreateTopicsRequest(topics=[topic(peer.unique("b"))], timeout_ms=timeout_ms, validate_only=True)
    assert peer.quietly(made).topics[0].error_code == wanted
    grown = CreatePartitionsRequest(topics=[grow(name, 2)], timeout_ms=timeout_ms, validate_only=True)
    assert peer.quietly(grown).results[0].error_code == wanted
    gone = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=timeout_ms)
    assert peer.quietly(gone).responses[0].error_code == wanted
