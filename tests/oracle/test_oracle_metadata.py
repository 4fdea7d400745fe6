"""Metadata and DescribeTopicPartitions: topics by name, by id, all, none, and missing ones."""

from __future__ import annotations

from typing import Any

import pytest
from oracle_peer import Peer
from oracle_transcript import render

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_03_metadata import MetadataRequest, MetadataRequestTopic
from penstock.protocol.messages.api_75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)

UNKNOWN_ID = bytes(15) + b"\x07"


def named(*names: str | None, create: bool = False, **options: Any) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create, **options)


def by_id(*ids: bytes, name: str | None = None) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(topic_id=each, name=name) for each in ids])


@pytest.mark.parametrize("version", [0, 1, 4, 5, 7, 8, 10, 12, 13])
def test_metadata_of_a_topic_is_the_same_in_kafka_and_penstock_in_every_version(peer: Peer, version: int) -> None:
    topic = peer.topic(partitions=2)
    answer = peer.quietly(named(topic, create=version < 4), version)
    answer.topics[0].partitions.sort(key=lambda partition: partition.partition_index)
    peer.note(render(answer, version, peer.masks))
    match version:
        case 0:
            peer.said("""
                Metadata v0
                  brokers: node_id=1 host=<host> port=<port>
                  topics: name=t
                    partitions: leader_id=1 replica_nodes=[1] isr_nodes=[1]
                    partitions: partition_index=1 leader_id=1 replica_nodes=[1] isr_nodes=[1]
            """)
        case 1:
            peer.said("""
                Metadata v1 controller_id=1
                  brokers: node_id=1 host=<host> port=<port>
                  topics: name=t
                    partitions: leader_id=1 replica_nodes=[1] isr_nodes=[1]
                    partitions: partition_index=1 leader_id=1 replica_nodes=[1] isr_nodes=[1]
            """)
        case 4:
            peer.said("""
                Metadata v4 cluster_id=<cluster_id> controller_id=1
                  brokers: node_id=1 host=<host> port=<port>
                  topics: name=t
                    partitions: leader_id=1 replica_nodes=[1] isr_nodes=[1]
                    partitions: partition_index=1 leader_id=1 replica_nodes=[1] isr_nodes=[1]
            """)
        case 7:
            peer.said("""
                Metadata v7 cluster_id=<cluster_id> controller_id=1
                  brokers: node_id=1 host=<host> port=<port>
                  topics: name=t
                    partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                    partitions: partition_index=1 leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
            """)
        case 10:
            peer.said("""
                Metadata v10 cluster_id=<cluster_id> controller_id=1
                  brokers: node_id=1 host=<host> port=<port>
                  topics: name=t topic_id=<id of t>
                    partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                    partitions: partition_index=1 leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
            """)
        case 13:
            peer.said("""
                Metadata v13 cluster_id=<cluster_id> controller_id=1
                  brokers: node_id=1 host=<host> port=<port>
                  topics: name=t topic_id=<id of t>
                    partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                    partitions: partition_index=1 leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
            """)


def test_metadata_of_an_unknown_topic_creates_no_topic_unless_the_request_allows_it(peer: Peer) -> None:
    for version in (4, 9, 12, 13):
        peer.ask(named(peer.unique("nope")), version)
    peer.said("""
        Metadata v4 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=UNKNOWN_TOPIC_OR_PARTITION name=nope
        Metadata v9 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=UNKNOWN_TOPIC_OR_PARTITION name=nope
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=UNKNOWN_TOPIC_OR_PARTITION name=nope
        Metadata v13 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=UNKNOWN_TOPIC_OR_PARTITION name=nope
    """)


def test_metadata_of_an_unknown_topic_creates_the_topic_if_the_request_allows_it(peer: Peer) -> None:
    topic = peer.unique("new")
    peer.settle(lambda: peer.quietly(named(topic, create=True), 12).topics[0].error_code == 0)
    answer = peer.quietly(named(topic), 12)
    peer.masks.topic_ids[answer.topics[0].topic_id] = "new"
    peer.note(render(answer, 12, peer.masks))
    peer.said("""
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: name=new topic_id=<id of new>
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
    """)


@pytest.mark.parametrize("version", [0, 1, 3, 4, 12, 13])
def test_metadata_request_that_creates_a_topic_also_describes_it_but_kafka_needs_a_second_request(
    peer: Peer, version: int
) -> None:
    (topic,) = peer.quietly(named(peer.unique("new"), create=True), version).topics
    assert topic.error_code == {"kafka": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "penstock": 0}[peer.name]


