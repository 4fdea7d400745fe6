"""Longer sequences: topics deleted and recreated, parked fetches during that, busy connections."""

from __future__ import annotations

import time
from typing import Any

from oracle_peer import Peer
from oracle_wire import LONGER_THAN_PATIENCE_MS

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.messages.api_01_fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.protocol.messages.api_03_metadata import MetadataRequest, MetadataRequestTopic
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from penstock.protocol.messages.api_18_api_versions import ApiVersionsRequest
from penstock.protocol.messages.api_19_create_topics import CreatableTopic, CreateTopicsRequest
from penstock.protocol.messages.api_20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.protocol.messages.api_21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from penstock.protocol.messages.api_37_create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from penstock.records.build import build_batch

ONE = build_batch([(1000, b"k", b"v", ())])


def fetch(topic: str | bytes, offset: int = 0, **more: Any) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    named: dict[str, Any] = {"topic_id": topic} if isinstance(topic, bytes) else {"topic": topic}
    fields: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, **more}
    return FetchRequest(topics=[FetchTopic(partitions=[part], **named)], **fields)


def produce(topic: str | bytes, *partitions: int) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=ONE) for index in partitions or (0,)]
    named: dict[str, Any] = {"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}
    return ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(partition_data=data, **named)])


def delete(peer: Peer, topic: str) -> None:
    peer.quietly(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=10_000))
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    peer.settle(lambda: bool(peer.quietly(asked).topics[0].error_code))
    # Kafka's metadata is ahead of its replicas
    peer.settle(lambda: bool(peer.quietly(fetch(topic), 12).responses[0].partitions[0].error_code))


def create_again(peer: Peer, topic: str) -> bytes:
    wanted = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    (made,) = peer.quietly(CreateTopicsRequest(topics=[wanted], timeout_ms=10_000)).topics
    assert made.error_code == 0
    peer.masks.topic_ids[made.topic_id] = "the new one"
    peer.settle(lambda: not peer.quietly(fetch(topic), 12).responses[0].partitions[0].error_code)
    new_id: bytes = made.topic_id
    return new_id


def test_a_recreated_topic_has_another_id_and_no_records(peer: Peer) -> None:
    topic = peer.topic("t")
    old = peer.topic_id(topic)
    peer.quietly(produce(topic), 12)
    delete(peer, topic)
    peer.ask(fetch(old), 17)
    peer.ask(fetch(topic), 12)
    peer.ask(produce(old), 13)
    peer.ask(produce(topic), 12)
    new = create_again(peer, topic)
    peer.ask(fetch(topic), 12)
    peer.ask(fetch(old), 17)
    peer.ask(fetch(new), 17)
    peer.ask(produce(old), 13)
    peer.ask(produce(new), 13)
    peer.said("""
        Fetch v17
          responses: topic_id=<id of t>
            partitions: error_code=UNKNOWN_TOPIC_ID high_watermark=-1 records=[]
        Fetch v12
          responses: topic=t
            partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION high_watermark=-1 records=[]
        Produce v13
          responses: topic_id=<id of t>
            partition_responses: error_code=UNKNOWN_TOPIC_ID base_offset=-1
        Produce v12
          responses: name=t
            partition_responses: error_code=UNKNOWN_TOPIC_OR_PARTITION base_offset=-1
        Fetch v12
          responses: topic=t
            partitions: last_stable_offset=0 log_start_offset=0 aborted_transactions=null records=[]
        Fetch v17
          responses: topic_id=<id of t>
            partitions: error_code=UNKNOWN_TOPIC_ID high_watermark=-1 records=[]
        Fetch v17
          responses: topic_id=<id of the new one>
            partitions: last_stable_offset=0 log_start_offset=0 aborted_transactions=null records=[]
        Produce v13
          responses: topic_id=<id of t>
            partition_responses: error_code=UNKNOWN_TOPIC_ID base_offset=-1
        Produce v13
          responses: topic_id=<id of the new one>
            partition_responses: log_start_offset=0
    """)


def test_a_fetch_session_detects_a_recreated_topic(peer: Peer) -> None:
    for version in (12, 17):
        topic = peer.topic("t")
        wire = peer.connect()
        named = peer.topic_id(topic) if version >= 13 else topic
        session = peer.ask(fetch(named, session_id=0, session_epoch=0), version, on=wire).session_id
        delete(peer, topic)
        going_on = FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_id=session, session_epoch=1, topics=[]
        )
        peer.ask(going_on, version, on=wire)
        create_again(peer, topic)
        going_on.session_epoch = 2
        peer.ask(going_on, version, on=wire)
        peer.masks.topic_ids.clear()
    peer.said("""
        Fetch v12 session_id=<session 1>
          responses: topic=t
            partitions: last_stable_offset=0 log_start_offset=0 aborted_transactions=null records=[]
        Fetch v12 session_id=<session 1>
          responses: topic=t
            partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION high_watermark=-1 records=[]
        Fetch v12 session_id=<session 1>
          responses: topic=t
            partitions: last_stable_offset=0 log_start_offset=0 aborted_transactions=null records=[]
        Fetch v17 session_id=<session 2>
          responses: topic_id=<id of t>
            partitions: last_stable_offset=0 log_start_offset=0 aborted_transactions=null records=[]
        Fetch v17 session_id=<session 2>
          responses: topic_id=<id of t>
            partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION high_watermark=-1 records=[]
        Fetch v17 session_id=<session 2>
          responses: topic_id=<id of t>
            partitions: error_code=INCONSISTENT_TOPIC_ID high_watermark=-1 aborted_transactions=null
                  records=[]
    """)


