"""Transactions: producer epochs, added partitions, commits, aborts, and visibility to readers."""

from __future__ import annotations

from typing import Any

from oracle_peer import Peer
from oracle_transcript import render

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.messages.api_01_fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.protocol.messages.api_02_list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from penstock.protocol.messages.api_09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from penstock.protocol.messages.api_22_init_producer_id import InitProducerIdRequest
from penstock.protocol.messages.api_24_add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.protocol.messages.api_25_add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.protocol.messages.api_26_end_txn import EndTxnRequest
from penstock.protocol.messages.api_27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from penstock.protocol.messages.api_28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_61_describe_producers import DescribeProducersRequest, TopicRequest
from penstock.protocol.messages.api_65_describe_transactions import DescribeTransactionsRequest
from penstock.protocol.messages.api_66_list_transactions import ListTransactionsRequest
from penstock.records.build import build_batch

COMMIT, ABORT = True, False


def init(txn: str, timeout: int = 60_000, **more: Any) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=txn, transaction_timeout_ms=timeout, **more)


def begin(peer: Peer, txn: str, timeout: int = 60_000, version: int = 5) -> tuple[int, int]:
    """Returns the producer's id and epoch, once its coordinator is available."""
    peer.have_transactions_topic(txn)
    given: list[Any] = []

    def got() -> bool:
        given.append(peer.quietly(init(txn, timeout), version))
        return bool(given[-1].error_code == 0)

    peer.settle(got)
    return given[-1].producer_id, given[-1].producer_epoch


def add(txn: str, who: tuple[int, int], topic: str, *partitions: int) -> AddPartitionsToTxnRequest:
    topics = [AddPartitionsToTxnTopic(name=topic, partitions=list(partitions) or [0])]
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=txn,
        v3_and_below_producer_id=who[0],
        v3_and_below_producer_epoch=who[1],
        v3_and_below_topics=topics,
    )


def end(txn: str, who: tuple[int, int], how: bool) -> EndTxnRequest:
    return EndTxnRequest(transactional_id=txn, producer_id=who[0], producer_epoch=who[1], committed=how)


def produce(txn: str, who: tuple[int, int], topic: str, sequence: int, count: int = 1, **more: Any) -> ProduceRequest:
    records = build_batch(
        [(1000, b"k", b"v", ())] * count,
        producer_id=who[0],
        producer_epoch=who[1],
        base_sequence=sequence,
        transactional=True,
        **more,
    )
    data = [PartitionProduceData(index=0, records=records)]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    return ProduceRequest(transactional_id=txn, acks=-1, timeout_ms=5000, topic_data=topics)


def fetch(topic: str, isolation: int = 1, offset: int = 0) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=topic, partitions=[part])]
    return FetchRequest(isolation_level=isolation, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics)


def latest(peer: Peer, topic: str, isolation: int) -> int:
    part = ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = [ListOffsetsTopic(name=topic, partitions=[part])]
    answer = peer.quietly(ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics), 7)
    return int(answer.topics[0].partitions[0].offset)


def ended(peer: Peer, topic: str) -> None:
    """Waits until the markers are written, which happens shortly after the answer."""
    peer.settle(lambda: latest(peer, topic, 0) == latest(peer, topic, 1))


# --- producers --------------------------------------------------------------------------------------------------


def test_each_init_producer_id_of_a_transactional_id_returns_a_new_epoch(peer: Peer) -> None:
    txn = peer.unique("txn")
    begin(peer, txn)
    for version in (0, 1, 2, 3, 4, 5):
        peer.ask(init(txn), version)
    peer.said("""
        InitProducerId v0 producer_id=<producer 1> producer_epoch=1
        InitProducerId v1 producer_id=<producer 1> producer_epoch=2
        InitProducerId v2 producer_id=<producer 1> producer_epoch=3
        InitProducerId v3 producer_id=<producer 1> producer_epoch=4
        InitProducerId v4 producer_id=<producer 1> producer_epoch=5
        InitProducerId v5 producer_id=<producer 1> producer_epoch=6
    """)


