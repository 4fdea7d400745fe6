"""EndTxn: commit and abort by the producer, fencing by others, and the end once all markers are written.

A producer of transaction version 2 gets a new epoch with each end. A request with the epoch before is then a retry of
the end that gave it, and one with the current epoch belongs to what comes next, so neither can touch the other.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.transactions.states import AT_REST, DECIDED, State
from penstock.transactions.transaction import (
    EPOCH_PER_TRANSACTION,
    MAX_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
)
from penstock.transactions.turn import Answer, Markers, Turn

if TYPE_CHECKING:
    from penstock.transactions.shard import TransactionShard


class Verdict(Enum):
    END = "write it down and tell the partitions"
    DONE = "it has ended so already"
    WAIT = "it is about to end so"
    INVALID = "it can't end so"
    FENCED = "not this producer's any more"


COMMIT, ABORT = True, False

#: Before transaction version 2, with the current epoch: there is no other that is let in.
SAME_EPOCH: dict[tuple[State, bool], Verdict] = {
    (State.ONGOING, COMMIT): Verdict.END,
    (State.ONGOING, ABORT): Verdict.END,
    (State.PREPARE_COMMIT, COMMIT): Verdict.WAIT,
    (State.PREPARE_ABORT, ABORT): Verdict.WAIT,
    (State.COMPLETE_COMMIT, COMMIT): Verdict.DONE,
    (State.COMPLETE_ABORT, ABORT): Verdict.DONE,
}
#: Since: with the current epoch. A producer that isn't sure whether it began anything may abort.
CURRENT: dict[tuple[State, bool], Verdict] = {
    (State.ONGOING, COMMIT): Verdict.END,
    (State.ONGOING, ABORT): Verdict.END,
    (State.EMPTY, ABORT): Verdict.END,
    (State.COMPLETE_COMMIT, ABORT): Verdict.END,
    (State.COMPLETE_ABORT, ABORT): Verdict.END,
    (State.PREPARE_COMMIT, COMMIT): Verdict.FENCED,
    (State.PREPARE_COMMIT, ABORT): Verdict.FENCED,
    (State.PREPARE_ABORT, COMMIT): Verdict.FENCED,
    (State.PREPARE_ABORT, ABORT): Verdict.FENCED,
}
#: Since: with the epoch before, the retry of an end.
RETRY: dict[tuple[State, bool], Verdict] = {
    (State.PREPARE_COMMIT, COMMIT): Verdict.WAIT,
    (State.PREPARE_ABORT, ABORT): Verdict.WAIT,
    (State.COMPLETE_COMMIT, COMMIT): Verdict.DONE,
    (State.COMPLETE_ABORT, ABORT): Verdict.DONE,
    (State.ONGOING, COMMIT): Verdict.FENCED,
    (State.ONGOING, ABORT): Verdict.FENCED,
    (State.EMPTY, COMMIT): Verdict.FENCED,
    (State.EMPTY, ABORT): Verdict.FENCED,
}


def end(
    shard: TransactionShard,
    turn: Turn,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    client_version: int,
) -> Answer:
    if not transactional_id:
        return Answer(ErrorCode.INVALID_REQUEST)
    txn = shard.transactions.get(transactional_id)
    if txn is None:
        return Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    bumps = client_version >= EPOCH_PER_TRANSACTION
    retry = bumps and _is_retry(txn, producer_id, producer_epoch)
    if producer_id != txn.producer_id and not retry:
        return Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if producer_epoch != txn.producer_epoch and not retry:
        return Answer(ErrorCode.PRODUCER_FENCED)
    table = RETRY if retry else CURRENT if bumps else SAME_EPOCH
    match table.get((txn.state, commit), Verdict.INVALID):
        case Verdict.END:
            try:
                return _prepare(shard, turn, txn, commit, client_version)
            except KafkaError as error:
                return Answer(error.code)
        case Verdict.DONE:
            return Answer(ErrorCode.NONE, txn.producer_id, txn.producer_epoch)
        case Verdict.WAIT:
            return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        case Verdict.INVALID:
            return Answer(ErrorCode.INVALID_TXN_STATE)
        case Verdict.FENCED:
            return Answer(ErrorCode.PRODUCER_FENCED)


def _is_retry(txn: Transaction, producer_id: int, producer_epoch: int) -> bool:
    if producer_id == txn.producer_id and producer_epoch == txn.producer_epoch - 1:
        return True
    used_up_then = producer_id == txn.previous_producer_id and producer_epoch == MAX_EPOCH - 1
    return used_up_then and producer_id != txn.producer_id and txn.producer_epoch == 0


def _prepare(shard: TransactionShard, turn: Turn, txn: Transaction, commit: bool, client_version: int) -> Answer:
    epoch, last_epoch, next_producer_id = txn.producer_epoch, txn.last_epoch, NO_PRODUCER_ID
    if client_version >= EPOCH_PER_TRANSACTION:
        if txn.epochs_used_up:
            next_producer_id = shard.new_producer_id()
        epoch, last_epoch = min(epoch + 1, MAX_EPOCH), epoch
    turn.write(
        txn.to(
            State.PREPARE_COMMIT if commit else State.PREPARE_ABORT,
            turn.wall_ms,
            producer_epoch=epoch,
            last_epoch=last_epoch,
            next_producer_id=next_producer_id,
            client_version=client_version,
            start_ms=turn.wall_ms if txn.state in AT_REST else txn.start_ms,
        )
    )
    if next_producer_id != NO_PRODUCER_ID:
        return Answer(ErrorCode.NONE, next_producer_id, 0)
    return Answer(ErrorCode.NONE, txn.producer_id, epoch)


def fence(shard: TransactionShard, turn: Turn, txn: Transaction) -> None:
    """Abort an open transaction over its producer's head: with a newer epoch, so that the producer notices.

    Nobody gets to know that epoch; who asks for one later gets the next. Raises if a producer id is needed and none
    is at hand.
    """
    fenced = txn.to(State.PREPARE_EPOCH_FENCE, turn.wall_ms)
    bumps = shard.server_version >= EPOCH_PER_TRANSACTION
    next_producer_id = shard.new_producer_id() if bumps and txn.epochs_used_up else NO_PRODUCER_ID
    turn.write(
        fenced.to(
            State.PREPARE_ABORT,
            turn.wall_ms,
            producer_epoch=min(txn.producer_epoch + 1, MAX_EPOCH),
            last_epoch=txn.producer_epoch if bumps else NO_EPOCH,
            next_producer_id=next_producer_id,
            client_version=EPOCH_PER_TRANSACTION if bumps else 0,
        )
    )


def complete(shard: TransactionShard, turn: Turn, markers: Markers) -> None:
    """Every partition has its marker. Nothing happens if the transaction has moved on since they were asked for."""
    txn = shard.transactions.get(markers.transactional_id)
    if txn is None or txn.state not in DECIDED:
        return
    if (txn.producer_id, txn.producer_epoch) != (markers.producer_id, markers.producer_epoch):
        return
    rotates = txn.next_producer_id != NO_PRODUCER_ID
    turn.write(
        txn.to(
            State.COMPLETE_COMMIT if txn.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
            turn.wall_ms,
            producer_id=txn.next_producer_id if rotates else txn.producer_id,
            producer_epoch=0 if rotates else txn.producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
        )
    )
