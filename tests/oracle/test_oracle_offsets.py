"""ListOffsets, DeleteRecords and OffsetForLeaderEpoch: offsets by time, by deletion and by epoch."""

from __future__ import annotations

from typing import Any

from oracle_peer import Peer
from oracle_transcript import render

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_02_list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from penstock.protocol.messages.api_21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from penstock.protocol.messages.api_23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.records.compression import Codec

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
ALL_VERSIONS = range(1, 12)


def at(timestamp: int, partition: int = 0, **more: Any) -> ListOffsetsPartition:
    return ListOffsetsPartition(partition_index=partition, timestamp=timestamp, **more)


def offsets(topic: str, *partitions: ListOffsetsPartition, **more: Any) -> ListOffsetsRequest:
    topics = [ListOffsetsTopic(name=topic, partitions=list(partitions))]
    return ListOffsetsRequest(**{"replica_id": -1, "topics": topics, "timeout_ms": 1000, **more})


def short(peer: Peer, topic: str, timestamp: int, version: int = 10, **more: Any) -> None:
    """Renders an answer in one line."""
    partition = peer.quietly(offsets(topic, at(timestamp), **more), version).topics[0].partitions[0]
    error = f"{ErrorCode(partition.error_code).name} " if partition.error_code else ""
    where = f"offset {partition.offset} timestamp {partition.timestamp} epoch {partition.leader_epoch}"
    peer.note(f"v{version} {timestamp}: {error}{where}")


def test_penstock_answers_list_offsets_with_special_timestamps_like_kafka_in_every_version(peer: Peer) -> None:
    topic = peer.topic()
    peer.produce(topic, (100, 300, 200))
    peer.produce(topic, (250,))
    for version in ALL_VERSIONS:
        for timestamp in (LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD, -7, 150):
            short(peer, topic, timestamp, version)
    peer.said("""
        v1 -1: offset 4 timestamp -1 epoch -1
        v1 -2: offset 0 timestamp -1 epoch -1
        v1 -3: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v1 -4: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v1 -5: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v1 -6: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v1 -7: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v1 150: offset 1 timestamp 300 epoch -1
        v2 -1: offset 4 timestamp -1 epoch -1
        v2 -2: offset 0 timestamp -1 epoch -1
        v2 -3: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v2 -4: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v2 -5: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v2 -6: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v2 -7: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v2 150: offset 1 timestamp 300 epoch -1
        v3 -1: offset 4 timestamp -1 epoch -1
        v3 -2: offset 0 timestamp -1 epoch -1
        v3 -3: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v3 -4: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v3 -5: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v3 -6: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v3 -7: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v3 150: offset 1 timestamp 300 epoch -1
        v4 -1: offset 4 timestamp -1 epoch 0
        v4 -2: offset 0 timestamp -1 epoch 0
        v4 -3: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v4 -4: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v4 -5: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v4 -6: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v4 -7: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v4 150: offset 1 timestamp 300 epoch 0
        v5 -1: offset 4 timestamp -1 epoch 0
        v5 -2: offset 0 timestamp -1 epoch 0
        v5 -3: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v5 -4: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v5 -5: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v5 -6: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v5 -7: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v5 150: offset 1 timestamp 300 epoch 0
        v6 -1: offset 4 timestamp -1 epoch 0
        v6 -2: offset 0 timestamp -1 epoch 0
        v6 -3: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v6 -4: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v6 -5: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v6 -6: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v6 -7: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v6 150: offset 1 timestamp 300 epoch 0
        v7 -1: offset 4 timestamp -1 epoch 0
        v7 -2: offset 0 timestamp -1 epoch 0
        v7 -3: offset 1 timestamp 300 epoch 0
        v7 -4: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v7 -5: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v7 -6: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v7 -7: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v7 150: offset 1 timestamp 300 epoch 0
        v8 -1: offset 4 timestamp -1 epoch 0
        v8 -2: offset 0 timestamp -1 epoch 0
        v8 -3: offset 1 timestamp 300 epoch 0
        v8 -4: offset 0 timestamp -1 epoch 0
        v8 -5: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v8 -6: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v8 -7: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v8 150: offset 1 timestamp 300 epoch 0
        v9 -1: offset 4 timestamp -1 epoch 0
        v9 -2: offset 0 timestamp -1 epoch 0
        v9 -3: offset 1 timestamp 300 epoch 0
        v9 -4: offset 0 timestamp -1 epoch 0
        v9 -5: offset -1 timestamp -1 epoch -1
        v9 -6: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v9 -7: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v9 150: offset 1 timestamp 300 epoch 0
        v10 -1: offset 4 timestamp -1 epoch 0
        v10 -2: offset 0 timestamp -1 epoch 0
        v10 -3: offset 1 timestamp 300 epoch 0
        v10 -4: offset 0 timestamp -1 epoch 0
        v10 -5: offset -1 timestamp -1 epoch -1
        v10 -6: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v10 -7: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v10 150: offset 1 timestamp 300 epoch 0
        v11 -1: offset 4 timestamp -1 epoch 0
        v11 -2: offset 0 timestamp -1 epoch 0
        v11 -3: offset 1 timestamp 300 epoch 0
        v11 -4: offset 0 timestamp -1 epoch 0
        v11 -5: offset -1 timestamp -1 epoch -1
        v11 -6: offset -1 timestamp -1 epoch -1
        v11 -7: UNSUPPORTED_VERSION offset -1 timestamp -1 epoch -1
        v11 150: offset 1 timestamp 300 epoch 0
    """)