def test_penstock_answers_invalid_init_producer_id_requests_with_a_transactional_id_like_kafka(peer: Peer) -> None:
    txn = peer.unique("txn")
    who = begin(peer, txn)
    for what, request in {
        "a timeout of 0": init(txn, 0),
        "a negative timeout": init(txn, -1),
        "a timeout past the limit": init(txn, 900_001),
        "an empty id": init(""),
        "another producer id": init(txn, producer_id=who[0] + 1000, producer_epoch=0),
        "an epoch to come": init(txn, producer_id=who[0], producer_epoch=who[1] + 5),
        "an id without an epoch": init(txn, producer_id=who[0]),
        "its own": init(txn, producer_id=who[0], producer_epoch=who[1]),
        "its own, again": init(txn, producer_id=who[0], producer_epoch=who[1]),
        "a new name with an id": init(peer.unique("other"), producer_id=77, producer_epoch=0),
    }.items():
        peer.note(what)
        peer.ask(request, 4)
    peer.said("""
        a timeout of 0
        InitProducerId v4 error_code=INVALID_TRANSACTION_TIMEOUT producer_id=-1 producer_epoch=-1
        a negative timeout
        InitProducerId v4 error_code=INVALID_TRANSACTION_TIMEOUT producer_id=-1 producer_epoch=-1
        a timeout past the limit
        InitProducerId v4 error_code=INVALID_TRANSACTION_TIMEOUT producer_id=-1 producer_epoch=-1
        an empty id
        InitProducerId v4 error_code=INVALID_REQUEST producer_id=-1 producer_epoch=-1
        another producer id
        InitProducerId v4 error_code=PRODUCER_FENCED producer_id=-1 producer_epoch=-1
        an epoch to come
        InitProducerId v4 error_code=PRODUCER_FENCED producer_id=-1 producer_epoch=-1
        an id without an epoch
        InitProducerId v4 error_code=INVALID_REQUEST producer_id=-1 producer_epoch=-1
        its own
        InitProducerId v4 producer_id=<producer 1> producer_epoch=1
        its own, again
        InitProducerId v4 producer_id=<producer 1> producer_epoch=1
        a new name with an id
        InitProducerId v4 producer_id=<producer 2>
    """)


# --- adding partitions ------------------------------------------------------------------------------------------


def test_penstock_answers_add_partitions_to_txn_like_kafka(peer: Peer) -> None:
    txn, topic = peer.unique("txn"), peer.topic(partitions=2)
    who = begin(peer, txn)
    for what, request in {
        "two partitions": add(txn, who, topic, 0, 1),
        "again": add(txn, who, topic, 0, 1),
        "an unknown partition": add(txn, who, topic, 7),
        "an unknown topic": add(txn, who, peer.unique("nope"), 0),
        "another producer": add(txn, (who[0] + 1000, 0), topic, 0),
        "an older epoch": add(txn, (who[0], who[1] - 1), topic, 0),
        "a newer epoch": add(txn, (who[0], who[1] + 1), topic, 0),
        "an unknown id": add(peer.unique("nobody"), who, topic, 0),
        "an empty id": add("", who, topic, 0),
    }.items():
        peer.note(what)
        peer.ask(request, 3)
        if what in ("an older epoch", "an unknown topic"):
            peer.ask(request, 0)
            peer.ask(request, 1)
    mixed = add(txn, who, topic, 0)
    mixed.v3_and_below_topics.append(AddPartitionsToTxnTopic(name=peer.unique("nope"), partitions=[0]))
    answer = peer.quietly(mixed, 3)
    answer.results_by_topic_v3_and_below.sort(key=lambda each: each.name)
    peer.note(render(answer, 3, peer.masks))
    peer.said("""
        two partitions
        AddPartitionsToTxn v3
          results_by_topic_v3_and_below: name=t
            results_by_partition:
            results_by_partition: partition_index=1
        again
        AddPartitionsToTxn v3
          results_by_topic_v3_and_below: name=t
            results_by_partition:
            results_by_partition: partition_index=1
        an unknown partition
        AddPartitionsToTxn v3
          results_by_topic_v3_and_below: name=t
            results_by_partition: partition_index=7 partition_error_code=UNKNOWN_TOPIC_OR_PARTITION
        an unknown topic
        AddPartitionsToTxn v3
          results_by_topic_v3_and_below: name=nope
            results_by_partition: partition_error_code=UNKNOWN_TOPIC_OR_PARTITION
        AddPartitionsToTxn v0
          results_by_topic_v3_and_below: name=nope
            results_by_partition: partition_error_code=UNKNOWN_TOPIC_OR_PARTITION
        AddPartitionsToTxn v1
          results_by_topic_v3_and_below: name=nope
            results_by_partition: partition_error_code=UNKNOWN_TOPIC_OR_PARTITION
        another producer
        AddPartitionsToTxn v3
          results_by_topic_v3_and_below: name=t
            results_by_partition: partition_error_code=INVALID_PRODUCER_ID_MAPPING
        an older epoch
        AddPartitionsToTxn v3
          results_by_topic_v3_and_below: name=t
            results_by_partition: partition_error_code=PRODUCER_FENCED
        AddPartitionsToTxn v0
          results_by_topic_v3_and_below: name=t
            results_by_partition: partition_error_code=INVALID_PRODUCER_EPOCH
        AddPartitionsToTxn v1
          results_by_topic_v3_and_below: name=t
            results_by_partition: partition_error_code=INVALID_PRODUCER_EPOCH
        a newer epoch
        AddPartitionsToTxn v3
          results_by_topic_v3_and_below: name=t
            results_by_partition: partition_error_code=PRODUCER_FENCED
        an unknown id
        AddPartitionsToTxn v3
          results_by_topic_v3_and_below: name=t
            results_by_partition: partition_error_code=INVALID_PRODUCER_ID_MAPPING
        an empty id
        AddPartitionsToTxn v3
          results_by_topic_v3_and_below: name=t
            results_by_partition: partition_error_code=INVALID_REQUEST
        AddPartitionsToTxn v3
          results_by_topic_v3_and_below: name=nope
            results_by_partition: partition_error_code=UNKNOWN_TOPIC_OR_PARTITION
          results_by_topic_v3_and_below: name=t
            results_by_partition: partition_error_code=OPERATION_NOT_ATTEMPTED
    """)


