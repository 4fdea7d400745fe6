"""Tests two-phase commit of a producer, with a broker that supports it."""

from collections.abc import Iterator

import pytest

from penstock.client.consumer import ConsumerSettings
from penstock.client.prepared import NOTHING_PREPARED, PreparedTxnState
from penstock.client.producer import ProducerSettings
from penstock.client.sync import Client, SyncProducer
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import EARLIEST, LATEST, READ_COMMITTED
from penstock.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.bootstrap) as made:
        yield made


def producer(client: Client, name: str, *, two_phase: bool = True) -> SyncProducer:
    return client.producer(ProducerSettings(transactional_id=name, two_phase_commit=two_phase))


def committed(client: Client, topic: str) -> list[bytes | None]:
    key = (topic, 0)
    found: list[bytes | None] = []
    with client.consumer(ConsumerSettings(isolation_level=READ_COMMITTED)) as consumer:
        end = client.list_offsets({key: LATEST})[key].offset
        consumer.assign({key: EARLIEST})
        while consumer.position(key) < end:
            found += [record.value for fetched in consumer.poll(5.0) for record in fetched.records()]
    return found


@pytest.mark.parametrize(
    ("text", "state"), [("4711:3", PreparedTxnState(4711, 3)), ("", NOTHING_PREPARED), ("0:0", PreparedTxnState(0, 0))]
)
def test_text_of_a_prepared_transaction_state_is_parsed_to_the_same_state(text: str, state: PreparedTxnState) -> None:
    assert str(state) == text
    assert PreparedTxnState.parse(text) == state


@pytest.mark.parametrize("text", ["1", "1:", ":1", "-1:0", "a:b", "1:2:3"])
def test_an_invalid_text_of_a_prepared_transaction_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a prepared transaction"):
        PreparedTxnState.parse(text)


@pytest.mark.parametrize("decided", [True, False])
def test_prepared_transaction_is_committed_if_the_given_state_matches_and_aborted_otherwise(
    client: Client, decided: bool
) -> None:
    topic = f"decided-{decided}".lower()
    client.create_topic(topic, 1)
    first = producer(client, topic)
    first.start()
    first.begin()
    first.send(topic, b"first")
    prepared = first.prepare()
    with pytest.raises(KafkaError):
        first.send(topic, b"late")
    first.close()
    second = producer(client, topic)
    assert second.start(keep_prepared=True) == prepared
    with pytest.raises(KafkaError) as refused:
        second.begin()
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    second.complete(prepared if decided else PreparedTxnState(prepared.producer_id, prepared.producer_epoch + 7))
    second.begin()
    second.send(topic, b"second")
    second.commit()
    second.close()
    assert committed(client, topic) == ([b"first"] if decided else []) + [b"second"]


def test_second_completion_of_a_prepared_transaction_changes_nothing(client: Client) -> None:
    client.create_topic("again", 1)
    with producer(client, "again") as first:
        first.begin()
        first.send("again", b"once")
        prepared = first.prepare()
        first.complete(prepared)
    later = producer(client, "again")
    assert later.start(keep_prepared=True) == NOTHING_PREPARED
    later.complete(prepared)
    later.close()
    assert committed(client, "again") == [b"once"]


def test_prepare_is_refused_for_a_producer_without_two_phase_commit(client: Client) -> None:
    client.create_topic("alone", 1)
    with producer(client, "alone", two_phase=False) as one:
        one.begin()
        with pytest.raises(KafkaError) as refused:
            one.prepare()
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE
        one.abort()


def test_start_of_a_two_phase_producer_fails_with_a_message_if_the_broker_forbids_two_phase_commit() -> None:
    with (
        Broker(config={"transaction.two.phase.commit.enable": "false"}) as off,
        Client(off.bootstrap) as client,
        pytest.raises(KafkaError) as refused,
    ):
        producer(client, "x").start()
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert "transaction.two.phase.commit.enable" in (refused.value.message or "")