def test_penstock_returns_a_specific_error_code_for_metadata_requests_on_which_kafka_fails(peer: Peer) -> None:
    (topic,) = peer.quietly(named(None), 12).topics
    assert (
        topic.error_code == {"kafka": ErrorCode.UNKNOWN_SERVER_ERROR, "penstock": ErrorCode.INVALID_REQUEST}[peer.name]
    )
    for topic in peer.quietly(partitions_of("", "a b")).topics:
        wanted = {"kafka": ErrorCode.UNKNOWN_SERVER_ERROR, "penstock": ErrorCode.INVALID_TOPIC_EXCEPTION}
        assert topic.error_code == wanted[peer.name]


def test_metadata_of_invalid_topic_names_is_refused(peer: Peer) -> None:
    for name in ("", ".", "..", "a b", "a/b", "é", "x" * 250, "a:b"):
        for create in (False, True):
            peer.ask(named(name, create=create), 12)
    peer.said("""
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION name=.
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION name=.
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION name=..
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION name=..
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION name=a b
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION name=a b
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION name=a/b
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION name=a/b
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION name=é
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION name=é
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION name=xxxxxxxx…(250)
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION name=xxxxxxxx…(250)
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION name=a:b
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=INVALID_TOPIC_EXCEPTION name=a:b
    """)


def test_metadata_creates_no_topic_whose_name_collides_with_another_topic(peer: Peer) -> None:
    first = peer.topic("with.dot")
    peer.ask(named(first.replace("with.dot", "with_dot"), create=True), 12)
    peer.said("""
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=UNKNOWN_TOPIC_OR_PARTITION name=with_dot
    """)