def test_add_partitions_to_txn_requests_of_brokers_verify_and_add_partitions_as_in_kafka(peer: Peer) -> None:
    txn, topic = peer.unique("txn"), peer.topic(partitions=2)
    who = begin(peer, txn)

    def one(txn: str, who: tuple[int, int], verify: bool, *partitions: int) -> AddPartitionsToTxnTransaction:
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))]
        return AddPartitionsToTxnTransaction(
            transactional_id=txn, producer_id=who[0], producer_epoch=who[1], verify_only=verify, topics=topics
        )

    for what, transactions in {
        "verify what isn't there": [one(txn, who, True, 0)],
        "add": [one(txn, who, False, 0)],
        "verify it": [one(txn, who, True, 0, 1)],
        "an unknown id": [one(peer.unique("nobody"), who, True, 0)],
        "an older epoch": [one(txn, (who[0], who[1] - 1), True, 0)],
    }.items():
        peer.note(what)
        for version in (4, 5):
            answer = peer.quietly(AddPartitionsToTxnRequest(transactions=transactions), version)
            for each in answer.results_by_transaction:
                for of_topic in each.topic_results:
                    of_topic.results_by_partition.sort(key=lambda result: result.partition_index)
            peer.note(render(answer, version, peer.masks))
    peer.said("""
        verify what isn't there
        AddPartitionsToTxn v4
          results_by_transaction: transactional_id=txn
            topic_results: name=t
              results_by_partition: partition_error_code=TRANSACTION_ABORTABLE
        AddPartitionsToTxn v5
          results_by_transaction: transactional_id=txn
            topic_results: name=t
              results_by_partition: partition_error_code=TRANSACTION_ABORTABLE
        add
        AddPartitionsToTxn v4
          results_by_transaction: transactional_id=txn
            topic_results: name=t
              results_by_partition:
        AddPartitionsToTxn v5
          results_by_transaction: transactional_id=txn
            topic_results: name=t
              results_by_partition:
        verify it
        AddPartitionsToTxn v4
          results_by_transaction: transactional_id=txn
            topic_results: name=t
              results_by_partition:
              results_by_partition: partition_index=1 partition_error_code=TRANSACTION_ABORTABLE
        AddPartitionsToTxn v5
          results_by_transaction: transactional_id=txn
            topic_results: name=t
              results_by_partition:
              results_by_partition: partition_index=1 partition_error_code=TRANSACTION_ABORTABLE
        an unknown id
        AddPartitionsToTxn v4
          results_by_transaction: transactional_id=nobody
            topic_results: name=t
              results_by_partition: partition_error_code=INVALID_PRODUCER_ID_MAPPING
        AddPartitionsToTxn v5
          results_by_transaction: transactional_id=nobody
            topic_results: name=t
              results_by_partition: partition_error_code=INVALID_PRODUCER_ID_MAPPING
        an older epoch
        AddPartitionsToTxn v4
          results_by_transaction: transactional_id=txn
            topic_results: name=t
              results_by_partition: partition_error_code=PRODUCER_FENCED
        AddPartitionsToTxn v5
          results_by_transaction: transactional_id=txn
            topic_results: name=t
              results_by_partition: partition_error_code=PRODUCER_FENCED
    """)