def test_penstock_answers_list_offsets_of_an_empty_partition_like_kafka(peer: Peer) -> None:
    topic = peer.topic()
    for timestamp in (LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD, 0, 5, 1 << 62):
        short(peer, topic, timestamp, 11)
    peer.said("""
        v11 -1: offset 0 timestamp -1 epoch 0
        v11 -2: offset 0 timestamp -1 epoch 0
        v11 -3: offset -1 timestamp -1 epoch -1
        v11 -4: offset 0 timestamp -1 epoch 0
        v11 -5: offset -1 timestamp -1 epoch -1
        v11 -6: offset -1 timestamp -1 epoch -1
        v11 0: offset -1 timestamp -1 epoch -1
        v11 5: offset -1 timestamp -1 epoch -1
        v11 4611686018427387904: offset -1 timestamp -1 epoch -1
    """)


def test_list_offsets_finds_offsets_by_timestamp(peer: Peer) -> None:
    topic = peer.topic()
    peer.produce(topic, (100, 300, 200))
    peer.produce(topic, (250, 250))
    peer.produce(topic, (1000,), compression=Codec.GZIP)
    peer.produce(topic, (500, 2000, 1500), compression=Codec.ZSTD)
    for timestamp in (0, 1, 100, 101, 200, 201, 300, 301, 1000, 1001, 1500, 2000, 2001, (1 << 63) - 1):
        short(peer, topic, timestamp)
    short(peer, topic, MAX_TIMESTAMP)
    peer.said("""
        v10 0: offset 0 timestamp 100 epoch 0
        v10 1: offset 0 timestamp 100 epoch 0
        v10 100: offset 0 timestamp 100 epoch 0
        v10 101: offset 1 timestamp 300 epoch 0
        v10 200: offset 1 timestamp 300 epoch 0
        v10 201: offset 1 timestamp 300 epoch 0
        v10 300: offset 1 timestamp 300 epoch 0
        v10 301: offset 5 timestamp 1000 epoch 0
        v10 1000: offset 5 timestamp 1000 epoch 0
        v10 1001: offset 7 timestamp 2000 epoch 0
        v10 1500: offset 7 timestamp 2000 epoch 0
        v10 2000: offset 7 timestamp 2000 epoch 0
        v10 2001: offset -1 timestamp -1 epoch -1
        v10 9223372036854775807: offset -1 timestamp -1 epoch -1
        v10 -3: offset 7 timestamp 2000 epoch 0
    """)


def test_list_offsets_by_timestamp_ignores_records_without_a_timestamp(peer: Peer) -> None:
    topic = peer.topic()
    peer.produce(topic, (-1, -1))
    for timestamp in (LATEST, EARLIEST, 0):
        short(peer, topic, timestamp)
    peer.said("""
        v10 -1: offset 2 timestamp -1 epoch 0
        v10 -2: offset 0 timestamp -1 epoch 0
        v10 0: offset -1 timestamp -1 epoch -1
    """)


