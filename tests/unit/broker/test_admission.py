"""Tests requests that ask transaction coordinators on other nodes to add or verify partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from penstock.broker.coordinators.transaction_admission import Admission
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_24_add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)


class Coordinators:
    """Replaces transaction coordinators on other nodes. Refuses partition 9 of every topic."""

    def __init__(self) -> None:
        self.asked: list[AddPartitionsToTxnRequest] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.lost = False
        self.tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def ask(self, node_id: int, request: Any, *, lane: str = "") -> Any:
        self.asked.append(request)
        await self.gate.wait()
        if self.lost:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "gone")
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=each.transactional_id,
                    topic_results=[
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnPartitionResult(
                                    partition_index=index,
                                    partition_error_code=ErrorCode.TRANSACTION_ABORTABLE if index == 9 else 0,
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in each.topics
                    ],
                )
                for each in request.transactions
            ]
        )


def test_each_partition_of_a_transaction_gets_its_own_verification_result() -> None:
    async def scenario() -> None:
        peers = Coordinators()
        codes = await Admission(peers, peers.spawn).ask(2, "tx", 5, 1, [("t", 0), ("t", 9)], add=False)
        assert codes == {("t", 0): ErrorCode.NONE, ("t", 9): ErrorCode.TRANSACTION_ABORTABLE}
        [asked] = peers.asked[0].transactions
        assert (asked.transactional_id, asked.producer_id, asked.producer_epoch, asked.verify_only) == (
            "tx",
            5,
            1,
            True,
        )

    asyncio.run(scenario())


def test_waiting_transaction_verifications_are_sent_in_one_request_that_names_each_transaction_once() -> None:
    async def scenario() -> None:
        peers = Coordinators()
        peers.gate.clear()
        admission = Admission(peers, peers.spawn)
        calls = []
        for name in ("a", "b", "c", "b"):
            calls.append(asyncio.ensure_future(admission.ask(2, name, 1, 0, [("t", 0)], add=True)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        peers.gate.set()
        for codes in await asyncio.gather(*calls):
            assert codes == {("t", 0): ErrorCode.NONE}
        asked = [[each.transactional_id for each in request.transactions] for request in peers.asked]
        assert asked == [["a"], ["b", "c"], ["b"]]

    asyncio.run(scenario())


def test_lost_verification_request_fails_its_callers_and_the_next_call_sends_a_new_request() -> None:
    async def scenario() -> None:
        peers = Coordinators()
        peers.lost = True
        admission = Admission(peers, peers.spawn)
        assert await admission.ask(2, "a", 1, 0, [("t", 0)], add=True) == {("t", 0): ErrorCode.NETWORK_EXCEPTION}
        peers.lost = False
        assert await admission.ask(2, "a", 1, 0, [("t", 0)], add=True) == {("t", 0): ErrorCode.NONE}

    asyncio.run(scenario())


def test_cancelling_a_transaction_verification_answers_all_its_callers() -> None:
    async def scenario() -> None:
        peers = Coordinators()
        peers.gate.clear()
        admission = Admission(peers, peers.spawn)
        asking = [asyncio.ensure_future(admission.ask(2, name, 1, 0, [("t", 0)], add=True)) for name in "abca"]
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(peers.asked) == 1
        for task in list(peers.tasks):
            task.cancel()
        answers = await asyncio.wait_for(asyncio.gather(*asking), 60)
        assert answers == [{("t", 0): ErrorCode.NETWORK_EXCEPTION}] * 4

    asyncio.run(scenario())