# --- ends -------------------------------------------------------------------------------------------------------


def test_penstock_answers_end_txn_requests_with_transaction_version_1_like_kafka(peer: Peer) -> None:
    txn, topic = peer.unique("txn"), peer.topic()
    who = begin(peer, txn)
    peer.ask(end(txn, who, COMMIT), 3)
    peer.ask(end(txn, who, ABORT), 3)
    peer.quietly(add(txn, who, topic), 3)
    peer.ask(end(txn, (who[0], who[1] - 1), COMMIT), 1)
    peer.ask(end(txn, (who[0], who[1] - 1), COMMIT), 3)
    peer.ask(end(txn, (who[0], who[1] + 1), COMMIT), 3)
    peer.ask(end(txn, (who[0] + 1000, who[1]), COMMIT), 3)
    peer.ask(end(peer.unique("nobody"), who, COMMIT), 3)
    peer.ask(end("", who, COMMIT), 3)
    peer.ask(end(txn, who, COMMIT), 3)
    peer.settle(lambda: state_of(peer, txn) == "CompleteCommit")
    peer.ask(end(txn, who, COMMIT), 3)
    peer.ask(end(txn, who, ABORT), 3)
    peer.said("""
        EndTxn v3 error_code=INVALID_TXN_STATE producer_id=-1
        EndTxn v3 error_code=INVALID_TXN_STATE producer_id=-1
        EndTxn v1 error_code=INVALID_PRODUCER_EPOCH producer_id=-1
        EndTxn v3 error_code=PRODUCER_FENCED producer_id=-1
        EndTxn v3 error_code=PRODUCER_FENCED producer_id=-1
        EndTxn v3 error_code=INVALID_PRODUCER_ID_MAPPING producer_id=-1
        EndTxn v3 error_code=INVALID_PRODUCER_ID_MAPPING producer_id=-1
        EndTxn v3 error_code=INVALID_REQUEST producer_id=-1
        EndTxn v3 producer_id=-1
        EndTxn v3 producer_id=-1
        EndTxn v3 error_code=INVALID_TXN_STATE producer_id=-1
    """)


def test_penstock_answers_end_txn_requests_with_transaction_version_2_like_kafka(peer: Peer) -> None:
    txn, topic = peer.unique("txn"), peer.topic()
    who = begin(peer, txn)
    peer.ask(end(txn, who, COMMIT), 5)
    peer.ask(end(txn, who, ABORT), 5)
    who = begin(peer, txn)
    peer.quietly(produce(txn, who, topic, 0), 12)
    peer.ask(end(txn, who, COMMIT), 5)
    peer.settle(lambda: state_of(peer, txn) == "CompleteCommit")
    peer.ask(end(txn, who, COMMIT), 5)
    peer.ask(end(txn, who, ABORT), 5)
    peer.ask(end(txn, (who[0], who[1] - 1), COMMIT), 5)
    peer.said("""
        EndTxn v5 error_code=INVALID_TXN_STATE producer_id=-1
        EndTxn v5 producer_id=<producer 1> producer_epoch=1
        EndTxn v5 producer_id=<producer 1> producer_epoch=3
        EndTxn v5 producer_id=<producer 1> producer_epoch=3
        EndTxn v5 error_code=INVALID_TXN_STATE producer_id=-1
        EndTxn v5 error_code=PRODUCER_FENCED producer_id=-1
    """)


def state_of(peer: Peer, txn: str) -> str:
    (state,) = peer.quietly(DescribeTransactionsRequest(transactional_ids=[txn])).transaction_states
    return str(state.transaction_state)


# --- visibility to readers --------------------------------------------------------------------------------------


