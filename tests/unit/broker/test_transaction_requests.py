"""Tests transaction requests to a running broker: errors by version, late requests, and unfinished transactions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from transaction_client import RawProducer

from penstock.log.log import Log
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_27_write_txn_markers as api_27
from penstock.protocol.messages.api_22_init_producer_id import InitProducerIdRequest
from penstock.protocol.messages.api_65_describe_transactions import DescribeTransactionsRequest
from penstock.protocol.messages.api_66_list_transactions import ListTransactionsRequest
from penstock.testing import Broker

NONE = ErrorCode.NONE
OLD_EPOCH, FENCED = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"t-{secrets.token_hex(4)}"
    broker.create_topic(name)
    return name


@pytest.fixture
def producer(broker: Broker) -> Iterator[RawProducer]:
    made = RawProducer(broker)
    yield made
    made.close()


def log_of(broker: Broker, topic: str) -> Log:
    async def find() -> Log:
        return broker.node.broker.partitions.get(topic, 0).log

    return broker.run(find())


def stable_up_to_the_end(broker: Broker, topic: str) -> bool:
    """Returns True if no transaction is open: then the last stable offset is the end of the log."""
    log = log_of(broker, topic)
    return log.last_stable_offset == log.log_end_offset


# --- verification before the first batch


def test_produce_since_version_12_adds_the_partition_to_the_transaction_with_its_first_batch(
    broker: Broker, topic: str, producer: RawProducer
) -> None:
    producer.init()
    assert producer.produce(topic) is NONE
    described = producer.describe()
    assert described.transaction_state == "Ongoing"
    assert [(each.topic, each.partitions) for each in described.topics] == [(topic, [0])]
    assert producer.produce(topic) is NONE
    assert producer.end(True) is NONE
    assert producer.describe().transaction_state == "CompleteCommit"
    assert stable_up_to_the_end(broker, topic)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (9, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE),
        (12, NONE),
    ],
)
def test_produce_before_version_12_to_a_partition_outside_the_transaction_is_refused(
    broker: Broker, topic: str, producer: RawProducer, version: int, code: ErrorCode
) -> None:
    producer.init()
    assert producer.produce(topic, version=version) is code
    assert producer.add(topic) == [NONE]
    assert producer.produce(topic, version=version) is NONE
    assert producer.end(False, version=4) is NONE
    assert stable_up_to_the_end(broker, topic)


def test_a_transactional_batch_without_a_transactional_id_is_refused(topic: str, producer: RawProducer) -> None:
    producer.init()
    assert producer.produce(topic, name=None) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert producer.produce(topic, name="another") is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_produce_with_an_unknown_producer_id_is_refused_and_leaves_no_producer_state(
    broker: Broker, topic: str, producer: RawProducer
) -> None:
    for producer_id in range(12345, 12350):
        producer.producer_id, producer.epoch = producer_id, 0
        assert producer.produce(topic) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert producer.produce(topic, version=11) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert producer.end(True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producers = log_of(broker, topic).producers
    assert len(producers) == 0
    assert not producers._verifications


# --- late requests


def test_a_late_batch_of_an_earlier_transaction_is_refused_and_opens_no_transaction(
    broker: Broker, topic: str, producer: RawProducer
) -> None:
    producer.init()
    assert producer.produce(topic, b"in time") is NONE
    late_epoch, late_sequences = producer.epoch, dict(producer.sequences)
    assert producer.end(True) is NONE
    epoch = producer.epoch
    producer.epoch, producer.sequences = late_epoch, late_sequences
    assert producer.produce(topic, b"late") is OLD_EPOCH
    assert stable_up_to_the_end(broker, topic)
    producer.epoch, producer.sequences = epoch, {}
    assert producer.produce(topic, b"next") is NONE
    producer.epoch, producer.sequences = late_epoch, late_sequences
    assert producer.produce(topic, b"later still") is OLD_EPOCH
    producer.epoch = epoch
    assert producer.end(True) is NONE
    assert [record.value for record in broker.records(topic)] == [b"in time", b"next"]


def test_repeated_end_txn_request_succeeds_until_the_next_transaction_begins(topic: str, producer: RawProducer) -> None:
    producer.init()
    producer.produce(topic)
    first = producer.epoch
    assert producer.end(True) is NONE
    second = producer.epoch
    producer.epoch = first
    assert producer.end(True) is NONE
    assert producer.epoch == second
    producer.produce(topic)
    producer.epoch = first
    assert producer.end(True) is FENCED
    assert producer.end(False) is FENCED
    assert producer.describe().transaction_state == "Ongoing"


def test_late_transactional_offset_commit_of_an_earlier_transaction_is_refused(
    broker: Broker, topic: str, producer: RawProducer
) -> None:
    group = producer.id
    assert producer.committed_offset(group, topic) == -1
    producer.init()
    first = producer.epoch
    assert producer.commit_offset(group, topic, 5) is NONE
    assert producer.committed_offset(group, topic) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert producer.committed_offset(group, topic, stable=False) == -1
    assert producer.end(True) is NONE
    assert producer.committed_offset(group, topic) == 5
    second, producer.epoch = producer.epoch, first
    assert producer.commit_offset(group, topic, 3) is OLD_EPOCH
    producer.epoch = second
    assert producer.committed_offset(group, topic) == 5
    assert producer.commit_offset(group, topic, 9) is NONE
    assert producer.end(False) is NONE
    assert producer.committed_offset(group, topic) == 5


def test_transactional_offset_commit_before_version_5_needs_add_offsets_to_txn(
    topic: str, producer: RawProducer
) -> None:
    group = producer.id
    assert producer.committed_offset(group, topic) == -1
    producer.init()
    assert producer.commit_offset(group, topic, 5, version=3) is ErrorCode.INVALID_TXN_STATE
    assert producer.commit_offset(group, topic, 5, version=4) is ErrorCode.TRANSACTION_ABORTABLE
    assert producer.add_offsets(group) is NONE
    assert producer.commit_offset(group, topic, 5, version=2) is NONE
    assert producer.end(True, version=4) is NONE
    assert producer.committed_offset(group, topic) == 5


def test_transactional_offset_commit_creates_the_missing_offsets_topic() -> None:
    with Broker(topics={"t": 1}) as fresh:
        producer = RawProducer(fresh)
        producer.init()
        assert producer.add_offsets("group") is NONE
        assert producer.commit_offset("group", "t", 3, version=3) is NONE
        assert producer.end(True, version=4) is NONE
        assert producer.committed_offset("group", "t") == 3
        producer.close()


@pytest.mark.parametrize("version", [3, 5])
def test_transactional_offset_commit_of_a_removed_member_or_for_a_missing_topic_is_refused(
    topic: str, producer: RawProducer, version: int
) -> None:
    group = producer.id
    assert producer.committed_offset(group, topic) == -1
    producer.init()
    assert producer.add_offsets(group) is NONE
    commit = producer.commit_offset
    assert commit(group, topic, 1, version, member_id="gone", generation=3) is ErrorCode.ILLEGAL_GENERATION
    assert commit(group, "no-such-topic", 1, version) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# --- errors by version


def test_a_fenced_producer_gets_an_error_that_its_request_version_knows(
    broker: Broker, topic: str, producer: RawProducer
) -> None:
    group = producer.id
    assert producer.committed_offset(group, topic) == -1
    zombie = RawProducer(broker, producer.id)
    zombie.init()
    producer.init()
    assert [zombie.add(topic, version=version) for version in (0, 1, 2, 3, 4, 5)] == [
        [OLD_EPOCH],
        [OLD_EPOCH],
        [FENCED],
        [FENCED],
        [FENCED],
        [FENCED],
    ]
    assert [zombie.add_offsets(group, version=version) for version in (0, 1, 2, 4)] == [OLD_EPOCH] * 2 + [FENCED] * 2
    assert [zombie.end(True, version=version) for version in (0, 1, 2, 4, 5)] == [OLD_EPOCH] * 2 + [FENCED] * 3
    assert [zombie.init(version, go_on=True) for version in (3, 4, 5)] == [OLD_EPOCH, FENCED, FENCED]
    assert [zombie.produce(topic, version=version) for version in (10, 11, 12)] == [OLD_EPOCH] * 3
    assert [zombie.commit_offset(group, topic, 1, version=version) for version in (0, 3, 5)] == [OLD_EPOCH] * 3
    assert zombie.verify(topic) is FENCED
    zombie.close()


def test_add_partitions_to_txn_adds_all_partitions_or_none(topic: str, producer: RawProducer) -> None:
    producer.init()
    expected = [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert producer.add(topic, "no-such-topic") == expected
    assert producer.add(topic, "no-such-topic", version=5) == expected
    assert producer.describe().transaction_state == "Empty"
    assert producer.verify(topic) is ErrorCode.TRANSACTION_ABORTABLE
    assert producer.add(topic, version=5) == [NONE]
    assert producer.verify(topic) is NONE


def test_transaction_coordinator_without_producer_ids_fetches_them_even_if_no_request_waits(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takes an id without a request, as the abort of an overdue transaction may do."""
    transactions, ids = broker.node.broker.transactions, broker.node.broker.producer_ids

    async def fetched() -> None:
        tried = asyncio.Event()
        answers: Iterator[tuple[int, int] | KafkaError] = iter(
            [KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The controller did not answer."), (5_000_000, 3)]
        )

        async def allocate() -> tuple[int, int]:
            tried.set()
            answer = next(answers)
            if isinstance(answer, KafkaError):
                raise answer
            return answer

        while ids.take() is not None:
            pass
        monkeypatch.setattr(ids, "_allocate", allocate)
        while (found := transactions._take_producer_id()) is None:
            await asyncio.wait_for(tried.wait(), 60)
            tried.clear()
            await asyncio.sleep(0)
        assert found == 5_000_000

    broker.run(fetched())


def test_init_producer_id_refuses_invalid_ids_and_timeouts(producer: RawProducer) -> None:
    def code(**fields: Any) -> ErrorCode:
        return ErrorCode(producer.ask(InitProducerIdRequest(**fields), 5).error_code)

    assert code(transactional_id="", transaction_timeout_ms=1) is ErrorCode.INVALID_REQUEST
    assert code(transactional_id="x", transaction_timeout_ms=0) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert code(transactional_id="x", transaction_timeout_ms=900_001) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert code(transactional_id="x", transaction_timeout_ms=1, producer_id=5) is ErrorCode.INVALID_REQUEST
    assert code(transactional_id=None, producer_epoch=5) is ErrorCode.INVALID_REQUEST
    assert code(transactional_id=None) is NONE


def test_producer_continues_with_its_next_epoch_after_an_error(topic: str, producer: RawProducer) -> None:
    producer.init()
    producer_id = producer.producer_id
    producer.produce(topic)
    assert producer.init(go_on=True) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert producer.init(go_on=True) is NONE
    assert producer.producer_id == producer_id
    assert producer.produce(topic) is NONE
    assert producer.end(True) is NONE


# --- markers


def marker(producer: RawProducer, topic: str, **fields: Any) -> ErrorCode:
    asked = api_27.WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[api_27.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
    )
    for name, value in fields.items():
        setattr(asked, name, value)
    answer = producer.ask(api_27.WriteTxnMarkersRequest(markers=[asked]), 2)
    return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)


