"""Defines the `Turn`: the decision on one event (a request or a timer), with its time and its effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.protocol.vocabulary import TopicPartition
from penstock.transactions.journal import JournalRecord
from penstock.transactions.states import DECIDED, State
from penstock.transactions.transaction import Transaction

if TYPE_CHECKING:
    from penstock.protocol.errors import ErrorCode


class Markers(NamedTuple):
    """Tells the runtime to write the transaction's markers to its partitions, once the records of the decision are
    committed."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    client_version: int
    partitions: frozenset[TopicPartition]


class Answer(NamedTuple):
    """Holds the answer to a producer: its new producer id and epoch, or an error."""

    code: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1
    ongoing_producer_id: int = -1
    """Producer id and epoch of an open transaction that the producer took over."""
    ongoing_producer_epoch: int = -1


@dataclass(slots=True)
class Turn:
    now_ms: int  # monotonic: for timeouts
    wall_ms: int  # for durable state
    records: list[JournalRecord] = field(default_factory=list)
    replies: list[tuple[object, Any]] = field(default_factory=list)
    after: list[Callable[[Turn, ErrorCode], None]] = field(default_factory=list)
    undo: tuple[()] = ()
    effects: list[Markers] = field(default_factory=list)
    """Actions that are performed once the records are committed, and dropped if the records cannot be written."""
    producer: tuple[int, int] | None = None

    def write(self, txn: Transaction) -> None:
        self.records.append(JournalRecord(txn.transactional_id, txn))
        if txn.state in DECIDED:
            self.send_markers(txn)

    def erase(self, transactional_id: str) -> None:
        self.records.append(JournalRecord(transactional_id, None))

    def send_markers(self, txn: Transaction) -> None:
        markers = Markers(
            txn.transactional_id,
            txn.producer_id,
            txn.producer_epoch,
            txn.state is State.PREPARE_COMMIT,
            txn.client_version,
            txn.partitions,
        )
        self.effects.append(markers)