def test_read_committed_fetch_returns_records_only_after_the_end_of_their_transaction(peer: Peer) -> None:
    txn, topic = peer.unique("txn"), peer.topic()
    who = begin(peer, txn)
    peer.produce(topic, (1, 2))
    peer.quietly(add(txn, who, topic), 3)
    peer.ask(produce(txn, who, topic, 0, 2), 11)
    peer.produce(topic, (3,))
    peer.ask(fetch(topic, 0), 12)
    peer.ask(fetch(topic, 1), 12)
    peer.note(f"latest {latest(peer, topic, 0)}, stable {latest(peer, topic, 1)}")
    peer.ask(DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0])]))
    peer.ask(end(txn, who, ABORT), 3)
    ended(peer, topic)
    peer.ask(fetch(topic, 0), 12)
    peer.ask(fetch(topic, 1), 12)
    peer.ask(fetch(topic, 1, 4), 12)
    peer.quietly(add(txn, who, topic), 3)
    peer.ask(produce(txn, who, topic, 2, 1), 11)
    peer.ask(end(txn, who, COMMIT), 3)
    ended(peer, topic)
    peer.ask(fetch(topic, 1), 12)
    peer.ask(DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0])]))
    peer.said("""
        Produce v11
          responses: name=t
            partition_responses: base_offset=2 log_start_offset=0
        Fetch v12
          responses: topic=t
            partitions: high_watermark=5 last_stable_offset=2 log_start_offset=0 aborted_transactions=null
                  records=[0-1, 2-3 by <producer 1>, 4-4]
        Fetch v12
          responses: topic=t
            partitions: high_watermark=5 last_stable_offset=2 log_start_offset=0 records=[0-1]
        latest 5, stable 2
        DescribeProducers v0
          topics: name=t
            partitions:
              active_producers: producer_id=<producer 1> last_sequence=1 last_timestamp=1000
                    coordinator_epoch=-1 current_txn_start_offset=2
        EndTxn v3 producer_id=-1
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 aborted_transactions=null
                  records=[0-1, 2-3 by <producer 1>, 4-4]
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 records=[0-1, 2-3 by
                  <producer 1>, 4-4]
              aborted_transactions: producer_id=<producer 1> first_offset=2
        Fetch v12
          responses: topic=t
            partitions: high_watermark=6 last_stable_offset=6 log_start_offset=0 records=[4-4]
              aborted_transactions: producer_id=<producer 1> first_offset=2
        Produce v11
          responses: name=t
            partition_responses: base_offset=6 log_start_offset=0
        EndTxn v3 producer_id=-1
        Fetch v12
          responses: topic=t
            partitions: high_watermark=8 last_stable_offset=8 log_start_offset=0 records=[0-1, 2-3 by
                  <producer 1>, 4-4]
              aborted_transactions: producer_id=<producer 1> first_offset=2
        DescribeProducers v0
          topics: name=t
            partitions:
              active_producers: producer_id=<producer 1> last_sequence=2 last_timestamp=<now>
    """)


def test_produce_since_version_12_adds_its_partitions_to_the_transaction(peer: Peer) -> None:
    txn, topic = peer.unique("txn"), peer.topic()
    who = begin(peer, txn)
    peer.ask(produce(txn, who, topic, 0), 12)
    peer.note(state_of(peer, txn))
    peer.ask(produce(txn, who, topic, 1), 12)
    peer.ask(produce(txn, who, topic, 0), 12)
    bumped = peer.ask(end(txn, who, COMMIT), 5)
    ended(peer, topic)
    peer.ask(produce(txn, who, topic, 2), 12)
    peer.ask(produce(txn, (bumped.producer_id, bumped.producer_epoch), topic, 0), 12)
    peer.ask(end(txn, (bumped.producer_id, bumped.producer_epoch), ABORT), 5)
    ended(peer, topic)
    peer.ask(fetch(topic), 12)
    peer.said("""
        Produce v12
          responses: name=t
            partition_responses: log_start_offset=0
        Ongoing
        Produce v12
          responses: name=t
            partition_responses: base_offset=1 log_start_offset=0
        Produce v12
          responses: name=t
            partition_responses: log_append_time_ms=1000 log_start_offset=0
        EndTxn v5 producer_id=<producer 1> producer_epoch=1
        Produce v12
          responses: name=t
            partition_responses: error_code=INVALID_PRODUCER_EPOCH base_offset=-1
        Produce v12
          responses: name=t
            partition_responses: base_offset=3 log_start_offset=0
        EndTxn v5 producer_id=<producer 1> producer_epoch=2
        Fetch v12
          responses: topic=t
            partitions: high_watermark=5 last_stable_offset=5 log_start_offset=0 records=[0-0 by <producer
                  1>, 1-1 by <producer 1>]
    """)


