"""Tests two-phase commit (KIP-939) on a running broker: prepared transactions survive producers and broker restarts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from transaction_client import RawProducer, committed_values

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_18_api_versions import ApiVersionsRequest
from penstock.protocol.messages.api_66_list_transactions import ListTransactionsRequest
from penstock.testing import Broker

NONE, FENCED = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED
SETTING = "transaction.two.phase.commit.enable"
NO_TIMEOUT_MS = 0x7FFFFFFF


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config={SETTING: "true"}) as running:
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


def latest_init_producer_id(broker: Broker) -> int:
    raw = RawProducer(broker)
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    try:
        keys = raw.ask(request, 4).api_keys
    finally:
        raw.close()
    return max(int(key.max_version) for key in keys if key.api_key == 22)


def test_unstable_version_of_init_producer_id_is_advertised_and_served_if_enabled(broker: Broker) -> None:
    assert latest_init_producer_id(broker) == 6


def test_unstable_version_of_init_producer_id_is_neither_advertised_nor_served_unless_enabled() -> None:
    with Broker(config={SETTING: "false"}) as off:
        assert latest_init_producer_id(off) == 5
        raw = RawProducer(off)
        with pytest.raises(KafkaError):
            raw.init(6, two_phase=True)
        raw.close()


def test_describe_transactions_shows_a_prepared_transaction_without_a_timeout(
    topic: str, producer: RawProducer
) -> None:
    assert producer.init(6, two_phase=True) is NONE
    assert producer.produce(topic) is NONE
    described = producer.describe()
    assert (described.transaction_state, described.transaction_timeout_ms) == ("Ongoing", NO_TIMEOUT_MS)
    listed = producer.ask(ListTransactionsRequest(state_filters=["Ongoing"]), 1).transaction_states
    assert producer.id in [each.transactional_id for each in listed]
    assert producer.end(False) is NONE


@pytest.mark.parametrize("commit", [True, False])
def test_new_producer_with_keep_prepared_can_end_the_prepared_transaction_of_the_previous_producer(
    broker: Broker, topic: str, producer: RawProducer, commit: bool
) -> None:
    assert producer.init(6, two_phase=True) is NONE
    assert producer.produce(topic, b"first") is NONE
    prepared = (producer.producer_id, producer.epoch)
    later = RawProducer(broker, producer.id)
    assert later.init(6, two_phase=True, keep=True) is NONE
    assert later.ongoing == prepared
    assert later.produce(topic, b"not now") is not NONE
    assert producer.end(commit) is FENCED
    assert later.end(commit) is NONE
    assert later.produce(topic, b"second") is NONE
    assert later.end(True) is NONE
    later.close()
    assert committed_values(broker, topic) == ([b"first"] if commit else []) + [b"second"]


def test_a_prepared_transaction_survives_a_restart_of_the_broker(broker: Broker, topic: str) -> None:
    first = RawProducer(broker)
    assert first.init(6, two_phase=True) is NONE
    assert first.produce(topic, b"kept") is NONE
    prepared = (first.producer_id, first.epoch)
    first.close()
    broker.restart()
    later = RawProducer(broker, first.id)
    assert later.init(6, two_phase=True, keep=True) is NONE
    assert later.ongoing == prepared
    broker.restart()
    again = RawProducer(broker, first.id)
    assert again.init(6, two_phase=True, keep=True) is NONE
    assert again.ongoing == prepared
    assert again.end(True) is NONE
    later.close()
    again.close()
    assert committed_values(broker, topic) == [b"kept"]


def test_a_producer_that_starts_without_keep_prepared_aborts_the_prepared_transaction(
    broker: Broker, topic: str, producer: RawProducer
) -> None:
    assert producer.init(6, two_phase=True) is NONE
    assert producer.produce(topic, b"gone") is NONE
    assert producer.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert producer.init() is NONE
    assert producer.produce(topic, b"here") is NONE
    assert producer.end(True) is NONE
    assert committed_values(broker, topic) == [b"here"]
