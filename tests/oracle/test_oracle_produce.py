"""Produce: accepted batches and every refusal."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from oracle_peer import Peer
from oracle_transcript import render_part
from oracle_wire import Closed

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.messages.api_02_list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from penstock.protocol.messages.api_18_api_versions import ApiVersionsRequest
from penstock.protocol.messages.api_22_init_producer_id import InitProducerIdRequest
from penstock.protocol.messages.api_61_describe_producers import DescribeProducersRequest, TopicRequest
from penstock.records.batches import crc32c
from penstock.records.build import build_batch
from penstock.records.compression import Codec

UNKNOWN_ID = bytes(15) + b"\x07"
ONE = build_batch([(1000, b"k", b"v", ())])
LENGTH, EPOCH, MAGIC, CRC, ATTRIBUTES, LAST_DELTA = 8, 12, 16, 17, 21, 23
BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID, PRODUCER_EPOCH, SEQUENCE, COUNT = 27, 35, 43, 51, 53, 57


def batch(count: int = 1, at: int = 1000, **options: Any) -> bytes:
    return build_batch([(at, b"k", b"v", ()) for _ in range(count)], **options)


def patched(data: bytes, position: int, kind: str, value: int, *, crc: bool = True) -> bytes:
    """Returns the batch with one field changed and its checksum recomputed."""
    changed = bytearray(data)
    struct.pack_into(">" + kind, changed, position, value)
    if crc:
        struct.pack_into(">I", changed, CRC, crc32c(bytes(changed[ATTRIBUTES:])))
    return bytes(changed)


def produce(
    topic: str | bytes, records: bytes | None, partition: int = 0, acks: int = -1, **more: Any
) -> ProduceRequest:
    data = [PartitionProduceData(index=partition, records=records)]
    if isinstance(topic, bytes):
        topics = [TopicProduceData(topic_id=topic, partition_data=data)]
    else:
        topics = [TopicProduceData(name=topic, partition_data=data)]
    return ProduceRequest(acks=acks, timeout_ms=5000, topic_data=topics, **more)


def new_producer(peer: Peer) -> int:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    given: list[int] = []

    def got_one() -> bool:
        answer = peer.quietly(request, 4)
        given.append(answer.producer_id)
        return bool(answer.error_code == 0)

    peer.settle(got_one)
    return given[-1]


def end_of(peer: Peer, topic: str) -> int:
    asked = [ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])]
    answer = peer.quietly(ListOffsetsRequest(replica_id=-1, topics=asked), 7)
    return int(answer.topics[0].partitions[0].offset)


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_of_produce_appends_a_batch(peer: Peer, version: int) -> None:
    topic = peer.topic()
    named = peer.topic_id(topic) if version >= 13 else topic
    peer.ask(produce(named, batch(2)), version)
    peer.ask(produce(named, batch(1), acks=1), version)
    match version:
        case 3:
            peer.said("""
                Produce v3
                  responses: name=t
                    partition_responses:
                Produce v3
                  responses: name=t
                    partition_responses: base_offset=2
            """)
        case 5:
            peer.said("""
                Produce v5
                  responses: name=t
                    partition_responses: log_start_offset=0
                Produce v5
                  responses: name=t
                    partition_responses: base_offset=2 log_start_offset=0
            """)
        case 8:
            peer.said("""
                Produce v8
                  responses: name=t
                    partition_responses: log_start_offset=0
                Produce v8
                  responses: name=t
                    partition_responses: base_offset=2 log_start_offset=0
            """)
        case 10:
            peer.said("""
                Produce v10
                  responses: name=t
                    partition_responses: log_start_offset=0
                Produce v10
                  responses: name=t
                    partition_responses: base_offset=2 log_start_offset=0
            """)
        case 13:
            peer.said("""
                Produce v13
                  responses: topic_id=<id of t>
                    partition_responses: log_start_offset=0
                Produce v13
                  responses: topic_id=<id of t>
                    partition_responses: base_offset=2 log_start_offset=0
            """)


def test_produce_to_missing_topics_and_partitions_is_refused(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(produce(peer.unique("nope"), ONE), 12)
    peer.ask(produce(topic, ONE, partition=1), 12)
    peer.ask(produce(topic, ONE, partition=-1), 12)
    peer.ask(produce("", ONE), 12)
    peer.ask(produce(peer.topic_id(topic), ONE, partition=7), 13)
    peer.ask(produce(UNKNOWN_ID, ONE), 13)
    peer.ask(produce(bytes(16), ONE), 13)
    peer.ask(ProduceRequest(acks=1, timeout_ms=100), 12)
    peer.said("""
        Produce v12
          responses: name=nope
            partition_responses: error_code=UNKNOWN_TOPIC_OR_PARTITION base_offset=-1
        Produce v12
          responses: name=t
            partition_responses: index=1 error_code=UNKNOWN_TOPIC_OR_PARTITION base_offset=-1
        Produce v12
          responses: name=t
            partition_responses: index=-1 error_code=UNKNOWN_TOPIC_OR_PARTITION base_offset=-1
        Produce v12
          responses:
            partition_responses: error_code=UNKNOWN_TOPIC_OR_PARTITION base_offset=-1
        Produce v13
          responses: topic_id=<id of t>
            partition_responses: index=7 error_code=UNKNOWN_TOPIC_OR_PARTITION base_offset=-1
        Produce v13
          responses: topic_id=AAAAAAAAAAAAAAAAAAAABw
            partition_responses: error_code=UNKNOWN_TOPIC_ID base_offset=-1
        Produce v13
          responses:
            partition_responses: error_code=UNKNOWN_TOPIC_ID base_offset=-1
        Produce v12
    """)


def test_each_topic_of_a_produce_request_gets_its_own_result(peer: Peer) -> None:
    good, other = peer.topic("a", 2), peer.topic("b")
    parts = [PartitionProduceData(index=index, records=ONE) for index in (0, 5, 1)]
    topics = [
        TopicProduceData(name=good, partition_data=parts),
        TopicProduceData(name=other, partition_data=[PartitionProduceData(index=0, records=ONE)]),
    ]
    answer = peer.quietly(ProduceRequest(acks=1, timeout_ms=100, topic_data=topics), 12)
    codes = {
        (topic.name.split("-x")[0], partition.index): partition.error_code
        for topic in answer.responses
        for partition in topic.partition_responses
    }
    assert codes == {("a", 0): 0, ("a", 5): 3, ("a", 1): 0, ("b", 0): 0}


def test_produce_to_an_internal_topic_is_refused(peer: Peer) -> None:
    peer.have_offsets_topic()
    peer.ask(produce("__consumer_offsets", ONE), 12)
    peer.said("""
        Produce v12
          responses: name=__consumer_offsets
            partition_responses: error_code=INVALID_TOPIC_EXCEPTION base_offset=-1
    """)


def test_produce_with_invalid_acks_is_refused(peer: Peer) -> None:
    topic = peer.topic()
    for acks in (2, -2, 100):
        peer.ask(produce(topic, ONE, acks=acks), 12)
    peer.ask(produce(peer.unique("nope"), ONE, acks=2), 12)
    peer.said("""
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_REQUIRED_ACKS base_offset=-1
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_REQUIRED_ACKS base_offset=-1
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_REQUIRED_ACKS base_offset=-1
        Produce v12
          responses: name=nope
            partition_responses: error_code=UNKNOWN_TOPIC_OR_PARTITION base_offset=-1
    """)


def test_penstock_answers_produce_requests_without_exactly_one_whole_batch_like_kafka(peer: Peer) -> None:
    topic = peer.topic()
    for what, records in {
        "empty": b"",
        "a byte": b"\x00",
        "half a header": ONE[:30],
        "a batch cut short": ONE[:-1],
        "a byte too many": ONE + b"\x00",
        "two batches": ONE + ONE,
        "garbage": b"\xff" * 100,
        "zeros": bytes(100),
    }.items():
        peer.note(what)
        peer.ask(produce(topic, records), 12)
    peer.said("""
        empty
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_RECORD base_offset=-1
        a byte
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_RECORD base_offset=-1
        half a header
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_RECORD base_offset=-1
        a batch cut short
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_RECORD base_offset=-1
        a byte too many
        Produce v12
          responses: name=t
            partition_responses: log_start_offset=0
        two batches
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_RECORD base_offset=-1
        garbage
        Produce v12
          responses: name=t
            partition_responses: error_code=CORRUPT_MESSAGE base_offset=-1
        zeros
        Produce v12
          responses: name=t
            partition_responses: error_code=CORRUPT_MESSAGE base_offset=-1
    """)
    assert end_of(peer, topic) == 1, "of the batch with a byte too many, the batch is taken"


def test_produce_of_a_damaged_batch_is_refused(peer: Peer) -> None:
    topic = peer.topic()
    three = batch(3)
    for what, records in {
        "a wrong checksum": patched(ONE, CRC, "I", 1, crc=False),
        "a changed byte": ONE[:-1] + bytes([ONE[-1] ^ 1]),
        "magic 0": patched(ONE, MAGIC, "b", 0, crc=False),
        "magic 1": patched(ONE, MAGIC, "b", 1, crc=False),
        "magic 3": patched(ONE, MAGIC, "b", 3, crc=False),
        "magic -1": patched(ONE, MAGIC, "b", -1, crc=False),
        "a length too small": patched(ONE, LENGTH, "i", 10, crc=False),
        "a negative length": patched(ONE, LENGTH, "i", -1, crc=False),
        "a count too small": patched(three, COUNT, "i", 2),
        "a count too large": patched(three, COUNT, "i", 4),
        "a negative count": patched(three, COUNT, "i", -1),
        "no records": patched(ONE, COUNT, "i", 0),
        "last offset too small": patched(three, LAST_DELTA, "i", 1),
        "last offset too large": patched(three, LAST_DELTA, "i", 5),
        "a negative last offset": patched(three, LAST_DELTA, "i", -1),
        "a control batch": patched(ONE, ATTRIBUTES, "h", 1 << 5),
        "log append time claimed": patched(ONE, ATTRIBUTES, "h", 1 << 3),
        "a base offset of its own": patched(ONE, 0, "q", 77),
        "a negative base offset": patched(ONE, 0, "q", -77),
        "a leader epoch of its own": patched(ONE, EPOCH, "i", 77),
        "a greater max timestamp": patched(ONE, MAX_TIMESTAMP, "q", 5000),
        "a negative max timestamp": patched(ONE, MAX_TIMESTAMP, "q", -1),
        "a negative timestamp": batch(1, at=-5),
        "no timestamp": batch(1, at=-1),
        "unused attribute bits": patched(ONE, ATTRIBUTES, "h", 1 << 9),
        "a sequence without a producer": patched(ONE, SEQUENCE, "i", 3),
        "a producer without a sequence": patched(ONE, PRODUCER_ID, "q", 3),
    }.items():
        peer.note(what)
        answer = peer.quietly(produce(topic, records), 12).responses[0].partition_responses[0]
        answer.base_offset = min(answer.base_offset, 0)
        peer.note(render_part("  partition", answer, peer.masks))
    peer.said("""
        a wrong checksum
          partition error_code=CORRUPT_MESSAGE base_offset=-1
        a changed byte
          partition error_code=CORRUPT_MESSAGE base_offset=-1
        magic 0
          partition error_code=INVALID_RECORD base_offset=-1
        magic 1
          partition error_code=INVALID_RECORD base_offset=-1
        magic 3
          partition error_code=CORRUPT_MESSAGE base_offset=-1
        magic -1
          partition error_code=CORRUPT_MESSAGE base_offset=-1
        a length too small
          partition error_code=CORRUPT_MESSAGE base_offset=-1
        a negative length
          partition error_code=CORRUPT_MESSAGE base_offset=-1
        a count too small
          partition error_code=INVALID_RECORD base_offset=-1 log_start_offset=0
        a count too large
          partition error_code=INVALID_RECORD base_offset=-1 log_start_offset=0
        a negative count
          partition error_code=INVALID_RECORD base_offset=-1 log_start_offset=0
        no records
          partition error_code=INVALID_RECORD base_offset=-1 log_start_offset=0
        last offset too small
          partition error_code=INVALID_RECORD base_offset=-1 log_start_offset=0
        last offset too large
          partition error_code=INVALID_RECORD base_offset=-1 log_start_offset=0
        a negative last offset
          partition error_code=INVALID_RECORD base_offset=-1 log_start_offset=0
        a control batch
          partition error_code=INVALID_RECORD base_offset=-1 log_start_offset=0
        log append time claimed
          partition log_start_offset=0
        a base offset of its own
          partition error_code=INVALID_RECORD base_offset=-1 log_start_offset=0
        a negative base offset
          partition error_code=INVALID_RECORD base_offset=-1 log_start_offset=0
        a leader epoch of its own
          partition log_start_offset=0
        a greater max timestamp
          partition log_start_offset=0
        a negative max timestamp
          partition log_start_offset=0
        a negative timestamp
          partition log_start_offset=0
        no timestamp
          partition log_start_offset=0
        unused attribute bits
          partition log_start_offset=0
        a sequence without a producer
          partition log_start_offset=0
        a producer without a sequence
          partition error_code=INVALID_RECORD base_offset=-1 log_start_offset=0
    """)


DIFFERENT = {
    # Kafka's handler fails on a codec it doesn't know.
    "an unknown codec": (
        patched(ONE, ATTRIBUTES, "h", 5),
        {"kafka": ErrorCode.UNKNOWN_SERVER_ERROR, "penstock": ErrorCode.UNSUPPORTED_COMPRESSION_TYPE},
    ),
    # Kafka decompresses and checks every record; Penstock checks the header and the checksum only.
    "a codec it is not": (
        patched(ONE, ATTRIBUTES, "h", 1),
        {"kafka": ErrorCode.UNKNOWN_SERVER_ERROR, "penstock": ErrorCode.NONE},
    ),
    "records that are none": (
        patched(ONE, len(ONE) - 3, "b", 99),
        {"kafka": ErrorCode.INVALID_RECORD, "penstock": ErrorCode.NONE},
    ),
    # No producer sends either of these.
    "transactional without a producer": (
        patched(ONE, ATTRIBUTES, "h", 1 << 4),
        {"kafka": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "penstock": ErrorCode.INVALID_RECORD},
    ),
    "a producer without an epoch": (
        batch(1, producer_id=3, producer_epoch=-1, base_sequence=0),
        {"kafka": ErrorCode.NONE, "penstock": ErrorCode.INVALID_RECORD},
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_produce_of_some_invalid_batches_gets_different_error_codes_from_penstock_and_kafka(
    peer: Peer, what: str
) -> None:
    records, expected = DIFFERENT[what]
    answer = peer.quietly(produce(peer.topic(), records), 12).responses[0].partition_responses[0]
    assert answer.error_code == expected[peer.name]


def test_produce_with_a_null_record_set_is_refused(peer: Peer) -> None:
    if peer.name == "kafka":
        pytest.skip("Kafka's handler fails on it and never answers")
    answer = peer.quietly(produce(peer.topic(), None), 12).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_RECORD


def test_produce_of_a_batch_with_offset_gaps_is_refused(peer: Peer) -> None:
    from penstock.records.record import Record

    topic = peer.topic()
    gap = build_batch([Record(0, 1000, b"k", b"v", ()), Record(5, 1000, b"k", b"v", ())])
    peer.ask(produce(topic, gap), 12)
    peer.said("""
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_RECORD base_offset=-1 log_start_offset=0
    """)


def test_produce_of_records_without_a_key_to_a_compacted_topic_is_refused(peer: Peer) -> None:
    topic = peer.topic(cleanup_policy="compact")
    peer.ask(produce(topic, build_batch([(1000, b"k", b"v", ()), (1000, None, b"v", ()), (1000, None, b"w", ())])), 12)
    peer.ask(produce(topic, build_batch([(1000, b"", b"v", ()), (1000, b"k", None, ())])), 12)
    peer.said("""
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_RECORD base_offset=-1 log_start_offset=0
              record_errors: batch_index=1 batch_index_error_message=…
              record_errors: batch_index=2 batch_index_error_message=…
        Produce v12
          responses: name=t
            partition_responses: log_start_offset=0
    """)


def test_produce_of_a_too_large_batch_is_refused(peer: Peer) -> None:
    topic = peer.topic(max_message_bytes="200")
    peer.ask(produce(topic, build_batch([(1000, b"k", b"v" * 300, ())])), 12)
    peer.ask(produce(topic, build_batch([(1000, b"k", b"v" * 300, ())], compression=Codec.GZIP)), 12)
    exact = build_batch([(1000, b"k", b"v" * (200 - len(ONE)), ())])
    peer.note(f"{len(exact)} bytes")
    peer.ask(produce(topic, exact), 12)
    peer.said("""
        Produce v12
          responses: name=t
            partition_responses: error_code=MESSAGE_TOO_LARGE base_offset=-1
        Produce v12
          responses: name=t
            partition_responses: log_start_offset=0
        201 bytes
        Produce v12
          responses: name=t
            partition_responses: error_code=MESSAGE_TOO_LARGE base_offset=-1
    """)
    small = peer.topic("small", segment_bytes="1048576", max_message_bytes="4000000")
    peer.ask(produce(small, build_batch([(1000, b"k", b"v" * 1100000, ())])), 12)
    peer.said("""
        Produce v12
          responses: name=small
            partition_responses: error_code=RECORD_LIST_TOO_LARGE base_offset=-1
    """)


def test_produce_of_records_with_timestamps_out_of_bounds_is_refused(peer: Peer) -> None:
    topic = peer.topic(message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    peer.ask(produce(topic, build_batch([(1000, b"k", b"v", ()), (1000, b"k", b"v", ())])), 12)
    peer.ask(produce(topic, build_batch([(1 << 42, b"k", b"v", ())])), 12)
    peer.ask(produce(topic, build_batch([(1 << 42, b"k", b"v", ())], compression=Codec.LZ4)), 12)
    peer.said("""
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_TIMESTAMP base_offset=-1 log_start_offset=0
              record_errors: batch_index_error_message=…
              record_errors: batch_index=1 batch_index_error_message=…
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_TIMESTAMP base_offset=-1 log_start_offset=0
              record_errors: batch_index_error_message=…
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_TIMESTAMP base_offset=-1 log_start_offset=0
              record_errors: batch_index_error_message=…
    """)
    stamped = peer.topic("stamped", message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="1000")
    peer.ask(produce(stamped, ONE), 12)
    peer.said("""
        Produce v12
          responses: name=stamped
            partition_responses: log_append_time_ms=<now> log_start_offset=0
    """)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_produce_accepts_every_codec_except_zstd_in_old_versions(peer: Peer, codec: Codec) -> None:
    topic = peer.topic()
    peer.ask(produce(topic, batch(2, compression=codec)), 3)
    peer.ask(produce(topic, batch(2, compression=codec)), 6)
    peer.ask(produce(topic, batch(2, compression=codec)), 7)
    if codec == Codec.ZSTD:
        peer.said("""
            Produce v3
              responses: name=t
                partition_responses: error_code=UNSUPPORTED_COMPRESSION_TYPE base_offset=-1
            Produce v6
              responses: name=t
                partition_responses: error_code=UNSUPPORTED_COMPRESSION_TYPE base_offset=-1
            Produce v7
              responses: name=t
                partition_responses: log_start_offset=0
        """)
    else:
        peer.said("""
            Produce v3
              responses: name=t
                partition_responses:
            Produce v6
              responses: name=t
                partition_responses: base_offset=2 log_start_offset=0
            Produce v7
              responses: name=t
                partition_responses: base_offset=4 log_start_offset=0
        """)


# --- acks=0 -----------------------------------------------------------------------------------------------------


def test_produce_with_acks_0_is_not_answered(peer: Peer) -> None:
    topic = peer.topic()
    wire = peer.connect()
    wire.send(produce(topic, batch(3), acks=0), 12)
    assert wire.receive(18, 0, wire.send(ApiVersionsRequest(), 0)).error_code == 0
    assert end_of(peer, topic) == 3


@pytest.mark.parametrize("what", ["an unknown topic", "a damaged batch"])
def test_refused_produce_with_acks_0_closes_the_connection(peer: Peer, what: str) -> None:
    topic = peer.topic()
    request = {
        "an unknown topic": produce(peer.unique("nope"), ONE, acks=0),
        "a damaged batch": produce(topic, patched(ONE, CRC, "I", 1, crc=False), acks=0),
    }[what]
    wire = peer.connect()
    wire.send(request, 12)
    with pytest.raises(Closed):
        wire.receive(18, 0, wire.send(ApiVersionsRequest(), 0))


# --- idempotence ------------------------------------------------------------------------------------------------


def test_produce_checks_the_sequence_numbers_of_an_idempotent_producer(peer: Peer) -> None:
    topic = peer.topic()
    producer = new_producer(peer)

    def send(what: str, sequence: int, count: int = 1, epoch: int = 0, who: int = producer) -> None:
        peer.note(what)
        records = batch(count, producer_id=who, producer_epoch=epoch, base_sequence=sequence)
        peer.ask(produce(topic, records), 12)

    send("first", 0, 2)
    send("next", 2)
    send("duplicate of the first", 0, 2)
    send("duplicate of the last", 2)
    send("part of one", 1)
    send("a gap", 5)
    send("next", 3)
    for sequence in range(4, 9):
        send(f"more: {sequence}", sequence)
    send("duplicate, five back", 4)
    send("duplicate, six back", 3)
    send("duplicate of the first, long ago", 0, 2)
    send("a new epoch, not from 0", 9, epoch=1)
    send("a new epoch, from 0", 0, epoch=1)
    send("an old epoch", 9, epoch=0)
    send("an unknown producer, not from 0", 7, who=producer + 100_000)
    send("it, from 0", 0, who=producer + 100_000)
    peer.said("""
        first
        Produce v12
          responses: name=t
            partition_responses: log_start_offset=0
        next
        Produce v12
          responses: name=t
            partition_responses: base_offset=2 log_start_offset=0
        duplicate of the first
        Produce v12
          responses: name=t
            partition_responses: log_append_time_ms=1000 log_start_offset=0
        duplicate of the last
        Produce v12
          responses: name=t
            partition_responses: base_offset=2 log_append_time_ms=1000 log_start_offset=0
        part of one
        Produce v12
          responses: name=t
            partition_responses: error_code=OUT_OF_ORDER_SEQUENCE_NUMBER base_offset=-1 log_start_offset=0
        a gap
        Produce v12
          responses: name=t
            partition_responses: error_code=OUT_OF_ORDER_SEQUENCE_NUMBER base_offset=-1 log_start_offset=0
        next
        Produce v12
          responses: name=t
            partition_responses: base_offset=3 log_start_offset=0
        more: 4
        Produce v12
          responses: name=t
            partition_responses: base_offset=4 log_start_offset=0
        more: 5
        Produce v12
          responses: name=t
            partition_responses: base_offset=5 log_start_offset=0
        more: 6
        Produce v12
          responses: name=t
            partition_responses: base_offset=6 log_start_offset=0
        more: 7
        Produce v12
          responses: name=t
            partition_responses: base_offset=7 log_start_offset=0
        more: 8
        Produce v12
          responses: name=t
            partition_responses: base_offset=8 log_start_offset=0
        duplicate, five back
        Produce v12
          responses: name=t
            partition_responses: base_offset=4 log_append_time_ms=1000 log_start_offset=0
        duplicate, six back
        Produce v12
          responses: name=t
            partition_responses: error_code=OUT_OF_ORDER_SEQUENCE_NUMBER base_offset=-1 log_start_offset=0
        duplicate of the first, long ago
        Produce v12
          responses: name=t
            partition_responses: error_code=OUT_OF_ORDER_SEQUENCE_NUMBER base_offset=-1 log_start_offset=0
        a new epoch, not from 0
        Produce v12
          responses: name=t
            partition_responses: error_code=OUT_OF_ORDER_SEQUENCE_NUMBER base_offset=-1 log_start_offset=0
        a new epoch, from 0
        Produce v12
          responses: name=t
            partition_responses: base_offset=9 log_start_offset=0
        an old epoch
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_PRODUCER_EPOCH base_offset=-1 log_start_offset=0
        an unknown producer, not from 0
        Produce v12
          responses: name=t
            partition_responses: base_offset=10 log_start_offset=0
        it, from 0
        Produce v12
          responses: name=t
            partition_responses: error_code=OUT_OF_ORDER_SEQUENCE_NUMBER base_offset=-1 log_start_offset=0
    """)


def test_idempotent_producer_without_earlier_batches_may_start_at_any_sequence_number(peer: Peer) -> None:
    topic = peer.topic()
    peer.ask(produce(topic, batch(1, producer_id=987654, producer_epoch=3, base_sequence=41)), 12)
    peer.ask(produce(topic, batch(1, producer_id=987654, producer_epoch=3, base_sequence=42)), 12)
    peer.ask(produce(topic, batch(1, producer_id=987654, producer_epoch=2, base_sequence=43)), 12)
    peer.said("""
        Produce v12
          responses: name=t
            partition_responses: log_start_offset=0
        Produce v12
          responses: name=t
            partition_responses: base_offset=1 log_start_offset=0
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_PRODUCER_EPOCH base_offset=-1 log_start_offset=0
    """)


def test_producer_sequence_numbers_wrap_to_zero_after_the_largest_number(peer: Peer) -> None:
    topic = peer.topic()
    last = (1 << 31) - 1
    peer.ask(produce(topic, batch(1, producer_id=987655, producer_epoch=0, base_sequence=last - 1)), 12)
    peer.ask(produce(topic, batch(3, producer_id=987655, producer_epoch=0, base_sequence=last)), 12)
    peer.ask(produce(topic, batch(1, producer_id=987655, producer_epoch=0, base_sequence=2)), 12)
    peer.ask(produce(topic, batch(3, producer_id=987655, producer_epoch=0, base_sequence=last)), 12)
    peer.said("""
        Produce v12
          responses: name=t
            partition_responses: log_start_offset=0
        Produce v12
          responses: name=t
            partition_responses: base_offset=1 log_start_offset=0
        Produce v12
          responses: name=t
            partition_responses: base_offset=4 log_start_offset=0
        Produce v12
          responses: name=t
            partition_responses: base_offset=1 log_append_time_ms=1000 log_start_offset=0
    """)


def test_describe_producers_lists_the_active_producers_of_a_partition(peer: Peer) -> None:
    topic = peer.topic(partitions=2)
    producer = new_producer(peer)
    peer.quietly(produce(topic, batch(2, producer_id=producer, producer_epoch=0, base_sequence=0)), 12)
    peer.quietly(produce(topic, batch(3, producer_id=producer, producer_epoch=0, base_sequence=2)), 12)
    asked = [
        TopicRequest(name=topic, partition_indexes=[0, 1, 2]),
        TopicRequest(name=peer.unique("nope"), partition_indexes=[0]),
        TopicRequest(name="a b", partition_indexes=[0]),
        TopicRequest(name="", partition_indexes=[]),
    ]
    for each in asked:
        peer.ask(DescribeProducersRequest(topics=[each]))
    peer.said("""
        DescribeProducers v0
          topics: name=t
            partitions:
              active_producers: producer_id=<producer 1> last_sequence=4 last_timestamp=1000
                    coordinator_epoch=-1
            partitions: partition_index=1
            partitions: partition_index=2 error_code=UNKNOWN_TOPIC_OR_PARTITION
        DescribeProducers v0
          topics: name=nope
            partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION
        DescribeProducers v0
          topics: name=a b
            partitions: error_code=INVALID_TOPIC_EXCEPTION
        DescribeProducers v0
          topics:
    """)


def test_produce_of_a_transactional_batch_outside_a_transaction_is_refused(peer: Peer) -> None:
    peer.have_transactions_topic("never-begun")
    topic = peer.topic()
    producer = new_producer(peer)
    records = batch(1, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
    peer.ask(produce(topic, records, transactional_id="never-begun"), 11)
    peer.ask(produce(topic, records, transactional_id="never-begun"), 12)
    peer.ask(produce(topic, batch(1), transactional_id="never-begun"), 12)
    peer.ask(produce(topic, records), 12)
    peer.said("""
        Produce v11
          responses: name=t
            partition_responses: error_code=INVALID_PRODUCER_ID_MAPPING base_offset=-1
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_PRODUCER_ID_MAPPING base_offset=-1
        Produce v12
          responses: name=t
            partition_responses: log_start_offset=0
        Produce v12
          responses: name=t
            partition_responses: error_code=TRANSACTIONAL_ID_AUTHORIZATION_FAILED base_offset=-1
    """)