def test_producer_is_fenced_after_a_new_producer_with_its_transactional_id_started(peer: Peer) -> None:
    txn, topic = peer.unique("txn"), peer.topic()
    old = begin(peer, txn)
    peer.quietly(add(txn, old, topic), 3)
    peer.quietly(produce(txn, old, topic, 0), 11)
    new = begin(peer, txn)
    ended(peer, topic)
    peer.note(f"from epoch {old[1]} to {new[1]}")
    peer.ask(add(txn, old, topic), 3)
    peer.ask(produce(txn, old, topic, 1), 11)
    peer.ask(end(txn, old, COMMIT), 3)
    peer.quietly(add(txn, new, topic), 3)
    peer.ask(produce(txn, new, topic, 0), 11)
    peer.ask(end(txn, new, COMMIT), 3)
    ended(peer, topic)
    peer.ask(fetch(topic), 12)
    peer.said("""
        from epoch 0 to 2
        AddPartitionsToTxn v3
          results_by_topic_v3_and_below: name=t
            results_by_partition: partition_error_code=PRODUCER_FENCED
        Produce v11
          responses: name=t
            partition_responses: error_code=INVALID_PRODUCER_EPOCH base_offset=-1
        EndTxn v3 error_code=PRODUCER_FENCED producer_id=-1
        Produce v11
          responses: name=t
            partition_responses: base_offset=2 log_start_offset=0
        EndTxn v3 producer_id=-1
        Fetch v12
          responses: topic=t
            partitions: high_watermark=4 last_stable_offset=4 log_start_offset=0 records=[0-0 by <producer
                  1>]
              aborted_transactions: producer_id=<producer 1>
    """)


# --- offsets in a transaction -----------------------------------------------------------------------------------


def txn_commit(
    txn: str, who: tuple[int, int], group: str, topic: str, offset: int = 5, **more: Any
) -> TxnOffsetCommitRequest:
    part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="m")
    return TxnOffsetCommitRequest(
        transactional_id=txn,
        group_id=group,
        producer_id=who[0],
        producer_epoch=who[1],
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
        **more,
    )


def offsets_of(group: str, topic: str, stable: bool = False) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    groups = [OffsetFetchRequestGroup(group_id=group, topics=topics)]
    return OffsetFetchRequest(groups=groups, require_stable=stable)


def test_offsets_of_a_transaction_are_committed_when_the_transaction_is_committed(peer: Peer) -> None:
    peer.have_offsets_topic()
    txn, topic, group = peer.unique("txn"), peer.topic(), peer.unique("g")
    who = begin(peer, txn)

    def visible() -> bool:
        answer = peer.quietly(offsets_of(group, topic, stable=True), 8).groups[0].topics[0].partitions[0]
        return bool(answer.error_code == 0)

    for how in (ABORT, COMMIT):
        adding = AddOffsetsToTxnRequest(transactional_id=txn, producer_id=who[0], producer_epoch=who[1], group_id=group)
        peer.ask(adding, 3)
        peer.ask(txn_commit(txn, who, group, topic), 3)
        peer.ask(offsets_of(group, topic), 8)
        peer.ask(offsets_of(group, topic, stable=True), 8)
        peer.ask(end(txn, who, how), 3)
        peer.settle(visible)
        peer.settle(lambda: state_of(peer, txn).startswith("Complete"))
        peer.ask(offsets_of(group, topic, stable=True), 8)
    peer.said("""
        AddOffsetsToTxn v3
        TxnOffsetCommit v3
          topics: name=t
            partitions:
        OffsetFetch v8
          groups: group_id=g
            topics: name=t
              partitions: committed_offset=-1
        OffsetFetch v8
          groups: group_id=g
            topics: name=t
              partitions: committed_offset=-1 error_code=UNSTABLE_OFFSET_COMMIT
        EndTxn v3 producer_id=-1
        OffsetFetch v8
          groups: group_id=g
            topics: name=t
              partitions: committed_offset=-1
        AddOffsetsToTxn v3
        TxnOffsetCommit v3
          topics: name=t
            partitions:
        OffsetFetch v8
          groups: group_id=g
            topics: name=t
              partitions: committed_offset=-1
        OffsetFetch v8
          groups: group_id=g
            topics: name=t
              partitions: committed_offset=-1 error_code=UNSTABLE_OFFSET_COMMIT
        EndTxn v3 producer_id=-1
        OffsetFetch v8
          groups: group_id=g
            topics: name=t
              partitions: committed_offset=5 metadata=m
    """)