def test_a_parked_fetch_ends_when_its_topic_is_deleted(peer: Peer) -> None:
    topic = peer.topic()
    wire = peer.connect()
    sent = wire.send(fetch(topic, min_bytes=1, max_wait_ms=LONGER_THAN_PATIENCE_MS), 12)
    delete(peer, topic)
    (partition,) = wire.receive(1, 12, sent).responses[0].partitions
    peer.note(f"{ErrorCode(partition.error_code).name}")
    peer.said("""
        UNKNOWN_TOPIC_OR_PARTITION
    """)


def test_committed_offsets_of_a_deleted_topic_are_deleted(peer: Peer) -> None:
    peer.have_offsets_topic()
    group, topic = peer.unique("g"), peer.topic()
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="m")
    commit = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])])
    peer.ask(commit, 9)
    asked = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group, topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
            )
        ]
    )
    peer.ask(asked, 9)
    delete(peer, topic)
    peer.settle(lambda: peer.quietly(asked, 9).groups[0].topics[0].partitions[0].committed_offset == -1)
    peer.ask(asked, 9)
    peer.said("""
        OffsetCommit v9
          topics: name=t
            partitions:
        OffsetFetch v9
          groups: group_id=g
            topics: name=t
              partitions: committed_offset=5 metadata=m
        OffsetFetch v9
          groups: group_id=g
            topics: name=t
              partitions: committed_offset=-1
    """)


def test_partitions_added_to_a_topic_accept_and_return_records(peer: Peer) -> None:
    topic = peer.topic()
    grown = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=topic, count=3, assignments=None)], timeout_ms=10_000
    )
    peer.ask(grown)
    peer.settle(lambda: not peer.quietly(produce(topic, 2), 12).responses[0].partition_responses[0].error_code)
    peer.ask(produce(topic, 2, 3), 12)
    peer.said("""
        CreatePartitions v3
          results: name=t
        Produce v12
          responses: name=t
            partition_responses: index=2 base_offset=1 log_start_offset=0
            partition_responses: index=3 error_code=UNKNOWN_TOPIC_OR_PARTITION base_offset=-1
    """)


def test_fetch_below_the_log_start_is_answered_offset_out_of_range(peer: Peer) -> None:
    topic = peer.topic()
    for _ in range(4):
        peer.quietly(produce(topic), 12)
    cut = [DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=2)])]
    peer.quietly(DeleteRecordsRequest(topics=cut, timeout_ms=5000))
    for offset in (1, 2, 4):
        peer.ask(fetch(topic, offset), 12)
    peer.said("""
        Fetch v12
          responses: topic=t
            partitions: error_code=OFFSET_OUT_OF_RANGE high_watermark=-1 aborted_transactions=null
                  records=[]
        Fetch v12
          responses: topic=t
            partitions: high_watermark=4 last_stable_offset=4 log_start_offset=2 aborted_transactions=null
                  records=[2-2, 3-3]
        Fetch v12
          responses: topic=t
            partitions: high_watermark=4 last_stable_offset=4 log_start_offset=2 aborted_transactions=null
                  records=[]
    """)


def test_produce_with_two_entries_for_a_partition_appends_both_in_penstock_and_one_in_kafka(peer: Peer) -> None:
    topic = peer.topic()
    answers = peer.quietly(produce(topic, 0, 0), 12).responses[0].partition_responses
    assert [answer.error_code for answer in answers] == {"kafka": [0], "penstock": [0, 0]}[peer.name]


def test_requests_behind_a_parked_fetch_of_the_same_connection_are_answered_in_order(peer: Peer) -> None:
    topic = peer.topic()
    wire = peer.connect()
    began = time.monotonic()
    poll = wire.send(fetch(topic, min_bytes=1, max_wait_ms=200), 12)
    asked = wire.send(ApiVersionsRequest(), 0)
    assert wire.receive(1, 12, poll).error_code == 0
    assert time.monotonic() - began > 0.19
    assert wire.receive(18, 0, asked).error_code == 0
    many = [wire.send(produce(topic), 12) for _ in range(30)]
    offsets = [wire.receive(0, 12, each).responses[0].partition_responses[0].base_offset for each in many]
    assert offsets == list(range(30))


def test_responses_omit_topics_for_which_the_request_names_no_partitions(peer: Peer) -> None:
    peer.have_offsets_topic()
    topic, group = peer.topic(), peer.unique("g")
    peer.ask(ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic)]), 12)
    peer.ask(OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=topic)]), 9)
    unknown = [OffsetCommitRequestTopic(name=peer.unique("nope"))]
    peer.ask(OffsetCommitRequest(group_id=group, topics=unknown), 9)
    peer.ask(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic)], timeout_ms=1000))
    peer.ask(FetchRequest(topics=[FetchTopic(topic=topic)]), 12)
    peer.said("""
        Produce v12
        OffsetCommit v9
        OffsetCommit v9
          topics: name=nope
        DeleteRecords v2
        Fetch v12
    """)
