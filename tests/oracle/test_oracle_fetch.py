"""Fetch: offsets, limits, epochs, sessions, parked fetches, isolation."""

from __future__ import annotations

import time
from typing import Any

import pytest
from oracle_peer import Peer
from oracle_wire import LONGER_THAN_PATIENCE_MS, Wire

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from penstock.records.build import build_batch

UNKNOWN_ID = bytes(15) + b"\x07"
MEGABYTE = 1 << 20


def part(index: int = 0, offset: int = 0, max_bytes: int = MEGABYTE, **more: Any) -> FetchPartition:
    return FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes, **more)


def topic_of(topic: str | bytes, *parts: FetchPartition) -> FetchTopic:
    partitions = list(parts) or [part()]
    if isinstance(topic, bytes):
        return FetchTopic(topic_id=topic, partitions=partitions)
    return FetchTopic(topic=topic, partitions=partitions)


def fetch(*topics: FetchTopic, **more: Any) -> FetchRequest:
    return FetchRequest(topics=list(topics), **{"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 50 * MEGABYTE, **more})


def filled(peer: Peer, name: str = "t", partitions: int = 1, batches: int = 3, **configs: str) -> str:
    """Creates a topic with batches of two records in every partition."""
    topic = peer.topic(name, partitions, **configs)
    for index in range(partitions):
        for _ in range(batches):
            assert peer.produce(topic, (1000, 1001), index).error_code == 0
    return topic


@pytest.mark.parametrize("version", [4, 5, 7, 9, 11, 12, 13, 15, 16, 17, 18])
def test_every_version_of_fetch_returns_the_records(peer: Peer, version: int) -> None:
    topic = filled(peer)
    named = peer.topic_id(topic) if version >= 13 else topic
    peer.ask(fetch(topic_of(named, part(offset=3))), version)
    match version:
        case 4:
            peer.said("""
                Fetch v4
                  responses: topic=t
                    partitions: high_watermark=6 last_stable_offset=6 aborted_transactions=null records=[2-3, 4-5]
            """)
        case 7:
            peer.said("""
                Fetch v7
                  responses: topic=t
                    partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                          records=[2-3, 4-5]
            """)
        case 12:
            peer.said("""
                Fetch v12
                  responses: topic=t
                    partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                          records=[2-3, 4-5]
            """)
        case 18:
            peer.said("""
                Fetch v18
                  responses: topic_id=<id of t>
                    partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                          records=[2-3, 4-5]
            """)


def test_fetch_from_missing_topics_and_partitions_is_refused(peer: Peer) -> None:
    topic = filled(peer)
    peer.ask(fetch(topic_of(peer.unique("nope"))), 12)
    peer.ask(fetch(topic_of(topic, part(5), part(-1), part(0))), 12)
    peer.ask(fetch(topic_of(UNKNOWN_ID)), 13)
    peer.ask(fetch(topic_of(bytes(16))), 17)
    peer.ask(fetch(topic_of(peer.topic_id(topic), part(9)), topic_of(UNKNOWN_ID)), 17)
    peer.ask(fetch(), 12)
    peer.said("""
        Fetch v12
          responses: topic=nope
            partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION high_watermark=-1 records=[]
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1, 2-3, 4-5]
            partitions: partition_index=5 error_code=UNKNOWN_TOPIC_OR_PARTITION high_watermark=-1 records=[]
            partitions: partition_index=-1 error_code=UNKNOWN_TOPIC_OR_PARTITION high_watermark=-1
                  records=[]
        Fetch v13
          responses: topic_id=AAAAAAAAAAAAAAAAAAAABw
            partitions: error_code=UNKNOWN_TOPIC_ID high_watermark=-1 records=[]
        Fetch v17
          responses:
            partitions: error_code=UNKNOWN_TOPIC_ID high_watermark=-1 records=[]
        Fetch v17
          responses: topic_id=AAAAAAAAAAAAAAAAAAAABw
            partitions: error_code=UNKNOWN_TOPIC_ID high_watermark=-1 records=[]
          responses: topic_id=<id of t>
            partitions: partition_index=9 error_code=UNKNOWN_TOPIC_OR_PARTITION high_watermark=-1 records=[]
        Fetch v12
    """)


def test_fetch_of_an_offset_out_of_range_is_refused(peer: Peer) -> None:
    topic = filled(peer)
    for offset in (7, 100, -1, -2, -(1 << 62), (1 << 63) - 1):
        peer.ask(fetch(topic_of(topic, part(offset=offset))), 12)
    peer.ask(fetch(topic_of(topic, part(offset=6))), 12)
    peer.said("""
        Fetch v12
          responses: topic=t
            partitions: error_code=OFFSET_OUT_OF_RANGE high_watermark=-1 aborted_transactions=null
                  records=[]
        Fetch v12
          responses: topic=t
            partitions: error_code=OFFSET_OUT_OF_RANGE high_watermark=-1 aborted_transactions=null
                  records=[]
        Fetch v12
          responses: topic=t
            partitions: error_code=OFFSET_OUT_OF_RANGE high_watermark=-1 aborted_transactions=null
                  records=[]
        Fetch v12
          responses: topic=t
            partitions: error_code=OFFSET_OUT_OF_RANGE high_watermark=-1 aborted_transactions=null
                  records=[]
        Fetch v12
          responses: topic=t
            partitions: error_code=OFFSET_OUT_OF_RANGE high_watermark=-1 aborted_transactions=null
                  records=[]
        Fetch v12
          responses: topic=t
            partitions: error_code=OFFSET_OUT_OF_RANGE high_watermark=-1 aborted_transactions=null
                  records=[]
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[]
    """)


def test_a_fetch_with_a_newer_leader_epoch_than_the_leaders_is_refused(peer: Peer) -> None:
    topic = filled(peer)
    for version in (12, 16):
        named = peer.topic_id(topic) if version >= 13 else topic
        for epoch in (-1, 0, 1, 5, -5):
            peer.ask(fetch(topic_of(named, part(offset=6, current_leader_epoch=epoch))), version)
    peer.said("""
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[]
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[]
        Fetch v12
          responses: topic=t
            partitions: error_code=UNKNOWN_LEADER_EPOCH high_watermark=-1 aborted_transactions=null
                  records=[]
        Fetch v12
          responses: topic=t
            partitions: error_code=UNKNOWN_LEADER_EPOCH high_watermark=-1 aborted_transactions=null
                  records=[]
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[]
        Fetch v16
          responses: topic_id=<id of t>
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[]
        Fetch v16
          responses: topic_id=<id of t>
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[]
        Fetch v16
          responses: topic_id=<id of t>
            partitions: error_code=UNKNOWN_LEADER_EPOCH high_watermark=-1 aborted_transactions=null
                  records=[]
        Fetch v16
          responses: topic_id=<id of t>
            partitions: error_code=UNKNOWN_LEADER_EPOCH high_watermark=-1 aborted_transactions=null
                  records=[]
        Fetch v16
          responses: topic_id=<id of t>
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[]
    """)


def test_a_fetch_beyond_the_end_of_its_last_fetched_epoch_gets_the_diverging_epoch(peer: Peer) -> None:
    topic = filled(peer)
    for epoch in (0, 3):
        peer.ask(fetch(topic_of(topic, part(offset=2, current_leader_epoch=0, last_fetched_epoch=epoch))), 12)
    peer.ask(fetch(topic_of(topic, part(offset=9, current_leader_epoch=0, last_fetched_epoch=0))), 12)
    peer.said("""
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[2-3, 4-5]
        Fetch v12
          responses: topic=t
            partitions: error_code=OFFSET_OUT_OF_RANGE high_watermark=-1 aborted_transactions=null
                  records=[]
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[]
              diverging_epoch: epoch=0 end_offset=6
    """)


def test_byte_limits_of_a_fetch_select_the_same_batches_as_in_kafka(peer: Peer) -> None:
    topic = filled(peer, partitions=2)
    size = len(build_batch([(1000, b"k", b"v", ()), (1001, b"k", b"v", ())]))
    for what, limits in {
        "everything": ({}, {}),
        "no bytes for the partition": ({"max_bytes": 0}, {}),
        "one byte for the partition": ({"max_bytes": 1}, {}),
        "a batch and a half for the partition": ({"max_bytes": size + size // 2}, {}),
        "two batches for the partition": ({"max_bytes": size * 2}, {}),
        "no bytes": ({}, {"max_bytes": 0}),
        "one byte": ({}, {"max_bytes": 1}),
        "a batch": ({}, {"max_bytes": size}),
        "a partition and a bit": ({}, {"max_bytes": size * 3 + 10}),
        "a partition and a batch": ({}, {"max_bytes": size * 4}),
    }.items():
        peer.note(what)
        of_partition, of_fetch = limits
        peer.ask(fetch(topic_of(topic, part(0, **of_partition), part(1, **of_partition)), **of_fetch), 12)
    peer.said("""
        everything
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1, 2-3, 4-5]
            partitions: partition_index=1 high_watermark=6 last_stable_offset=6 log_start_offset=0
                  aborted_transactions=null records=[0-1, 2-3, 4-5]
        no bytes for the partition
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
            partitions: partition_index=1 high_watermark=6 last_stable_offset=6 log_start_offset=0
                  aborted_transactions=null records=[]
        one byte for the partition
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
            partitions: partition_index=1 high_watermark=6 last_stable_offset=6 log_start_offset=0
                  aborted_transactions=null records=[]
        a batch and a half for the partition
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1, 39 bytes of the next]
            partitions: partition_index=1 high_watermark=6 last_stable_offset=6 log_start_offset=0
                  aborted_transactions=null records=[0-1, 39 bytes of the next]
        two batches for the partition
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1, 2-3]
            partitions: partition_index=1 high_watermark=6 last_stable_offset=6 log_start_offset=0
                  aborted_transactions=null records=[0-1, 2-3]
        no bytes
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
            partitions: partition_index=1 high_watermark=6 last_stable_offset=6 log_start_offset=0
                  aborted_transactions=null records=[]
        one byte
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
            partitions: partition_index=1 high_watermark=6 last_stable_offset=6 log_start_offset=0
                  aborted_transactions=null records=[]
        a batch
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
            partitions: partition_index=1 high_watermark=6 last_stable_offset=6 log_start_offset=0
                  aborted_transactions=null records=[]
        a partition and a bit
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1, 2-3, 4-5]
            partitions: partition_index=1 high_watermark=6 last_stable_offset=6 log_start_offset=0
                  aborted_transactions=null records=[]
        a partition and a batch
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1, 2-3, 4-5]
            partitions: partition_index=1 high_watermark=6 last_stable_offset=6 log_start_offset=0
                  aborted_transactions=null records=[0-1]
    """)


def test_penstock_answers_fetches_with_negative_limits_on_which_kafka_fails(peer: Peer) -> None:
    topic = filled(peer)
    peer.ask(fetch(topic_of(topic), min_bytes=-1), 12)
    peer.ask(fetch(topic_of(topic), max_wait_ms=-1, min_bytes=1), 12)
    peer.said("""
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1, 2-3, 4-5]
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1, 2-3, 4-5]
    """)
    for request in (fetch(topic_of(topic, part(max_bytes=-1))), fetch(topic_of(topic), max_bytes=-1)):
        answer = peer.quietly(request, 12).responses[0].partitions[0]
        assert answer.error_code == {"kafka": ErrorCode.UNKNOWN_SERVER_ERROR, "penstock": ErrorCode.NONE}[peer.name]


def test_both_isolation_levels_return_the_same_records_if_there_are_no_transactions(peer: Peer) -> None:
    topic = filled(peer)
    for level in (0, 1):
        peer.ask(fetch(topic_of(topic), isolation_level=level), 12)
    peer.said("""
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1, 2-3, 4-5]
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 records=[0-1, 2-3, 4-5]
    """)


def test_fetch_with_the_id_of_an_unknown_replica_is_refused(peer: Peer) -> None:
    topic = filled(peer)
    peer.ask(fetch(topic_of(topic), replica_id=7), 12)
    peer.ask(fetch(topic_of(peer.topic_id(topic)), replica_state=ReplicaState(replica_id=7, replica_epoch=1)), 17)
    peer.ask(fetch(topic_of(topic), replica_id=-2), 12)
    peer.said("""
        Fetch v12
          responses: topic=t
            partitions: error_code=NOT_LEADER_OR_FOLLOWER high_watermark=-1 aborted_transactions=null
                  records=[]
        Fetch v17
          responses: topic_id=<id of t>
            partitions: error_code=NOT_LEADER_OR_FOLLOWER high_watermark=-1 aborted_transactions=null
                  records=[]
              current_leader: leader_id=1 leader_epoch=0
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1, 2-3, 4-5]
    """)


def test_fetch_with_two_entries_for_one_partition_returns_only_the_last_entry(peer: Peer) -> None:
    topic = filled(peer)
    peer.ask(fetch(topic_of(topic, part(), part(offset=4))), 12)
    peer.said("""
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[4-5]
    """)


# --- parked fetches ---------------------------------------------------------------------------------------------


def test_a_fetch_waits_for_its_minimum_bytes(peer: Peer) -> None:
    topic = filled(peer, batches=1)
    poll = peer.connect()
    sent = poll.send(fetch(topic_of(topic, part(offset=2)), min_bytes=1, max_wait_ms=LONGER_THAN_PATIENCE_MS), 12)
    peer.produce(topic, (2000,))
    answer = poll.receive(1, 12, sent)
    assert answer.responses[0].partitions[0].high_watermark == 3
    assert bytes(answer.responses[0].partitions[0].records)


def test_a_fetch_waits_at_most_its_maximum_time(peer: Peer) -> None:
    topic = filled(peer)
    for wanted in ({"min_bytes": 1, "offset": 6}, {"min_bytes": MEGABYTE, "offset": 0}):
        began = time.monotonic()
        offset = wanted.pop("offset")
        peer.ask(fetch(topic_of(topic, part(offset=offset)), max_wait_ms=150, **wanted), 12)
        assert time.monotonic() - began > 0.14
    peer.said("""
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[]
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1, 2-3, 4-5]
    """)


def test_fetch_with_a_partition_error_is_answered_without_waiting(peer: Peer) -> None:
    topic = filled(peer, partitions=2)
    for spoiled in (part(1, 99), part(1, 6, current_leader_epoch=9)):
        peer.ask(fetch(topic_of(topic, part(offset=6), spoiled), min_bytes=1, max_wait_ms=LONGER_THAN_PATIENCE_MS), 12)
    peer.ask(fetch(topic_of(topic, part(9)), min_bytes=1, max_wait_ms=LONGER_THAN_PATIENCE_MS), 12)
    peer.said("""
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[]
            partitions: partition_index=1 error_code=OFFSET_OUT_OF_RANGE high_watermark=-1
                  aborted_transactions=null records=[]
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[]
            partitions: partition_index=1 error_code=UNKNOWN_LEADER_EPOCH high_watermark=-1
                  aborted_transactions=null records=[]
        Fetch v12
          responses: topic=t
            partitions: partition_index=9 error_code=UNKNOWN_TOPIC_OR_PARTITION high_watermark=-1 records=[]
    """)


def test_error_of_an_unknown_partition_does_not_end_the_wait_of_a_parked_fetch(peer: Peer) -> None:
    topic = filled(peer)
    began = time.monotonic()
    peer.ask(fetch(topic_of(topic, part(offset=6), part(9)), min_bytes=1, max_wait_ms=150), 12)
    assert time.monotonic() - began > 0.14
    peer.said("""
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[]
            partitions: partition_index=9 error_code=UNKNOWN_TOPIC_OR_PARTITION high_watermark=-1 records=[]
    """)


# --- sessions ---------------------------------------------------------------------------------------------------


def in_session(wire: Wire, session: int, epoch: int, *topics: FetchTopic, **more: Any) -> FetchRequest:
    return fetch(*topics, session_id=session, session_epoch=epoch, **more)


def test_response_in_a_fetch_session_has_only_changed_partitions(peer: Peer) -> None:
    topic = filled(peer, partitions=2, batches=1)
    wire = peer.connect()
    both = topic_of(topic, part(0, 2), part(1, 2))
    session = peer.ask(in_session(wire, 0, 0, both), 12, on=wire).session_id
    peer.ask(in_session(wire, session, 1), 12, on=wire)
    peer.produce(topic, (5,), 1)
    peer.ask(in_session(wire, session, 2), 12, on=wire)
    peer.ask(in_session(wire, session, 3), 12, on=wire)
    peer.note("and on")
    peer.ask(in_session(wire, session, 4, topic_of(topic, part(1, 3))), 12, on=wire)
    peer.ask(in_session(wire, session, 5), 12, on=wire)
    peer.said("""
        Fetch v12 session_id=<session 1>
          responses: topic=t
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[]
            partitions: partition_index=1 high_watermark=2 last_stable_offset=2 log_start_offset=0
                  aborted_transactions=null records=[]
        Fetch v12 session_id=<session 1>
        Fetch v12 session_id=<session 1>
          responses: topic=t
            partitions: partition_index=1 high_watermark=3 last_stable_offset=3 log_start_offset=0
                  aborted_transactions=null records=[2-2]
        Fetch v12 session_id=<session 1>
          responses: topic=t
            partitions: partition_index=1 high_watermark=3 last_stable_offset=3 log_start_offset=0
                  aborted_transactions=null records=[2-2]
        and on
        Fetch v12 session_id=<session 1>
        Fetch v12 session_id=<session 1>
    """)


def test_fetch_session_adds_and_removes_partitions(peer: Peer) -> None:
    topic, other = filled(peer, "a", batches=1), filled(peer, "b", batches=1)
    wire = peer.connect()
    session = peer.ask(in_session(wire, 0, 0, topic_of(topic)), 12, on=wire).session_id
    peer.ask(in_session(wire, session, 1, topic_of(other)), 12, on=wire)
    gone = [ForgottenTopic(topic=topic, partitions=[0, 4]), ForgottenTopic(topic="never-there", partitions=[1])]
    peer.ask(in_session(wire, session, 2, forgotten_topics_data=gone), 12, on=wire)
    peer.ask(in_session(wire, session, 3, topic_of(topic, part(0, 1))), 12, on=wire)
    peer.said("""
        Fetch v12 session_id=<session 1>
          responses: topic=a
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
        Fetch v12 session_id=<session 1>
          responses: topic=a
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
          responses: topic=b
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
        Fetch v12 session_id=<session 1>
          responses: topic=b
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
        Fetch v12 session_id=<session 1>
          responses: topic=b
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
          responses: topic=a
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
    """)


def test_fetch_session_adds_and_removes_partitions_by_topic_id(peer: Peer) -> None:
    topic, other = filled(peer, "a", batches=1), filled(peer, "b", batches=1)
    ids = peer.topic_id(topic), peer.topic_id(other)
    wire = peer.connect()
    session = peer.ask(in_session(wire, 0, 0, topic_of(ids[0])), 17, on=wire).session_id
    peer.ask(in_session(wire, session, 1, topic_of(ids[1]), topic_of(UNKNOWN_ID)), 17, on=wire)
    gone = [ForgottenTopic(topic_id=ids[0], partitions=[0]), ForgottenTopic(topic_id=UNKNOWN_ID, partitions=[0])]
    peer.ask(in_session(wire, session, 2, forgotten_topics_data=gone), 17, on=wire)
    peer.ask(in_session(wire, session, 3, topic_of(ids[1], part(0, 2))), 17, on=wire)
    peer.said("""
        Fetch v17 session_id=<session 1>
          responses: topic_id=<id of a>
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
        Fetch v17 session_id=<session 1>
          responses: topic_id=<id of a>
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
          responses: topic_id=<id of b>
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
          responses: topic_id=AAAAAAAAAAAAAAAAAAAABw
            partitions: error_code=UNKNOWN_TOPIC_ID high_watermark=-1 records=[]
        Fetch v17 session_id=<session 1>
          responses: topic_id=<id of b>
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
        Fetch v17 session_id=<session 1>
    """)


def test_fetch_with_an_unknown_session_id_or_epoch_is_refused(peer: Peer) -> None:
    topic = filled(peer, batches=1)
    wire = peer.connect()
    peer.ask(in_session(wire, 123456, 1), 12, on=wire)
    peer.ask(in_session(wire, 123456, 0, topic_of(topic)), 12, on=wire)
    peer.ask(in_session(wire, 123456, -1, topic_of(topic)), 12, on=wire)
    peer.ask(in_session(wire, 0, 5), 12, on=wire)
    peer.ask(in_session(wire, 0, -1, topic_of(topic)), 12, on=wire)
    session = peer.ask(in_session(wire, 0, 0, topic_of(topic)), 12, on=wire).session_id
    peer.ask(in_session(wire, session, 7), 12, on=wire)
    peer.ask(in_session(wire, session, -7), 12, on=wire)
    peer.ask(in_session(wire, session, 1), 12, on=wire)
    peer.ask(in_session(wire, session, 1), 12, on=wire)
    peer.said("""
        Fetch v12 error_code=FETCH_SESSION_ID_NOT_FOUND
        Fetch v12 session_id=<session 1>
          responses: topic=t
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
        Fetch v12
          responses: topic=t
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
        Fetch v12 error_code=FETCH_SESSION_ID_NOT_FOUND
        Fetch v12
          responses: topic=t
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
        Fetch v12 session_id=<session 2>
          responses: topic=t
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
        Fetch v12 error_code=INVALID_FETCH_SESSION_EPOCH
        Fetch v12 error_code=INVALID_FETCH_SESSION_EPOCH
        Fetch v12 session_id=<session 2>
          responses: topic=t
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
        Fetch v12 error_code=INVALID_FETCH_SESSION_EPOCH
    """)


def test_fetch_session_can_be_closed_or_replaced(peer: Peer) -> None:
    topic = filled(peer, batches=1)
    wire = peer.connect()
    session = peer.ask(in_session(wire, 0, 0, topic_of(topic)), 12, on=wire).session_id
    peer.ask(in_session(wire, session, -1), 12, on=wire)
    peer.ask(in_session(wire, session, 1), 12, on=wire)
    session = peer.ask(in_session(wire, 0, 0, topic_of(topic)), 12, on=wire).session_id
    replaced = peer.ask(in_session(wire, session, 0, topic_of(topic)), 12, on=wire).session_id
    peer.ask(in_session(wire, session, 1), 12, on=wire)
    peer.ask(in_session(wire, replaced, 1), 12, on=wire)
    peer.said("""
        Fetch v12 session_id=<session 1>
          responses: topic=t
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
        Fetch v12
        Fetch v12 error_code=FETCH_SESSION_ID_NOT_FOUND
        Fetch v12 session_id=<session 2>
          responses: topic=t
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
        Fetch v12 session_id=<session 3>
          responses: topic=t
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
        Fetch v12 error_code=FETCH_SESSION_ID_NOT_FOUND
        Fetch v12 session_id=<session 3>
          responses: topic=t
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
    """)


def test_a_full_fetch_without_partitions_creates_no_session(peer: Peer) -> None:
    wire = peer.connect()
    peer.ask(in_session(wire, 0, 0), 12, on=wire)
    peer.said("""
        Fetch v12 session_id=<session 1>
    """)


def test_fetch_session_refuses_a_mix_of_topic_names_and_topic_ids(peer: Peer) -> None:
    topic = filled(peer, batches=1)
    wire = peer.connect()
    session = peer.ask(in_session(wire, 0, 0, topic_of(topic)), 12, on=wire).session_id
    peer.ask(in_session(wire, session, 1, topic_of(peer.topic_id(topic))), 13, on=wire)
    by_id = peer.ask(in_session(wire, 0, 0, topic_of(peer.topic_id(topic))), 13, on=wire).session_id
    peer.ask(in_session(wire, by_id, 1, topic_of(topic)), 12, on=wire)
    peer.said("""
        Fetch v12 session_id=<session 1>
          responses: topic=t
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
        Fetch v13 error_code=FETCH_SESSION_TOPIC_ID_ERROR
        Fetch v13 session_id=<session 2>
          responses: topic_id=<id of t>
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1]
        Fetch v12 error_code=FETCH_SESSION_TOPIC_ID_ERROR
    """)


def test_fetch_session_repeats_the_error_of_a_partition_in_every_answer(peer: Peer) -> None:
    topic = filled(peer, batches=1)
    wire = peer.connect()
    session = peer.ask(in_session(wire, 0, 0, topic_of(topic, part(0, 99), part(3))), 12, on=wire).session_id
    peer.ask(in_session(wire, session, 1), 12, on=wire)
    peer.ask(in_session(wire, session, 2, topic_of(topic, part(0, 2))), 12, on=wire)
    peer.ask(in_session(wire, session, 3), 12, on=wire)
    peer.said("""
        Fetch v12 session_id=<session 1>
          responses: topic=t
            partitions: error_code=OFFSET_OUT_OF_RANGE high_watermark=-1 aborted_transactions=null
                  records=[]
            partitions: partition_index=3 error_code=UNKNOWN_TOPIC_OR_PARTITION high_watermark=-1 records=[]
        Fetch v12 session_id=<session 1>
          responses: topic=t
            partitions: error_code=OFFSET_OUT_OF_RANGE high_watermark=-1 aborted_transactions=null
                  records=[]
            partitions: partition_index=3 error_code=UNKNOWN_TOPIC_OR_PARTITION high_watermark=-1 records=[]
        Fetch v12 session_id=<session 1>
          responses: topic=t
            partitions: high_watermark=2 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[]
            partitions: partition_index=3 error_code=UNKNOWN_TOPIC_OR_PARTITION high_watermark=-1 records=[]
        Fetch v12 session_id=<session 1>
          responses: topic=t
            partitions: partition_index=3 error_code=UNKNOWN_TOPIC_OR_PARTITION high_watermark=-1 records=[]
    """)