def test_penstock_answers_invalid_offset_commits_in_a_transaction_like_kafka(peer: Peer) -> None:
    peer.have_offsets_topic()
    txn, topic, group = peer.unique("txn"), peer.topic(), peer.unique("g")
    who = begin(peer, txn)
    for what, request in {
        "an empty group": txn_commit(txn, who, "", topic),
        "an unknown topic": txn_commit(txn, who, group, peer.unique("nope")),
        "an unknown member": txn_commit(txn, who, group, topic, generation_id=1, member_id="nobody"),
        "a member without a generation": txn_commit(txn, who, group, topic, member_id="nobody"),
    }.items():
        peer.note(what)
        peer.ask(request, 3)
    peer.said("""
        an empty group
        TxnOffsetCommit v3
          topics: name=t
            partitions: error_code=INVALID_GROUP_ID
        an unknown topic
        TxnOffsetCommit v3
          topics: name=nope
            partitions: error_code=UNKNOWN_TOPIC_OR_PARTITION
        an unknown member
        TxnOffsetCommit v3
          topics: name=t
            partitions: error_code=INVALID_TXN_STATE
        a member without a generation
        TxnOffsetCommit v3
          topics: name=t
            partitions: error_code=INVALID_TXN_STATE
    """)
    for what, producer in {"another producer": (who[0] + 999, 0), "an older epoch": (who[0], -1)}.items():
        adding = AddOffsetsToTxnRequest(
            transactional_id=txn, producer_id=producer[0], producer_epoch=producer[1], group_id=group
        )
        peer.note(what)
        peer.ask(adding, 1)
        peer.ask(adding, 3)
    peer.ask(AddOffsetsToTxnRequest(transactional_id="", producer_id=1, producer_epoch=1, group_id=group), 3)
    peer.ask(AddOffsetsToTxnRequest(transactional_id=txn, producer_id=who[0], producer_epoch=who[1], group_id=""), 3)
    peer.said("""
        another producer
        AddOffsetsToTxn v1 error_code=INVALID_PRODUCER_ID_MAPPING
        AddOffsetsToTxn v3 error_code=INVALID_PRODUCER_ID_MAPPING
        an older epoch
        AddOffsetsToTxn v1 error_code=INVALID_PRODUCER_EPOCH
        AddOffsetsToTxn v3 error_code=PRODUCER_FENCED
        AddOffsetsToTxn v3 error_code=INVALID_REQUEST
        AddOffsetsToTxn v3
    """)


# --- the admin's side -------------------------------------------------------------------------------------------


def test_penstock_answers_describe_transactions_like_kafka(peer: Peer) -> None:
    txn, topic = peer.unique("txn"), peer.topic(partitions=2)
    begin(peer, peer.unique("first"))  # may take producer id 0, which answers with an error also carry
    who = begin(peer, txn)
    peer.ask(DescribeTransactionsRequest(transactional_ids=[txn]))
    peer.quietly(add(txn, who, topic, 0, 1), 3)
    answer = peer.quietly(DescribeTransactionsRequest(transactional_ids=[txn]))
    answer.transaction_states[0].topics[0].partitions.sort()
    peer.note(render(answer, 0, peer.masks))
    peer.quietly(end(txn, who, ABORT), 3)
    peer.settle(lambda: state_of(peer, txn) == "CompleteAbort")
    peer.ask(DescribeTransactionsRequest(transactional_ids=[txn]))
    for name in (peer.unique("nobody"), ""):
        peer.ask(DescribeTransactionsRequest(transactional_ids=[name]))
    peer.ask(DescribeTransactionsRequest())
    peer.said("""
        DescribeTransactions v0
          transaction_states: transactional_id=txn transaction_state=Empty transaction_timeout_ms=60000
                transaction_start_time_ms=-1 producer_id=<producer 1>
        DescribeTransactions v0
          transaction_states: transactional_id=txn transaction_state=Ongoing transaction_timeout_ms=60000
                transaction_start_time_ms=<now> producer_id=<producer 1>
            topics: topic=t partitions=[0 1]
        DescribeTransactions v0
          transaction_states: transactional_id=txn transaction_state=CompleteAbort
                transaction_timeout_ms=60000 transaction_start_time_ms=<now> producer_id=<producer 1>
        DescribeTransactions v0
          transaction_states: error_code=TRANSACTIONAL_ID_NOT_FOUND transactional_id=nobody
                producer_id=<producer 2>
        DescribeTransactions v0
          transaction_states: error_code=INVALID_REQUEST producer_id=<producer 2>
        DescribeTransactions v0
    """)


