"""Asks transaction coordinators on other nodes whether partitions belong to a transaction (AddPartitionsToTxn v4+).

Each node gets one request at a time. Checks that arrive meanwhile are sent together in the next request. A request
names a transaction at most once, because the results name only the transactional id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_24_add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from penstock.broker.coordinators.marker_sender import PeerCalls
    from penstock.protocol.vocabulary import TopicPartition

LANE = "transactions"
Codes = dict["TopicPartition", ErrorCode]


@dataclass(slots=True, eq=False)
class _Question:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Collection[TopicPartition]
    add: bool
    answer: asyncio.Future[Codes]


class Admission:
    def __init__(self, peers: PeerCalls, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._peers = peers
        self._spawn = spawn
        self._queues: dict[int, list[_Question]] = {}
        self._busy: set[int] = set()

    async def ask(
        self,
        node: int,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        add: bool,
    ) -> Codes:
        """Asks the node whether the partitions belong to the transaction. Returns an error code for each partition.

        Without a response, every partition gets NETWORK_EXCEPTION: it is unknown whether the partitions were added.
        """
        future: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()
        question = _Question(transactional_id, producer_id, producer_epoch, partitions, add, future)
        self._queues.setdefault(node, []).append(question)
        if node not in self._busy:
            self._busy.add(node)
            self._spawn(self._send_queued(node))
        return await future

    async def _send_queued(self, node: int) -> None:
        questions: list[_Question] = []
        try:
            while self._queues.get(node):
                questions, self._queues[node] = _split_repeated(self._queues[node])
                await self._ask(node, questions)
        finally:
            self._busy.discard(node)
            for question in (*questions, *self._queues.pop(node, ())):
                _answer(question, {}, ErrorCode.NETWORK_EXCEPTION)

    async def _ask(self, node: int, questions: list[_Question]) -> None:
        results: dict[str, Codes] = {}
        missing = ErrorCode.NETWORK_EXCEPTION
        try:
            request = AddPartitionsToTxnRequest(transactions=[_transaction(each) for each in questions])
            answer: AddPartitionsToTxnResponse = await self._peers.ask(node, request, lane=LANE)
            results = _codes(answer)
            missing = ErrorCode(answer.error_code) if answer.error_code else ErrorCode.UNKNOWN_SERVER_ERROR
        except KafkaError:
            pass  # the request or its answer was lost: every question gets NETWORK_EXCEPTION
        for question in questions:
            _answer(question, results.get(question.transactional_id, {}), missing)


def _split_repeated(questions: list[_Question]) -> tuple[list[_Question], list[_Question]]:
    now: dict[str, _Question] = {}
    later = [each for each in questions if now.setdefault(each.transactional_id, each) is not each]
    return list(now.values()), later


def _answer(question: _Question, codes: Codes, missing: ErrorCode) -> None:
    if not question.answer.done():
        question.answer.set_result({partition: codes.get(partition, missing) for partition in question.partitions})


def _transaction(question: _Question) -> AddPartitionsToTxnTransaction:
    topics: dict[str, list[int]] = {}
    for topic, index in question.partitions:
        topics.setdefault(topic, []).append(index)
    return AddPartitionsToTxnTransaction(
        transactional_id=question.transactional_id,
        producer_id=question.producer_id,
        producer_epoch=question.producer_epoch,
        verify_only=not question.add,
        topics=[AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()],
    )


def _codes(answer: AddPartitionsToTxnResponse) -> dict[str, Codes]:
    return {
        result.transactional_id: {
            (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
            for topic in result.topic_results
            for each in topic.results_by_partition
        }
        for result in answer.results_by_transaction
    }
