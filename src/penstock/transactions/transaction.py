"""Defines the state of one transactional id."""

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

#: Approximate size of a transactional id in memory, and of each partition of its transaction.
ID_BYTES = 700
PARTITION_BYTES = 200


class Owner(NamedTuple):
    """Holds the producer id and epoch of the producer that owns a transactional id."""

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
    #: The producer id before the last change, to recognize a retry.
    previous_producer_id: int = NO_PRODUCER_ID
    #: The producer id after this transaction, if its epochs are used up or its producer has changed.
    next_producer_id: int = NO_PRODUCER_ID
    #: The transaction version of the client that last changed the state.
    client_version: int = 0
    #: The epoch that belongs to `next_producer_id`; NO_PRODUCER_EPOCH means 0.
    next_epoch: int = NO_PRODUCER_EPOCH
    #: The epoch before the last bump, to recognize a retry. Kafka's records do not contain it, so a reload loses it.
    last_epoch: int = field(default=NO_PRODUCER_EPOCH, compare=False)

    @property
    def held_bytes(self) -> int:
        return ID_BYTES + len(self.transactional_id) + PARTITION_BYTES * len(self.partitions)

    @property
    def epochs_used_up(self) -> bool:
        return used_up(self.producer_epoch)

    @property
    def owner(self) -> Owner:
        """Returns the producer whose requests the coordinator accepts.

        After a takeover (KIP-939) this is the new producer, although the records in the log name the previous producer.
        """
        if self.next_producer_id == NO_PRODUCER_ID:
            return Owner(self.producer_id, self.producer_epoch)
        return Owner(self.next_producer_id, max(self.next_epoch, 0))

    @property
    def taken_over(self) -> bool:
        """Returns True if a new producer has taken over the open transaction (KIP-939). This producer may only
        end the transaction."""
        return self.state is State.ONGOING and self.next_producer_id != NO_PRODUCER_ID

    @property
    def two_phase(self) -> bool:
        """Returns True if an external coordinator ends the transaction. Such a transaction has no timeout."""
        return self.timeout_ms == NO_TRANSACTION_TIMEOUT_MS

    def to(self, state: State, wall_ms: int, **changes: Any) -> Transaction:
        """Returns a copy of the transaction in the state `state`; the transition must be in `states.COMES_FROM`."""
        check(self.state in COMES_FROM[state], f"no transition leads from {self.state.label} to {state.label}")
        changes.setdefault("previous_producer_id", self.producer_id)
        following: Transaction = replace(self, state=state, update_ms=wall_ms, **changes)
        check(following.producer_id >= 0, "a transaction has a producer id")
        check(0 <= following.producer_epoch <= MAX_PRODUCER_EPOCH, "a producer epoch is a non-negative int16")
        return following


def used_up(epoch: int) -> bool:
    """Returns True if a producer with this epoch can't get another epoch and needs a new producer id.

    The largest epoch is never given to a producer: it is reserved for fencing.
    """
    return epoch >= MAX_PRODUCER_EPOCH - 1
