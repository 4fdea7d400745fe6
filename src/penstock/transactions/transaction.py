"""What is remembered of one transactional id."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from penstock.check import check
from penstock.protocol.vocabulary import (
    MAX_PRODUCER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TRANSACTION_TIMEOUT_MS,
    TopicPartition,
)
from penstock.transactions.states import COMES_FROM, State

#: What a transactional id takes in memory, roughly, and each partition of its transaction.
ID_BYTES = 700
PARTITION_BYTES = 200


class Owner(NamedTuple):
    """The id and epoch that a producer goes by."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    update_ms: int = -1
    #: The producer id before the last change, to know a retry by.
    previous_producer_id: int = NO_PRODUCER_ID
    #: The producer id from the end of this transaction on, where its epochs are used up or its producer has changed.
    next_producer_id: int = NO_PRODUCER_ID
    #: The transaction version that the client spoke when it last changed the state.
    client_version: int = 0
    #: The epoch that goes with `next_producer_id`; none stands for 0.
    next_epoch: int = NO_PRODUCER_EPOCH
    #: The epoch before the last bump, to know a retry by. Kafka's records have no place for it: a reload forgets it.
    last_epoch: int = field(default=NO_PRODUCER_EPOCH, compare=False)

    @property
    def held_bytes(self) -> int:
        return ID_BYTES + len(self.transactional_id) + PARTITION_BYTES * len(self.partitions)

    @property
    def epochs_used_up(self) -> bool:
        return used_up(self.producer_epoch)

    @property
    def owner(self) -> Owner:
        """Whose requests count. The records of a transaction that was taken over still name the producer before."""
        if self.next_producer_id == NO_PRODUCER_ID:
            return Owner(self.producer_id, self.producer_epoch)
        return Owner(self.next_producer_id, max(self.next_epoch, 0))

    @property
    def taken_over(self) -> bool:
        """Open, and of a producer that is gone: another may end it, and do nothing else with it (KIP-939)."""
        return self.state is State.ONGOING and self.next_producer_id != NO_PRODUCER_ID

    @property
    def two_phase(self) -> bool:
        """An outside coordinator ends it, however long that takes."""
        return self.timeout_ms == NO_TRANSACTION_TIMEOUT_MS

    def to(self, state: State, wall_ms: int, **changes: Any) -> Transaction:
        """The next state, if the table allows it."""
        check(self.state in COMES_FROM[state], f"{state.label} does not come after {self.state.label}")
        changes.setdefault("previous_producer_id", self.producer_id)
        following: Transaction = replace(self, state=state, update_ms=wall_ms, **changes)
        check(following.producer_id >= 0, "a transaction has a producer id")
        check(0 <= following.producer_epoch <= MAX_PRODUCER_EPOCH, "a producer epoch is an int16 from 0 on")
        return following


def used_up(epoch: int) -> bool:
    """Clients never get the very last epoch, so that the one before it can always be fenced."""
    return epoch >= MAX_PRODUCER_EPOCH - 1