def test_list_offsets_by_timestamp_ignores_deleted_records(peer: Peer) -> None:
    topic = peer.topic()
    for timestamp in (100, 200, 300, 400):
        peer.produce(topic, (timestamp, timestamp + 1))
    peer.quietly(delete(topic, (0, 3)))
    for timestamp in (EARLIEST, EARLIEST_LOCAL, LATEST, MAX_TIMESTAMP, 0, 100, 201, 300):
        short(peer, topic, timestamp)
    peer.quietly(delete(topic, (0, -1)))
    for timestamp in (EARLIEST, LATEST, 0, 400):
        short(peer, topic, timestamp)
    peer.said("""
        v10 -2: offset 3 timestamp -1 epoch 0
        v10 -4: offset 3 timestamp -1 epoch 0
        v10 -1: offset 8 timestamp -1 epoch 0
        v10 -3: offset 7 timestamp 401 epoch 0
        v10 0: offset 3 timestamp 201 epoch 0
        v10 100: offset 3 timestamp 201 epoch 0
        v10 201: offset 3 timestamp 201 epoch 0
        v10 300: offset 4 timestamp 300 epoch 0
        v10 -2: offset 8 timestamp -1 epoch 0
        v10 -1: offset 8 timestamp -1 epoch 0
        v10 0: offset -1 timestamp -1 epoch -1
        v10 400: offset -1 timestamp -1 epoch -1
    """)


def test_list_offsets_max_timestamp_ignores_deleted_records_and_records_without_timestamp(peer: Peer) -> None:
    deleted, untimed = peer.topic("deleted"), peer.topic("untimed")
    peer.produce(deleted, (100, 200))
    peer.quietly(delete(deleted, (0, -1)))
    peer.produce(untimed, (-1,))
    for topic, of_kafka in ((deleted, 1), (untimed, 0)):
        (answer,) = peer.quietly(offsets(topic, at(MAX_TIMESTAMP)), 10).topics[0].partitions
        assert answer.offset == {"kafka": of_kafka, "penstock": -1}[peer.name]


def test_list_offsets_of_missing_topics_and_partitions_is_refused(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(offsets(peer.unique("nope"), at(LATEST)), 10)
    peer.ask(offsets(topic, at(LATEST, 7)), 10)
    peer.ask(offsets(topic, at(LATEST, -1)), 10)
    peer.ask(offsets(topic, at(-99, 7)), 10)
    peer.ask(offsets(topic), 10)
    peer.ask(offsets(""), 10)
    peer.said("""
        ListOffsets v10
          topics: name=nope
            partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION
        ListOffsets v10
          topics: name=t
            partitions: partition_index=7 error_code=UNKNOWN_TOPIC_OR_PARTITION
        ListOffsets v10
          topics: name=t
            partitions: partition_index=-1 error_code=UNKNOWN_TOPIC_OR_PARTITION
        ListOffsets v10
          topics: name=t
            partitions: partition_index=7 error_code=UNSUPPORTED_VERSION
        ListOffsets v10
        ListOffsets v10
    """)


def test_list_offsets_with_another_leader_epoch_is_refused(peer: Peer) -> None:
    topic = peer.topic()
    for version, epochs in ((1, (-1,)), (4, (0, 1, -2)), (10, (0, 3))):
        for epoch in epochs:
            peer.ask(offsets(topic, at(LATEST, current_leader_epoch=epoch)), version)
    peer.said("""
        ListOffsets v1
          topics: name=t
            partitions: offset=0
        ListOffsets v4
          topics: name=t
            partitions: offset=0 leader_epoch=0
        ListOffsets v4
          topics: name=t
            partitions: error_code=UNKNOWN_LEADER_EPOCH
        ListOffsets v4
          topics: name=t
            partitions: error_code=FENCED_LEADER_EPOCH
        ListOffsets v10
          topics: name=t
            partitions: offset=0 leader_epoch=0
        ListOffsets v10
          topics: name=t
            partitions: error_code=UNKNOWN_LEADER_EPOCH
    """)


def test_list_offsets_with_the_same_partition_twice_is_refused(peer: Peer) -> None:
    topic = peer.topic(partitions=2)
    peer.produce(topic, (100,))
    answer = peer.quietly(offsets(topic, at(LATEST), at(EARLIEST), at(LATEST, 1)), 10)
    answer.topics[0].partitions.sort(key=lambda partition: partition.partition_index)
    peer.note(render(answer, 10, peer.masks))
    peer.said("""
        ListOffsets v10
          topics: name=t
            partitions: error_code=INVALID_REQUEST
            partitions: partition_index=1 offset=0 leader_epoch=0
    """)


def test_list_offsets_returns_the_same_latest_offset_for_every_replica_id_and_isolation_level(peer: Peer) -> None:
    topic = peer.topic()
    peer.produce(topic, (100,))
    for isolation in (0, 1):
        for replica in (-1, -2, 0, 7):
            peer.note(f"isolation {isolation}, replica {replica}")
            short(peer, topic, LATEST, isolation_level=isolation, replica_id=replica)
    peer.said("""
        isolation 0, replica -1
        v10 -1: offset 1 timestamp -1 epoch 0
        isolation 0, replica -2
        v10 -1: offset 1 timestamp -1 epoch 0
        isolation 0, replica 0
        v10 -1: offset 1 timestamp -1 epoch 0
        isolation 0, replica 7
        v10 -1: offset 1 timestamp -1 epoch 0
        isolation 1, replica -1
        v10 -1: offset 1 timestamp -1 epoch 0
        isolation 1, replica -2
        v10 -1: offset 1 timestamp -1 epoch 0
        isolation 1, replica 0
        v10 -1: offset 1 timestamp -1 epoch 0
        isolation 1, replica 7
        v10 -1: offset 1 timestamp -1 epoch 0
    """)


# --- DeleteRecords ----------------------------------------------------------------------------------------------


def delete(topic: str, *partitions: tuple[int, int]) -> DeleteRecordsRequest:
    wanted = [DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in partitions]
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=wanted)], timeout_ms=5000)


