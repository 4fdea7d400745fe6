"""Tests requests that wait in a transaction while the transaction ends: they are refused and append nothing."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from transaction_client import RawProducer

from penstock.broker.coordinators.transactions import Transactions
from penstock.broker.handlers import api_28_txn_offset_commit as offset_commits
from penstock.broker.handlers import transaction_verification
from penstock.log.log import Log
from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import CONSUMER_OFFSETS
from penstock.testing import Broker

NONE = ErrorCode.NONE
LIMIT_SECONDS = 120.0  # ends only a hanging test


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def producer(broker: Broker) -> Iterator[RawProducer]:
    made = RawProducer(broker)
    yield made
    made.close()


class Pause:
    """Stops calls of an asynchronous function after its work, until the test lets them continue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.reached = threading.Event()
        self._go = threading.Event()
        really = getattr(owner, name)

        async def paused(*args: Any, **how: Any) -> Any:
            result = await really(*args, **how)
            self.reached.set()
            await asyncio.to_thread(self._go.wait, LIMIT_SECONDS)
            return result

        monkeypatch.setattr(owner, name, paused)

    def meanwhile(self, request: Callable[[], ErrorCode], other: Callable[[], None]) -> ErrorCode:
        """Sends the request, does the other work while the request waits, and returns the request's answer."""
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(request)
            try:
                assert self.reached.wait(LIMIT_SECONDS)
                other()
            finally:
                self._go.set()
            return asked.result(LIMIT_SECONDS)


def group_log(broker: Broker, group: str) -> Log:
    async def find() -> Log:
        node = broker.node.broker
        return node.partitions.get(CONSUMER_OFFSETS, node.groups.partition_of(group)).log

    return broker.run(find())


def topic_log(broker: Broker, topic: str) -> Log:
    async def find() -> Log:
        return broker.node.broker.partitions.get(topic, 0).log

    return broker.run(find())


def end_elsewhere(broker: Broker, producer: RawProducer, log: Log, commit: bool, version: int) -> int:
    """Ends the transaction from another connection, and returns the log end after the marker."""
    before = log.log_end_offset
    other = RawProducer(broker, producer.id)
    other.producer_id, other.epoch = producer.producer_id, producer.epoch
    assert other.end(commit, version=version) is NONE
    while not other.describe().transaction_state.startswith("Complete"):
        pass  # the markers are written in the background; the test's time limit bounds this
    other.close()
    assert log.log_end_offset == before + 1
    return log.log_end_offset


POINTS = [
    pytest.param(Transactions, "admit", id="coordinator asked"),
    pytest.param(None, "ask", id="coordinator answered"),
]


@pytest.mark.parametrize(("owner", "wait"), POINTS)
@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("commit", [True, False])
def test_transactional_offset_commit_whose_transaction_ends_during_its_verification_appends_nothing(
    broker: Broker,
    producer: RawProducer,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    wait: str,
    version: int,
    commit: bool,
) -> None:
    group, topic = producer.id, f"t-{secrets.token_hex(4)}"
    broker.create_topic(topic)
    assert producer.committed_offset(group, topic) == -1
    producer.init()
    if version < 5:
        assert producer.add_offsets(group) is NONE
    log, ends = group_log(broker, group), []
    pause = Pause(monkeypatch, owner or offset_commits, wait)
    code = pause.meanwhile(
        lambda: producer.commit_offset(group, topic, 5, version=version),
        lambda: ends.append(end_elsewhere(broker, producer, log, commit, 5 if version == 5 else 4)),
    )
    assert code is not NONE
    assert ends == [log.log_end_offset]
    assert log.last_stable_offset == log.log_end_offset
    assert producer.committed_offset(group, topic) == -1, "no offset is pending or committed"


@pytest.mark.parametrize(("owner", "wait"), POINTS)
@pytest.mark.parametrize("version", [10, 11, 12])
@pytest.mark.parametrize("commit", [True, False])
def test_transactional_batch_whose_transaction_ends_during_its_verification_is_not_appended(
    broker: Broker,
    producer: RawProducer,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    wait: str,
    version: int,
    commit: bool,
) -> None:
    topic = f"t-{secrets.token_hex(4)}"
    broker.create_topic(topic)
    producer.init()
    if version < 12:
        assert producer.add(topic) == [NONE]
    log, ends = topic_log(broker, topic), []
    pause = Pause(monkeypatch, owner or transaction_verification, wait)
    code = pause.meanwhile(
        lambda: producer.produce(topic, version=version),
        lambda: ends.append(end_elsewhere(broker, producer, log, commit, 5 if version == 12 else 4)),
    )
    assert code is not NONE
    assert ends == [log.log_end_offset]
    assert log.last_stable_offset == log.log_end_offset


def test_add_offsets_to_txn_of_a_producer_that_is_fenced_during_the_wait_begins_no_transaction(
    broker: Broker, producer: RawProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.init()
    newer = RawProducer(broker, producer.id)
    pause = Pause(monkeypatch, broker.node.broker.topic_creator, "ensure")
    code = pause.meanwhile(lambda: producer.add_offsets(producer.id), lambda: [newer.init()].clear())
    assert code is ErrorCode.PRODUCER_FENCED
    assert newer.describe().transaction_state == "Empty"
    newer.close()


def test_late_offset_commit_of_an_older_epoch_is_refused_even_without_verification() -> None:
    with Broker(topics={"t": 1}, config={"transaction.partition.verification.enable": "false"}) as running:
        producer = RawProducer(running)
        assert producer.committed_offset("g", "t") == -1
        producer.init()
        assert producer.add_offsets("g") is NONE
        older = producer.epoch
        assert producer.commit_offset("g", "t", 5, version=4) is NONE
        assert producer.end(True, version=5) is NONE
        assert producer.init(go_on=True) is NONE
        assert producer.add_offsets("g") is NONE
        assert producer.commit_offset("g", "t", 6, version=4) is NONE
        assert producer.end(True, version=5) is NONE
        log = group_log(running, "g")
        end, producer.epoch = log.log_end_offset, older
        assert producer.commit_offset("g", "t", 3, version=4) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert log.log_end_offset == end
        assert producer.committed_offset("g", "t") == 6
        producer.close()
