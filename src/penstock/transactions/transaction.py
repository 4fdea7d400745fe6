"""What is remembered of one transactional id."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from penstock.check import check
from penstock.transactions.states import COMES_FROM, State

NO_PRODUCER_ID = -1
NO_EPOCH = -1
MAX_EPOCH = 0x7FFF
#: From this transaction version on, every transaction has an epoch of its own (KIP-890).
EPOCH_PER_TRANSACTION = 2

TopicPartition = tuple[str, int]


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
    #: The producer id from the end of this transaction on, where its epochs are used up.
    next_producer_id: int = NO_PRODUCER_ID
    #: The transaction version that the client spoke when it last changed the state.
    client_version: int = 0
    #: The epoch before the last bump, to know a retry by. Kafka's records have no place for it: a reload forgets it.
    last_epoch: int = field(default=NO_EPOCH, compare=False)

    @property
    def epochs_used_up(self) -> bool:
        return used_up(self.producer_epoch)

    def to(self, state: State, wall_ms: int, **changes: Any) -> Transaction:
        """The next state, if the table allows it."""
        check(self.state in COMES_FROM[state], f"{state.label} does not come after {self.state.label}")
        following: Transaction = replace(
            self, state=state, update_ms=wall_ms, previous_producer_id=self.producer_id, **changes
        )
        check(following.producer_id >= 0, "a transaction has a producer id")
        check(0 <= following.producer_epoch <= MAX_EPOCH, "a producer epoch is an int16 from 0 on")
        return following


def used_up(epoch: int) -> bool:
    """Clients never get the very last epoch, so that the one before it can always be fenced."""
    return epoch >= MAX_EPOCH - 1