def test_write_txn_markers_ends_a_transaction_on_one_partition(
    broker: Broker, topic: str, producer: RawProducer
) -> None:
    producer.init()
    producer.produce(topic)
    assert not stable_up_to_the_end(broker, topic)
    assert marker(producer, "no-such-topic") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert marker(producer, topic, producer_epoch=-1) is OLD_EPOCH
    # a marker of version 2 has its own epoch: a marker with the transaction's epoch belongs to the previous one
    assert marker(producer, topic, transaction_version=2) is OLD_EPOCH
    assert marker(producer, topic, coordinator_epoch=7) is NONE
    assert stable_up_to_the_end(broker, topic)
    assert marker(producer, topic, coordinator_epoch=6) is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_restarted_coordinator_completes_transactions_that_were_decided_before_the_restart(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(data=tmp_path, topics={"t": 1}) as broker:
        producer = RawProducer(broker)
        group = producer.id
        assert producer.committed_offset(group, "t") == -1
        producer.init()
        producer.produce("t", b"committed")
        producer.commit_offset(group, "t", 7)

        def write(*_: Any) -> None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

        with monkeypatch.context() as patched:
            patched.setattr("penstock.broker.coordinators.marker_writer.MarkerWriter.write", write)
            assert producer.end(True) is NONE
            assert producer.describe().transaction_state == "PrepareCommit"
            assert producer.init() is ErrorCode.CONCURRENT_TRANSACTIONS
            assert producer.produce("t") is ErrorCode.CONCURRENT_TRANSACTIONS
            assert producer.commit_offset(group, "t", 9) is ErrorCode.CONCURRENT_TRANSACTIONS
            assert not stable_up_to_the_end(broker, "t")
            broker.kill()
        broker.start()
        while (told := producer.describe()).error_code or told.transaction_state == "PrepareCommit":
            pass  # it loads and then writes the markers in the background; the test's time limit bounds this
        assert told.transaction_state == "CompleteCommit"
        assert stable_up_to_the_end(broker, "t")
        assert producer.committed_offset(group, "t") == 7
        assert producer.produce("t", b"next") is NONE
        assert producer.end(True) is NONE
        producer.close()


def test_transaction_markers_are_retried_until_they_are_written(
    broker: Broker, topic: str, producer: RawProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.broker.coordinators.marker_writer import MarkerWriter

    really_write = MarkerWriter.write
    refusals = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]

    def write(*args: Any) -> Any:
        if refusals:
            raise KafkaError(refusals.pop())
        return really_write(*args)

    monkeypatch.setattr(MarkerWriter, "write", write)
    producer.init()
    producer.produce(topic)
    assert producer.end(False) is NONE
    code = ErrorCode.CONCURRENT_TRANSACTIONS
    while code is ErrorCode.CONCURRENT_TRANSACTIONS:  # the broker retries for a moment before it answers
        code = producer.produce(topic)
    assert code is NONE
    assert refusals == []


def test_transaction_verification_is_repeated_if_a_marker_invalidated_it(
    broker: Broker, topic: str, producer: RawProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.broker.coordinators.transactions import Transactions

    really_admit = Transactions.admit
    overtaken: list[object] = []

    async def admit(self: Transactions, *args: Any, **how: Any) -> Any:
        codes = await really_admit(self, *args, **how)
        if not overtaken:
            producers = broker.node.broker.partitions.get(topic, 0).log.producers
            overtaken.append(producers._verifications)
            producers._verifications = None  # as a marker does
        return codes

    producer.init()
    monkeypatch.setattr(Transactions, "admit", admit)
    assert producer.produce(topic) is NONE
    assert overtaken
    assert producer.end(True) is NONE


def test_a_transaction_with_a_deleted_topic_can_end(broker: Broker, topic: str, producer: RawProducer) -> None:
    producer.init()
    producer.produce(topic)
    with broker.client() as client:
        client.delete_topics([topic])
    assert producer.end(True) is NONE
    assert producer.describe().transaction_state == "CompleteCommit"


# --- queries


def test_describe_transactions_gets_not_coordinator_while_the_transaction_topic_does_not_exist() -> None:
    with Broker() as fresh, fresh.client() as client:
        asked = DescribeTransactionsRequest(transactional_ids=["x"])
        [state] = client.request(asked).transaction_states
        assert state.error_code == ErrorCode.NOT_COORDINATOR
        assert client.request(ListTransactionsRequest()).transaction_states == []


def test_list_transactions_returns_only_transactions_that_match_its_filters(topic: str, producer: RawProducer) -> None:
    def listed(**filters: Any) -> set[str]:
        answer = producer.ask(ListTransactionsRequest(**filters), 2)
        assert answer.error_code == 0
        return {each.transactional_id for each in answer.transaction_states}

    producer.init()
    producer.produce(topic)
    assert producer.id in listed()
    assert producer.id in listed(state_filters=["Ongoing", "Empty"])
    assert producer.id not in listed(state_filters=["Empty"])
    assert listed(producer_id_filters=[producer.producer_id]) == {producer.id}
    assert listed(transactional_id_pattern=producer.id) == {producer.id}
    assert listed(transactional_id_pattern="x" + producer.id) == set()
    unknown = producer.ask(ListTransactionsRequest(state_filters=["Asleep"]), 2)
    assert (unknown.unknown_state_filters, unknown.transaction_states) == (["Asleep"], [])
    wrong = producer.ask(ListTransactionsRequest(transactional_id_pattern="("), 2)
    assert wrong.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_an_unused_transactional_id_expires_on_the_broker() -> None:
    config = {
        "transactional.id.expiration.ms": "1",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "1",
    }
    with Broker(config=config) as broker:
        producer = RawProducer(broker)
        producer.init()
        while producer.describe().error_code == NONE:
            pass  # until the broker's own cleanup has deleted the id
        assert producer.describe().error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        old = producer.producer_id
        assert producer.init(go_on=True) is NONE
        assert producer.producer_id != old
        producer.close()
