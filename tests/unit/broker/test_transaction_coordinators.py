"""Tests the transaction coordinators of one node: admission, producer ids, completion and expiry."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from plain_coordinator import in_virtual_time
from test_coordinator_runtime import MemoryPartition

from penstock.broker.coordinators.runtime import Phase
from penstock.broker.coordinators.transactions import COMPLETE_RETRY_SECONDS, Transactions
from penstock.clock import ManualClock
from penstock.metadata.configs.settings import Settings
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_24_add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from penstock.protocol.vocabulary import TRANSACTION_STATE
from penstock.transactions.journal import JournalRecord
from penstock.transactions.states import State
from penstock.transactions.transaction import Transaction

HERE = 1
DAY_MS = 24 * 3600 * 1000


@dataclass
class ProducerIdBlocks:
    """Replaces the producer ids of a node: `ready` waits for `allocated`, and then makes `block` available."""

    free: list[int] = field(default_factory=list)
    block: list[int] = field(default_factory=list)
    allocated: asyncio.Event = field(default_factory=asyncio.Event)
    requests: int = 0
    error: KafkaError | None = None

    def take(self) -> int | None:
        return self.free.pop(0) if self.free else None

    async def ready(self) -> None:
        self.requests += 1
        await self.allocated.wait()
        if self.error is not None:
            raise self.error
        self.free += self.block


class Broker:
    """Holds the transaction coordinators of node 1, one partition of `__transaction_state` per leader."""

    def __init__(self, *leaders: int, peers: bool = True, **settings: str) -> None:
        self.clock = ManualClock()
        self.partitions = [MemoryPartition() for _ in leaders]
        for partition in self.partitions:
            partition.leader_epoch = 0
        self.topics = {
            TRANSACTION_STATE: SimpleNamespace(
                partitions={i: SimpleNamespace(leader=leader, leader_epoch=0) for i, leader in enumerate(leaders)}
            )
        }
        self.features: dict[str, int] = {}
        self.producer_ids = ProducerIdBlocks()
        self.asked: list[tuple[int, AddPartitionsToTxnRequest]] = []
        self.transactions = Transactions(
            node_id=HERE,
            settings=Settings({name.replace("_", "."): value for name, value in settings.items()}),
            clock=self.clock,
            partitions=cast(Any, self),
            metadata=cast(Any, SimpleNamespace(image=self)),
            producer_ids=cast(Any, self.producer_ids),
            groups=cast(Any, None),
            peers=cast(Any, self) if peers else None,
        )

    # the image, the partitions and the peers

    def partition(self, topic: str, index: int) -> Any:
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(index)

    def get(self, topic: str, index: int) -> MemoryPartition:
        return self.partitions[index]

    async def ask(self, node_id: int, request: AddPartitionsToTxnRequest, *, lane: str = "") -> Any:
        self.asked.append((node_id, request))
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    def name_in(self, index: int, number: int = 0) -> str:
        """Returns the transactional id of this number whose coordinator is the partition `index`."""
        names = (f"tx{each}" for each in range(1000))
        return [name for name in names if self.transactions.coordinators.partition_of(name) == index][number]

    def store(self, txn: Transaction) -> None:
        coordinator = self.transactions.coordinators.of(txn.transactional_id)
        coordinator.run(lambda shard, turn: turn.records.append(JournalRecord(txn.transactional_id, txn)))


def empty(name: str, update_ms: int) -> Transaction:
    return Transaction(name, 5, 1, 60_000, State.EMPTY, update_ms=update_ms)


@pytest.mark.parametrize(
    ("leader", "peers", "asked", "code"),
    [
        (0, True, [0], ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (2, True, [2], ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (2, False, [], ErrorCode.NOT_COORDINATOR),
        (-1, True, [], ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (-1, False, [], ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (HERE, True, [], ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
@pytest.mark.parametrize("add", [True, False])
def test_partitions_of_a_transaction_are_admitted_by_the_leader_of_its_coordinator(
    leader: int, peers: bool, asked: list[int], code: ErrorCode, add: bool
) -> None:
    async def scenario() -> None:
        broker = Broker(leader, peers=peers)
        broker.transactions.start()
        codes = await broker.transactions.admit("tx", 5, 1, [("t", 0), ("u", 3)], add=add)
        assert codes == {("t", 0): code, ("u", 3): code}
        assert [node for node, _ in broker.asked] == asked
        assert [request.transactions[0].verify_only for _, request in broker.asked] == [not add] * len(asked)
        await broker.transactions.close()

    in_virtual_time(scenario)


def test_no_partition_is_admitted_while_the_coordinator_topic_or_its_partition_is_unknown() -> None:
    async def scenario() -> None:
        broker = Broker(2)
        broker.partition = lambda topic, index: None  # type: ignore[method-assign]
        assert await broker.transactions.admit("tx", 5, 1, [("t", 0)], add=True) == {
            ("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE
        }
        broker.topics.clear()
        assert await broker.transactions.admit("tx", 5, 1, [("t", 0)], add=True) == {
            ("t", 0): ErrorCode.NOT_COORDINATOR
        }
        assert broker.asked == []

    in_virtual_time(scenario)


def test_admitted_partitions_belong_to_the_transaction_and_other_partitions_do_not() -> None:
    async def scenario() -> None:
        broker = Broker(HERE)
        broker.transactions.start()
        broker.store(empty("tx", 1))
        added = await broker.transactions.admit("tx", 5, 1, [("t", 0), ("t", 1)], add=True)
        assert added == {("t", 0): ErrorCode.NONE, ("t", 1): ErrorCode.NONE}
        verified = await broker.transactions.admit("tx", 5, 1, [("t", 1), ("t", 2)], add=False)
        assert verified == {("t", 1): ErrorCode.NONE, ("t", 2): ErrorCode.TRANSACTION_ABORTABLE}
        await broker.transactions.close()

    in_virtual_time(scenario)


def test_new_producer_ids_are_fetched_once_and_only_when_no_id_is_left() -> None:
    async def scenario() -> None:
        broker = Broker(HERE)
        ids, take = broker.producer_ids, broker.transactions._take_producer_id
        ids.free, ids.block = [10, 11], [20]
        assert [take(), take()] == [10, 11]
        await asyncio.sleep(1)
        assert ids.requests == 0
        assert [take(), take()] == [None, None]
        await asyncio.sleep(1)
        assert take() is None
        assert ids.requests == 1
        ids.allocated.set()
        await asyncio.sleep(1)
        assert [take(), take()] == [20, None]
        await asyncio.sleep(1)
        assert ids.requests == 2
        assert take() == 20

    in_virtual_time(scenario)


def test_producer_ids_are_requested_again_after_a_failed_request() -> None:
    async def scenario() -> None:
        broker = Broker(HERE)
        ids = broker.producer_ids
        ids.error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller")
        ids.allocated.set()
        for requests in (1, 2):
            assert broker.transactions._take_producer_id() is None
            await asyncio.sleep(1)
            assert ids.requests == requests

    in_virtual_time(scenario)


def test_decided_transaction_is_completed_after_its_markers_even_if_the_first_completion_is_refused() -> None:
    async def scenario() -> None:
        broker = Broker(HERE)
        partition = broker.partitions[0]
        broker.transactions.start()
        broker.topics["t"] = SimpleNamespace(partitions={0: SimpleNamespace(leader=-1)})
        broker.store(Transaction("tx", 5, 1, 60_000, State.ONGOING, frozenset({("t", 0)}), 1, 1))
        coordinator = broker.transactions.coordinators.of("tx")
        decided = Transaction("tx", 5, 1, 60_000, State.PREPARE_COMMIT, frozenset({("t", 0)}), 1, 1)
        coordinator.run(lambda shard, turn: turn.write(decided))
        await asyncio.sleep(0)

        def state() -> State:
            return coordinator.machine.transactions["tx"].state

        partition.isr = [1]
        del broker.topics["t"]  # the transaction has no partition any more
        broker.transactions.apply(cast(Any, broker), cast(Any, broker))
        await asyncio.sleep(COMPLETE_RETRY_SECONDS / 2)
        assert state() is State.PREPARE_COMMIT
        partition.isr = [1, 2]
        await asyncio.sleep(COMPLETE_RETRY_SECONDS)
        assert state() is State.COMPLETE_COMMIT
        await broker.transactions.close()

    in_virtual_time(scenario)


def test_closed_coordinator_does_not_complete_its_transactions() -> None:
    async def scenario() -> None:
        broker = Broker(HERE)
        broker.transactions.start()
        broker.topics["t"] = SimpleNamespace(partitions={0: SimpleNamespace(leader=-1)})
        coordinator = broker.transactions.coordinators.of("tx")
        decided = Transaction("tx", 5, 1, 60_000, State.PREPARE_COMMIT, frozenset({("t", 0)}), 1, 1)
        coordinator.run(lambda shard, turn: turn.write(decided))
        await asyncio.sleep(0)
        broker.partitions[0].isr = [1]
        del broker.topics["t"]
        broker.transactions.apply(cast(Any, broker), cast(Any, broker))
        await asyncio.sleep(COMPLETE_RETRY_SECONDS / 2)
        coordinator.close()
        written = len(broker.partitions[0].batches)
        broker.partitions[0].isr = [1, 2]
        await asyncio.sleep(10)
        assert len(broker.partitions[0].batches) == written
        await broker.transactions.close()

    in_virtual_time(scenario)


def test_unused_transactional_ids_of_all_coordinators_expire_at_each_interval() -> None:
    async def scenario() -> None:
        broker = Broker(
            HERE,
            2,
            HERE,
            transactional_id_expiration_ms=str(DAY_MS),
            transaction_remove_expired_transaction_cleanup_interval_ms="1000",
        )
        now = broker.clock.wall_ms()
        broker.transactions.start()
        await asyncio.sleep(0.25)
        old = [broker.name_in(index, number) for index in (0, 2) for number in range(2)]
        young = [broker.name_in(index, 2) for index in (0, 2)]
        for name in old:
            broker.store(empty(name, now - DAY_MS))
        for name in young:
            broker.store(empty(name, now - DAY_MS + 1))

        def stored() -> set[str]:
            return {name for each in broker.transactions.coordinators for name in each.machine.transactions}

        await asyncio.sleep(0.5)
        assert stored() == {*old, *young}
        await asyncio.sleep(0.5)
        assert stored() == set(young)
        broker.clock.advance(1)
        await asyncio.sleep(1)
        assert stored() == set()
        await broker.transactions.close()

    in_virtual_time(scenario)


def test_closed_transactions_answer_waiting_requests_and_end_their_background_work() -> None:
    async def scenario() -> None:
        broker = Broker(HERE, HERE, transaction_remove_expired_transaction_cleanup_interval_ms="1000")
        broker.transactions.start()
        await asyncio.sleep(0)
        waiting = []
        for index in (0, 1):
            broker.partitions[index].replicated = False
            name = broker.name_in(index)
            coordinator = broker.transactions.coordinators.of(name)
            waiting.append(coordinator.run(lambda shard, turn: turn.records.append(JournalRecord("tx", None))))
        await asyncio.sleep(0)
        await broker.transactions.close()
        for each in waiting:
            assert isinstance(each, asyncio.Future)
            error = each.exception()
            assert isinstance(error, KafkaError)
            assert error.code is ErrorCode.NOT_COORDINATOR
        assert coordinator.phase is Phase.CLOSED
        assert list(broker.transactions.coordinators) == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    in_virtual_time(scenario)
