"""Handles EndTxn, fences producers, and completes transactions once all markers are written.

With transaction version 2 a producer gets a new epoch at the end of each transaction. So the epoch in an EndTxn request
shows which transaction the request is for. A request with the previous epoch is a retry for the transaction that has
just ended. A request with the current epoch is for the next transaction. So a retry can't end the next transaction.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import (
    EPOCH_PER_TRANSACTION,
    MAX_PRODUCER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TRANSACTION_TIMEOUT_MS,
)
from penstock.transactions.states import AT_REST, DECIDED, State
from penstock.transactions.transaction import Owner, Transaction, used_up
from penstock.transactions.turn import Answer, Markers, Turn

if TYPE_CHECKING:
    from penstock.transactions.shard import TransactionShard


class Verdict(Enum):
    END = "record the decision and write markers"
    DONE = "already ended with this outcome"
    WAIT = "ending with this outcome"
    INVALID = "cannot end with this outcome"
    FENCED = "the producer is fenced"


COMMIT, ABORT = True, False

#: Before transaction version 2: requests have the current epoch, all others are fenced.
SAME_EPOCH: dict[tuple[State, bool], Verdict] = {
    (State.ONGOING, COMMIT): Verdict.END,
    (State.ONGOING, ABORT): Verdict.END,
    (State.PREPARE_COMMIT, COMMIT): Verdict.WAIT,
    (State.PREPARE_ABORT, ABORT): Verdict.WAIT,
    (State.COMPLETE_COMMIT, COMMIT): Verdict.DONE,
    (State.COMPLETE_ABORT, ABORT): Verdict.DONE,
}
#: Since transaction version 2, with the current epoch. A producer that does not know whether it started a transaction
#: may abort.
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
#: Since transaction version 2, with the previous epoch: a retry of an end.
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
    if producer_id not in (txn.producer_id, txn.owner.producer_id) and not retry:
        return Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if (producer_id, producer_epoch) != txn.owner and not retry:
        return Answer(ErrorCode.PRODUCER_FENCED)
    table = RETRY if retry else CURRENT if bumps else SAME_EPOCH
    match table.get((txn.state, commit), Verdict.INVALID):
        case Verdict.END:
            try:
                return _prepare(shard, turn, txn, commit, client_version)
            except KafkaError as error:
                return Answer(error.code)
        case Verdict.DONE:
            return Answer(ErrorCode.NONE, *txn.owner)
        case Verdict.WAIT:
            return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        case Verdict.INVALID:
            return Answer(ErrorCode.INVALID_TXN_STATE)
        case Verdict.FENCED:
            return Answer(ErrorCode.PRODUCER_FENCED)


def _is_retry(txn: Transaction, producer_id: int, producer_epoch: int) -> bool:
    owner = txn.owner
    if producer_id == owner.producer_id and producer_epoch == owner.producer_epoch - 1:
        return not txn.taken_over  # if taken over, the previous epoch is the producer that lost the transaction
    used_up_then = producer_id == txn.previous_producer_id and producer_epoch == MAX_PRODUCER_EPOCH - 1
    return used_up_then and producer_id != owner.producer_id and owner.producer_epoch == 0 and not txn.taken_over


def _prepare(shard: TransactionShard, turn: Turn, txn: Transaction, commit: bool, client_version: int) -> Answer:
    epoch, last_epoch = txn.producer_epoch, txn.last_epoch
    following, bumps = txn.owner, client_version >= EPOCH_PER_TRANSACTION
    if bumps:
        following = epoch_after(shard, txn.owner)
        epoch, last_epoch = min(epoch + 1, MAX_PRODUCER_EPOCH), epoch
    stays = following == (txn.producer_id, epoch)
    turn.write(
        txn.to(
            State.PREPARE_COMMIT if commit else State.PREPARE_ABORT,
            turn.wall_ms,
            producer_epoch=epoch,
            last_epoch=last_epoch,
            previous_producer_id=txn.owner.producer_id,
            client_version=client_version,
            start_ms=turn.wall_ms if txn.state in AT_REST else txn.start_ms,
            **({} if stays else _next(following)),
        )
    )
    return Answer(ErrorCode.NONE, *following)


def epoch_after(shard: TransactionShard, owner: Owner) -> Owner:
    """Returns the producer id and epoch after the producer's next epoch bump.

    If its epochs are used up, the producer gets a new id. Raises KafkaError if no id is available.
    """
    if used_up(owner.producer_epoch):
        return Owner(shard.new_producer_id(), 0)
    return Owner(owner.producer_id, owner.producer_epoch + 1)


def _next(owner: Owner) -> dict[str, int]:
    """Returns the record fields for the next producer of the transactional id: `next_producer_id` and `next_epoch`.

    Epoch 0, the first epoch of a new producer id, is written as NO_PRODUCER_EPOCH.
    """
    return {
        "next_producer_id": owner.producer_id,
        "next_epoch": owner.producer_epoch if owner.producer_epoch > 0 else NO_PRODUCER_EPOCH,
    }


def take_over(shard: TransactionShard, turn: Turn, txn: Transaction, timeout_ms: int) -> Answer:
    """Keeps an open transaction for a new producer, which may only end it. Fences the earlier producers.

    The markers still name the producer that wrote the records. Raises KafkaError if a new producer id is needed and
    none is available.
    """
    owner = epoch_after(shard, txn.owner)
    turn.write(
        txn.to(
            State.ONGOING,
            turn.wall_ms,
            timeout_ms=NO_TRANSACTION_TIMEOUT_MS if txn.two_phase else timeout_ms,
            next_producer_id=owner.producer_id,
            next_epoch=owner.producer_epoch,
        )
    )
    return Answer(ErrorCode.NONE, *owner, txn.producer_id, txn.producer_epoch)


def fence(shard: TransactionShard, turn: Turn, txn: Transaction) -> None:
    """Aborts an open transaction without a request of its producer, and fences the producer with a newer epoch.

    The newer epoch is only for the fence: the next producer of the transactional id gets a later epoch. Raises
    KafkaError if a new producer id is needed and none is available.
    """
    fenced = txn.to(State.PREPARE_EPOCH_FENCE, turn.wall_ms)
    bumps = shard.server_version >= EPOCH_PER_TRANSACTION
    following: dict[str, int] = {}
    if txn.taken_over or (bumps and txn.epochs_used_up):
        following = _next(epoch_after(shard, txn.owner))
    turn.write(
        fenced.to(
            State.PREPARE_ABORT,
            turn.wall_ms,
            producer_epoch=min(txn.producer_epoch + 1, MAX_PRODUCER_EPOCH),
            last_epoch=txn.producer_epoch if bumps else NO_PRODUCER_EPOCH,
            previous_producer_id=txn.owner.producer_id,
            client_version=EPOCH_PER_TRANSACTION if bumps else 0,
            **following,
        )
    )


def complete(shard: TransactionShard, turn: Turn, markers: Markers) -> None:
    """Completes the transaction once every partition has its marker; no-op if a newer transaction has begun."""
    txn = shard.transactions.get(markers.transactional_id)
    if txn is None or txn.state not in DECIDED:
        return
    if (txn.producer_id, txn.producer_epoch) != (markers.producer_id, markers.producer_epoch):
        return
    owner = txn.owner
    turn.write(
        txn.to(
            State.COMPLETE_COMMIT if txn.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
            turn.wall_ms,
            producer_id=owner.producer_id,
            producer_epoch=owner.producer_epoch,
            previous_producer_id=txn.previous_producer_id,
            next_producer_id=NO_PRODUCER_ID,
            next_epoch=NO_PRODUCER_EPOCH,
            partitions=frozenset(),
        )
    )
