"""Contents of fetched batches: offsets, epochs, timestamps, codecs and records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from oracle_peer import Peer

from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.messages.api_01_fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.records.batches import crc_ok, split_batches
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.records.header import BatchHeader
from penstock.records.record import Record, read_records

RECENT_MS = 1_600_000_000_000


def send(peer: Peer, topic: str, records: bytes) -> Any:
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])]
    return peer.quietly(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=data), 12)


def back(peer: Peer, topic: str, offset: int = 0, max_bytes: int = 1 << 20) -> list[tuple[BatchHeader, memoryview]]:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topics = [FetchTopic(topic=topic, partitions=[part])]
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics)
    (found,) = peer.quietly(request, 12).responses[0].partitions
    assert found.error_code == 0
    batches = split_batches(found.records or b"", allow_partial=True)
    assert all(crc_ok(batch) for _, batch in batches)
    return batches


def shown(header: BatchHeader) -> str:
    def time(value: int) -> str:
        return "now" if value > RECENT_MS else str(value)

    return (
        f"{header.base_offset}-{header.last_offset} epoch {header.partition_leader_epoch} "
        f"{Codec(header.compression).name} attributes {header.attributes} "
        f"times {time(header.base_timestamp)} {time(header.max_timestamp)} "
        f"producer {header.producer_id} {header.producer_epoch} {header.base_sequence} count {header.records_count}"
    )


def contents(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    return [(r.offset, "now" if r.timestamp > RECENT_MS else r.timestamp, r.key, r.value, r.headers) for r in records]


RECORDS = [
    (1000, b"key", b"value", (("h", b"1"), ("h", None), ("", b""))),
    (999, None, b"no key", ()),
    (2000, b"no value", None, ()),
    (1500, b"", b"", ()),
]


@pytest.mark.parametrize("codec", list(Codec))
def test_fetched_records_equal_the_produced_records(peer: Peer, codec: Codec) -> None:
    topic = peer.topic()
    send(peer, topic, build_batch(RECORDS, compression=codec))
    send(peer, topic, build_batch(RECORDS, compression=codec))
    first, second = back(peer, topic)
    for header, batch in (first, second):
        peer.note(shown(header).replace(codec.name, "CODEC").replace(f"attributes {int(codec)}", "attributes CODEC"))
        peer.note("\n".join(map(str, contents(read_records(batch)))))
    peer.said("""
        0-3 epoch 0 CODEC attributes CODEC times 1000 2000 producer -1 -1 -1 count 4
        (0, 1000, b'key', b'value', (('h', b'1'), ('h', None), ('', b'')))
        (1, 999, None, b'no key', ())
        (2, 2000, b'no value', None, ())
        (3, 1500, b'', b'', ())
        4-7 epoch 0 CODEC attributes CODEC times 1000 2000 producer -1 -1 -1 count 4
        (4, 1000, b'key', b'value', (('h', b'1'), ('h', None), ('', b'')))
        (5, 999, None, b'no key', ())
        (6, 2000, b'no value', None, ())
        (7, 1500, b'', b'', ())
    """)


@pytest.mark.parametrize("sent", [Codec.NONE, Codec.GZIP])
def test_topic_with_log_append_time_replaces_the_timestamps_of_records(peer: Peer, sent: Codec) -> None:
    topic = peer.topic(message_timestamp_type="LogAppendTime")
    send(peer, topic, build_batch(RECORDS, compression=sent))
    ((header, batch),) = back(peer, topic)
    peer.note(shown(header).replace(f"attributes {8 + int(sent)}", "attributes CODEC + 8").replace(sent.name, "CODEC"))
    peer.note("\n".join(map(str, contents(read_records(batch)))))
    peer.said("""
        0-3 epoch 0 CODEC attributes CODEC + 8 times 1000 now producer -1 -1 -1 count 4
        (0, 'now', b'key', b'value', (('h', b'1'), ('h', None), ('', b'')))
        (1, 'now', None, b'no key', ())
        (2, 'now', b'no value', None, ())
        (3, 'now', b'', b'', ())
    """)


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"])
def test_batches_are_stored_with_the_codec_of_their_topic(peer: Peer, wanted: str) -> None:
    topic = peer.topic(compression_type=wanted)
    for codec in (Codec.NONE, Codec.LZ4):
        send(peer, topic, build_batch(RECORDS, compression=codec))
    found = back(peer, topic)
    kinds = [Codec(header.compression).name.lower() for header, _ in found]
    expected = {"producer": ["none", "lz4"], "uncompressed": ["none", "none"]}.get(wanted, [wanted, wanted])
    assert kinds == expected
    for header, batch in found:
        peer.note(shown(header).partition(" epoch")[0] + shown(header).partition("times")[2])
        peer.note(f"{contents(read_records(batch))[1]}")
    peer.said("""
        0-3 1000 2000 producer -1 -1 -1 count 4
        (1, 999, None, b'no key', ())
        4-7 1000 2000 producer -1 -1 -1 count 4
        (5, 999, None, b'no key', ())
    """)


def test_batches_with_unusual_timestamps_are_stored_with_the_same_batch_header_as_in_kafka(peer: Peer) -> None:
    topic = peer.topic()
    send(peer, topic, build_batch([(5000, b"k", b"v", ()), (1000, b"k", b"v", ())]))
    send(peer, topic, build_batch([(-1, b"k", b"v", ())]))
    send(peer, topic, build_batch([(0, b"k", b"v", ())], leader_epoch=77))
    for header, _ in back(peer, topic):
        peer.note(shown(header))
    peer.said("""
        0-1 epoch 0 NONE attributes 0 times 5000 5000 producer -1 -1 -1 count 2
        2-2 epoch 0 NONE attributes 0 times -1 -1 producer -1 -1 -1 count 1
        3-3 epoch 0 NONE attributes 0 times 0 0 producer -1 -1 -1 count 1
    """)


def test_fetch_from_the_middle_of_a_batch_returns_the_whole_batch(peer: Peer) -> None:
    topic = peer.topic()
    for _ in range(3):
        send(peer, topic, build_batch(RECORDS))
    for offset in (0, 3, 4, 7, 11, 12):
        peer.note(f"from {offset}: {[header.base_offset for header, _ in back(peer, topic, offset)]}")
    peer.said("""
        from 0: [0, 4, 8]
        from 3: [0, 4, 8]
        from 4: [4, 8]
        from 7: [4, 8]
        from 11: [8]
        from 12: []
    """)


def test_fetch_returns_no_records_beyond_the_end_of_a_segment(peer: Peer) -> None:
    topic = peer.topic(segment_bytes="1048576")
    big = build_batch([(1000, b"k", b"v" * 400_000, ())])
    for _ in range(4):
        send(peer, topic, big)
    for offset in range(4):
        found = back(peer, topic, offset, 10_000_000)
        peer.note(f"from {offset}: {[header.base_offset for header, _ in found]}")
    peer.said("""
        from 0: [0, 1]
        from 1: [1]
        from 2: [2, 3]
        from 3: [3]
    """)