def test_metadata_response_lists_a_topic_once_if_the_request_names_it_twice(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(named(topic, topic), 12)
    unknown = peer.unique("nope")
    peer.ask(named(unknown, unknown), 12)
    peer.said("""
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: name=t topic_id=<id of t>
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=UNKNOWN_TOPIC_OR_PARTITION name=nope
    """)


def test_metadata_describes_a_topic_by_its_id_and_refuses_an_unknown_id(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(by_id(peer.topic_id(topic)), 12)
    peer.ask(by_id(UNKNOWN_ID), 12)
    peer.ask(by_id(peer.topic_id(topic), UNKNOWN_ID), 13)
    peer.said("""
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: name=t topic_id=<id of t>
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=UNKNOWN_TOPIC_ID name=null topic_id=AAAAAAAAAAAAAAAAAAAABw
        Metadata v13 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=UNKNOWN_TOPIC_ID name=null topic_id=AAAAAAAAAAAAAAAAAAAABw
          topics: name=t topic_id=<id of t>
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
    """)


def test_metadata_request_with_both_name_and_id_of_a_topic_is_refused(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(by_id(peer.topic_id(topic), name=topic), 12)
    peer.ask(by_id(peer.topic_id(topic), name=topic), 13)
    peer.ask(by_id(UNKNOWN_ID, name="nope"), 12)
    peer.said("""
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: name=t topic_id=<id of t>
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
        Metadata v13 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: name=t topic_id=<id of t>
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=UNKNOWN_TOPIC_ID name=null topic_id=AAAAAAAAAAAAAAAAAAAABw
    """)


def test_metadata_with_topic_ids_is_refused_in_versions_10_and_11(peer: Peer) -> None:
    topic = peer.topic()
    for version in (10, 11):
        peer.ask(by_id(peer.topic_id(topic)), version)
        peer.ask(named(None), version)
    peer.said("""
        Metadata v10
          topics: error_code=INVALID_REQUEST topic_id=<id of t>
        Metadata v10
          topics: error_code=INVALID_REQUEST
        Metadata v11
          topics: error_code=INVALID_REQUEST topic_id=<id of t>
        Metadata v11
          topics: error_code=INVALID_REQUEST
    """)


def test_empty_topic_list_in_metadata_means_no_topics_except_in_version_0(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(MetadataRequest(topics=[]), 1)
    peer.ask(MetadataRequest(topics=[]), 12)
    peer.said("""
        Metadata v1 controller_id=1
          brokers: node_id=1 host=<host> port=<port>
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
    """)
    assert topic in {each.name for each in peer.quietly(MetadataRequest(topics=[]), 0).topics}
    for version in (1, 5, 12, 13):
        assert topic in {each.name for each in peer.quietly(MetadataRequest(topics=None), version).topics}


def test_metadata_lists_authorized_operations_on_request(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(named(topic, include_topic_authorized_operations=True), 13)
    peer.ask(named(topic, include_topic_authorized_operations=True, include_cluster_authorized_operations=True), 8)
    peer.ask(named(peer.unique("nope"), include_topic_authorized_operations=True), 12)
    peer.ask(by_id(UNKNOWN_ID), 12)
    peer.said("""
        Metadata v13 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: name=t topic_id=<id of t> topic_authorized_operations=3576
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
        Metadata v8 cluster_id=<cluster_id> controller_id=1 cluster_authorized_operations=8096
          brokers: node_id=1 host=<host> port=<port>
          topics: name=t topic_authorized_operations=3576
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=UNKNOWN_TOPIC_OR_PARTITION name=nope topic_authorized_operations=3576
        Metadata v12 cluster_id=<cluster_id> controller_id=1
          brokers: node_id=1 host=<host> port=<port>
          topics: error_code=UNKNOWN_TOPIC_ID name=null topic_id=AAAAAAAAAAAAAAAAAAAABw
    """)


# --- DescribeTopicPartitions ------------------------------------------------------------------------------------


def partitions_of(*names: str, limit: int = 2000, cursor: Cursor | None = None) -> DescribeTopicPartitionsRequest:
    topics = [TopicRequest(name=name) for name in names]
    return DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=cursor)


def test_describe_topic_partitions_returns_partitions_page_by_page(peer: Peer) -> None:
    first, second = peer.topic("a", 3), peer.topic("b", 2)
    peer.ask(partitions_of(second, first))
    peer.said("""
        DescribeTopicPartitions v0
          topics: name=a topic_id=<id of a> topic_authorized_operations=3576
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
            partitions: partition_index=1 leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
            partitions: partition_index=2 leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
          topics: name=b topic_id=<id of b> topic_authorized_operations=3576
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
            partitions: partition_index=1 leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
    """)
    peer.ask(partitions_of(first, second, limit=2))
    peer.ask(partitions_of(first, second, limit=2, cursor=Cursor(topic_name=first, partition_index=2)))
    peer.ask(partitions_of(first, second, limit=2, cursor=Cursor(topic_name=second, partition_index=1)))
    peer.ask(partitions_of(first, second, limit=3))
    peer.said("""
        DescribeTopicPartitions v0
          topics: name=a topic_id=<id of a> topic_authorized_operations=3576
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
            partitions: partition_index=1 leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
          next_cursor: topic_name=a partition_index=2
        DescribeTopicPartitions v0
          topics: name=a topic_id=<id of a> topic_authorized_operations=3576
            partitions: partition_index=2 leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
          topics: name=b topic_id=<id of b> topic_authorized_operations=3576
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
          next_cursor: topic_name=b partition_index=1
        DescribeTopicPartitions v0
          topics: name=b topic_id=<id of b> topic_authorized_operations=3576
            partitions: partition_index=1 leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
        DescribeTopicPartitions v0
          topics: name=a topic_id=<id of a> topic_authorized_operations=3576
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
            partitions: partition_index=1 leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
            partitions: partition_index=2 leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
          next_cursor: topic_name=b
    """)


def test_describe_topic_partitions_refuses_a_missing_topic_and_describes_a_repeated_topic_once(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(partitions_of(peer.unique("nope")))
    peer.ask(partitions_of(topic, topic))
    peer.said("""
        DescribeTopicPartitions v0
          topics: error_code=UNKNOWN_TOPIC_OR_PARTITION name=nope topic_authorized_operations=3576
        DescribeTopicPartitions v0
          topics: name=t topic_id=<id of t> topic_authorized_operations=3576
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
    """)


def test_penstock_answers_describe_topic_partitions_with_invalid_cursors_and_limits_like_kafka(peer: Peer) -> None:
    topic = peer.topic("c", 2)
    for cursor in (
        Cursor(topic_name=topic, partition_index=-1),
        Cursor(topic_name=topic, partition_index=9),
        Cursor(topic_name="a" + topic, partition_index=0),
        Cursor(topic_name="z" + topic, partition_index=0),
    ):
        peer.ask(partitions_of(topic, cursor=cursor))
    peer.ask(partitions_of(topic, limit=0))
    peer.ask(partitions_of(topic, limit=-1))
    peer.said("""
        DescribeTopicPartitions v0
          topics: error_code=INVALID_REQUEST name=c
        DescribeTopicPartitions v0
          topics: name=c topic_id=<id of c> topic_authorized_operations=3576
        DescribeTopicPartitions v0
          topics: error_code=INVALID_REQUEST name=c
        DescribeTopicPartitions v0
          topics: error_code=INVALID_REQUEST name=c
        DescribeTopicPartitions v0
          topics: name=c topic_id=<id of c> topic_authorized_operations=3576
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
          next_cursor: topic_name=c partition_index=1
        DescribeTopicPartitions v0
          topics: name=c topic_id=<id of c> topic_authorized_operations=3576
            partitions: leader_id=1 leader_epoch=0 replica_nodes=[1] isr_nodes=[1]
                  eligible_leader_replicas=[] last_known_elr=[]
          next_cursor: topic_name=c partition_index=1
    """)