def test_delete_records_deletes_records_up_to_an_offset(peer: Peer) -> None:
    topic = peer.topic()
    for _ in range(3):
        peer.produce(topic, (1, 2))
    for offset in (0, 3, 2, 3, 7, 6, -1, -2, 100):
        peer.ask(delete(topic, (0, offset)))
    peer.said("""
        DeleteRecords v2
          topics: name=t
            partitions:
        DeleteRecords v2
          topics: name=t
            partitions: low_watermark=3
        DeleteRecords v2
          topics: name=t
            partitions: low_watermark=3
        DeleteRecords v2
          topics: name=t
            partitions: low_watermark=3
        DeleteRecords v2
          topics: name=t
            partitions: low_watermark=-1 error_code=OFFSET_OUT_OF_RANGE
        DeleteRecords v2
          topics: name=t
            partitions: low_watermark=6
        DeleteRecords v2
          topics: name=t
            partitions: low_watermark=6
        DeleteRecords v2
          topics: name=t
            partitions: low_watermark=-1 error_code=OFFSET_OUT_OF_RANGE
        DeleteRecords v2
          topics: name=t
            partitions: low_watermark=-1 error_code=OFFSET_OUT_OF_RANGE
    """)


def test_delete_records_from_missing_topics_and_partitions_is_refused(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(delete(topic, (5, 0)), 2)
    peer.ask(delete(topic, (-1, 0)), 2)
    peer.ask(delete(peer.unique("nope"), (0, 0)), 1)
    peer.ask(delete(topic, (0, 0)), 0)
    peer.ask(delete(topic), 2)
    peer.ask(delete(topic, (0, 7), (0, 0)), 2)
    peer.said("""
        DeleteRecords v2
          topics: name=t
            partitions: partition_index=5 low_watermark=-1 error_code=UNKNOWN_TOPIC_OR_PARTITION
        DeleteRecords v2
          topics: name=t
            partitions: partition_index=-1 low_watermark=-1 error_code=UNKNOWN_TOPIC_OR_PARTITION
        DeleteRecords v1
          topics: name=nope
            partitions: low_watermark=-1 error_code=UNKNOWN_TOPIC_OR_PARTITION
        DeleteRecords v0
          topics: name=t
            partitions:
        DeleteRecords v2
        DeleteRecords v2
          topics: name=t
            partitions:
    """)


def test_delete_records_from_a_compacted_topic_is_refused(peer: Peer) -> None:
    topic, both = peer.topic("a", cleanup_policy="compact"), peer.topic("b", cleanup_policy="compact,delete")
    peer.produce(topic, (1, 2))
    peer.produce(both, (1, 2))
    peer.ask(delete(topic, (0, 1)))
    peer.ask(delete(both, (0, 1)))
    peer.have_offsets_topic()
    peer.ask(delete("__consumer_offsets", (0, 0)))
    peer.said("""
        DeleteRecords v2
          topics: name=a
            partitions: low_watermark=-1 error_code=POLICY_VIOLATION
        DeleteRecords v2
          topics: name=b
            partitions: low_watermark=1
        DeleteRecords v2
          topics: name=__consumer_offsets
            partitions: low_watermark=-1 error_code=INVALID_TOPIC_EXCEPTION
    """)


# --- OffsetForLeaderEpoch ---------------------------------------------------------------------------------------


def ends(topic: str, *epochs: tuple[int, int, int], replica: int = -1) -> OffsetForLeaderEpochRequest:
    partitions = [
        OffsetForLeaderPartition(partition=index, current_leader_epoch=current, leader_epoch=epoch)
        for index, current, epoch in epochs
    ]
    topics = [OffsetForLeaderTopic(topic=topic, partitions=partitions)]
    return OffsetForLeaderEpochRequest(replica_id=replica, topics=topics)


def test_offset_for_leader_epoch_returns_the_end_offsets_of_epochs(peer: Peer) -> None:
    topic, empty = peer.topic("a"), peer.topic("empty")
    peer.produce(topic, (1, 2, 3))
    for version in (2, 3, 4):
        peer.ask(ends(topic, (0, -1, 0)), version)
    for epoch in (1, 100, -1, -2):
        peer.ask(ends(topic, (0, -1, epoch)))
    for epoch in (0, 1, -1, -2):
        peer.ask(ends(empty, (0, -1, epoch)))
    peer.said("""
        OffsetForLeaderEpoch v2
          topics: topic=a
            partitions: leader_epoch=0 end_offset=3
        OffsetForLeaderEpoch v3
          topics: topic=a
            partitions: leader_epoch=0 end_offset=3
        OffsetForLeaderEpoch v4
          topics: topic=a
            partitions: leader_epoch=0 end_offset=3
        OffsetForLeaderEpoch v4
          topics: topic=a
            partitions:
        OffsetForLeaderEpoch v4
          topics: topic=a
            partitions:
        OffsetForLeaderEpoch v4
          topics: topic=a
            partitions:
        OffsetForLeaderEpoch v4
          topics: topic=a
            partitions: leader_epoch=-2 end_offset=0
        OffsetForLeaderEpoch v4
          topics: topic=empty
            partitions: leader_epoch=0 end_offset=0
        OffsetForLeaderEpoch v4
          topics: topic=empty
            partitions:
        OffsetForLeaderEpoch v4
          topics: topic=empty
            partitions:
        OffsetForLeaderEpoch v4
          topics: topic=empty
            partitions: leader_epoch=-2 end_offset=0
    """)


def test_offset_for_leader_epoch_with_another_current_leader_epoch_is_refused(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(ends(topic, (0, 0, 0)))
    peer.ask(ends(topic, (0, 1, 0)))
    peer.ask(ends(topic, (4, 0, 0)))
    peer.ask(ends(topic, (-4, 0, 0)))
    peer.ask(ends(peer.unique("nope"), (0, 0, 0)))
    peer.ask(ends(topic, (0, 0, 0), replica=7))
    peer.ask(ends(topic))
    peer.said("""
        OffsetForLeaderEpoch v4
          topics: topic=t
            partitions: leader_epoch=0 end_offset=0
        OffsetForLeaderEpoch v4
          topics: topic=t
            partitions: error_code=UNKNOWN_LEADER_EPOCH
        OffsetForLeaderEpoch v4
          topics: topic=t
            partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION partition=4
        OffsetForLeaderEpoch v4
          topics: topic=t
            partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION partition=-4
        OffsetForLeaderEpoch v4
          topics: topic=nope
            partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION
        OffsetForLeaderEpoch v4
          topics: topic=t
            partitions: leader_epoch=0 end_offset=0
        OffsetForLeaderEpoch v4
          topics: topic=t
    """)