def test_penstock_answers_list_transactions_like_kafka(peer: Peer) -> None:
    txn, other, topic = peer.unique("txn"), peer.unique("other"), peer.topic()
    who = begin(peer, txn)
    begin(peer, other)
    peer.quietly(add(txn, who, topic), 3)

    def ask(version: int = 2, **filters: Any) -> None:
        answer = peer.quietly(ListTransactionsRequest(**filters), version)
        mine = [state for state in answer.transaction_states if state.transactional_id in peer.names]
        answer.transaction_states = sorted(mine, key=lambda state: state.transactional_id)
        shown = {key: "mine" if key == "producer_id_filters" else value for key, value in filters.items()}
        peer.note(f"{shown}")
        peer.note(render(answer, version, peer.masks))

    ask(0)
    ask(1)
    ask(state_filters=["Ongoing"])
    ask(state_filters=["ongoing", "Empty"])
    ask(state_filters=["Nonsense", "Ongoing"])
    ask(producer_id_filters=[who[0]])
    ask(duration_filter=0)
    ask(duration_filter=1_000_000)
    ask(transactional_id_pattern="txn-.*")
    ask(transactional_id_pattern="txn")
    ask(transactional_id_pattern="")
    ask(transactional_id_pattern="(")
    peer.said("""
        {}
        ListTransactions v0
          transaction_states: transactional_id=other producer_id=<producer 1> transaction_state=Empty
          transaction_states: transactional_id=txn producer_id=<producer 2> transaction_state=Ongoing
        {}
        ListTransactions v1
          transaction_states: transactional_id=other producer_id=<producer 1> transaction_state=Empty
          transaction_states: transactional_id=txn producer_id=<producer 2> transaction_state=Ongoing
        {'state_filters': ['Ongoing']}
        ListTransactions v2
          transaction_states: transactional_id=txn producer_id=<producer 2> transaction_state=Ongoing
        {'state_filters': ['ongoing', 'Empty']}
        ListTransactions v2 unknown_state_filters=[ongoing]
          transaction_states: transactional_id=other producer_id=<producer 1> transaction_state=Empty
        {'state_filters': ['Nonsense', 'Ongoing']}
        ListTransactions v2 unknown_state_filters=[Nonsense]
          transaction_states: transactional_id=txn producer_id=<producer 2> transaction_state=Ongoing
        {'producer_id_filters': 'mine'}
        ListTransactions v2
          transaction_states: transactional_id=txn producer_id=<producer 2> transaction_state=Ongoing
        {'duration_filter': 0}
        ListTransactions v2
          transaction_states: transactional_id=other producer_id=<producer 1> transaction_state=Empty
          transaction_states: transactional_id=txn producer_id=<producer 2> transaction_state=Ongoing
        {'duration_filter': 1000000}
        ListTransactions v2
          transaction_states: transactional_id=other producer_id=<producer 1> transaction_state=Empty
        {'transactional_id_pattern': 'txn-.*'}
        ListTransactions v2
          transaction_states: transactional_id=txn producer_id=<producer 2> transaction_state=Ongoing
        {'transactional_id_pattern': 'txn'}
        ListTransactions v2
        {'transactional_id_pattern': ''}
        ListTransactions v2
          transaction_states: transactional_id=other producer_id=<producer 1> transaction_state=Empty
          transaction_states: transactional_id=txn producer_id=<producer 2> transaction_state=Ongoing
        {'transactional_id_pattern': '('}
        ListTransactions v2 error_code=INVALID_REGULAR_EXPRESSION
    """)
    peer.quietly(end(txn, who, ABORT), 3)


def test_transaction_markers_with_an_older_coordinator_epoch_or_producer_epoch_are_refused(peer: Peer) -> None:
    topic = peer.topic()

    def marker(name: str, partition: int = 0, epoch: int = 0, coordinator: int = 0) -> WriteTxnMarkersRequest:
        topics = [WritableTxnMarkerTopic(name=name, partition_indexes=[partition])]
        made = WritableTxnMarker(
            producer_id=999_777,
            producer_epoch=epoch,
            transaction_result=True,
            topics=topics,
            coordinator_epoch=coordinator,
        )
        return WriteTxnMarkersRequest(markers=[made])

    def ask(request: WriteTxnMarkersRequest) -> None:
        (answer,) = peer.quietly(request, 1).markers
        codes = [ErrorCode(part.error_code).name for each in answer.topics for part in each.partitions]
        peer.note(f"{codes} end {latest(peer, topic, 0)}")

    ask(marker(topic, coordinator=5))
    ask(marker(topic, coordinator=4))
    ask(marker(topic, coordinator=6))
    ask(marker(topic, epoch=3, coordinator=6))
    ask(marker(topic, epoch=2, coordinator=6))
    ask(marker(topic, partition=9, coordinator=6))
    ask(marker(peer.unique("nope"), coordinator=6))
    peer.said("""
        ['NONE'] end 1
        ['TRANSACTION_COORDINATOR_FENCED'] end 1
        ['NONE'] end 2
        ['NONE'] end 3
        ['INVALID_PRODUCER_EPOCH'] end 3
        ['UNKNOWN_TOPIC_OR_PARTITION'] end 3
        ['UNKNOWN_TOPIC_OR_PARTITION'] end 3
    """)
