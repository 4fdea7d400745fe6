"""Holds an idempotent producer's id and epoch, and the next sequence number of each partition."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.client.errors import code_of
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.records.header import sequence_after

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.client.transactions import Transactions
    from penstock.protocol.vocabulary import TopicPartition


class ProducerIdentity:
    """Holds the producer id, the epoch and the next sequence numbers of a producer.

    A transactional producer gets its id from the transaction coordinator. Other producers get it from any broker.
    """

    def __init__(self, client: AsyncClient, transactions: Transactions | None) -> None:
        self._client = client
        self._transactions = transactions
        self._own: tuple[int, int] | None = None
        self._asking = asyncio.Lock()
        self._sequences: dict[TopicPartition, int] = {}
        #: Sequence number of the first record to each partition; tests begin near the last one.
        self.first_sequence = 0

    @property
    def can_be_replaced(self) -> bool:
        """Returns True if the producer can request another id: it has an id and is not transactional."""
        return self._own is not None

    async def current(self) -> tuple[int, int]:
        """Returns the producer's id and epoch. Requests them first if the producer has none."""
        if self._transactions is not None:
            return self._transactions.producer_id, self._transactions.producer_epoch
        async with self._asking:
            if self._own is None:
                self._own = await self._client.retrying(self._ask)
                self._sequences.clear()
            return self._own

    async def _ask(self) -> tuple[int, int]:
        answer: InitProducerIdResponse = await self._client.request(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        )
        if answer.error_code:
            raise KafkaError(code_of(answer.error_code), "The broker refused to allocate a producer id.")
        return answer.producer_id, answer.producer_epoch

    def next_sequence(self, partition: TopicPartition, count: int) -> int:
        """Returns the sequence number of the partition's next record, and reserves `count` numbers."""
        sequence = self._sequences.get(partition, self.first_sequence)
        self._sequences[partition] = sequence_after(sequence, count)
        return sequence

    def replace(self) -> None:
        """Drops the producer id. The next batch gets a new id, with sequence numbers from 0."""
        self._own = None

    def restart_sequences(self) -> None:
        """Restarts sequence numbers at 0, because the producer has a new epoch."""
        self._sequences.clear()
