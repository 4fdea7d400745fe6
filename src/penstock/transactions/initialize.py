"""Handles InitProducerId: assigns a transactional id to a producer, with a new epoch.

A new producer gets the next epoch and thus fences the previous producer. A producer that continues after an error sends
its producer id and epoch (KIP-360); it gets the next epoch only if no other producer has taken the transactional id
meanwhile. With two-phase commit (KIP-939), transactions have no timeout. The new producer may then keep the open
transaction of the previous producer, and end it as an external coordinator decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TRANSACTION_TIMEOUT_MS
from penstock.transactions.ending import fence, take_over
from penstock.transactions.states import DECIDED, State
from penstock.transactions.transaction import ID_BYTES, Owner, Transaction, used_up
from penstock.transactions.turn import Answer, Turn

if TYPE_CHECKING:
    from penstock.transactions.shard import TransactionShard

#: Epoch of the first producer of a transactional id; the simulator begins near the last epoch.
FIRST_EPOCH = 0


def initialize(
    shard: TransactionShard,
    turn: Turn,
    transactional_id: str,
    timeout_ms: int,
    expected: Owner | None = None,
    *,
    two_phase: bool = False,
    keep: bool = False,
) -> Answer:
    """Handles InitProducerId. With `keep`, an open transaction is kept; otherwise it is aborted."""
    try:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty: give an id.")
        timeout_ms = _timeout_ms(shard, timeout_ms, two_phase)
        return _initialize(shard, turn, transactional_id, timeout_ms, expected, keep)
    except KafkaError as error:
        return Answer(error.code)


def _timeout_ms(shard: TransactionShard, asked_ms: int, two_phase: bool) -> int:
    if not two_phase:
        if not 0 < asked_ms <= shard.config.max_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                "transaction.timeout.ms must be above 0 and at most transaction.max.timeout.ms: set another timeout.",
            )
        return asked_ms
    if not shard.config.two_phase_commit:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "Two-phase commit is disabled: set transaction.two.phase.commit.enable on the brokers.",
        )
    return NO_TRANSACTION_TIMEOUT_MS


def _initialize(
    shard: TransactionShard, turn: Turn, transactional_id: str, timeout_ms: int, expected: Owner | None, keep: bool
) -> Answer:
    txn = shard.transactions.get(transactional_id)
    if txn is None:
        if not shard.allowance.grant(ID_BYTES + len(transactional_id), turn.now_ms):
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, "The coordinator's memory is full: raise penstock.coordinator.max.bytes."
            )
        txn = Transaction(transactional_id, shard.new_producer_id(), NO_PRODUCER_EPOCH, timeout_ms)
    elif expected is not None:
        _check_owner(txn, expected)
    if txn.state in DECIDED:
        return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    if txn.state is State.ONGOING and keep:
        if expected not in (None, txn.owner):
            raise _taken()
        return take_over(shard, turn, txn, timeout_ms)
    if txn.state is State.ONGOING:
        fence(shard, turn, txn)
        return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    renewed = _renew(shard, turn, txn, timeout_ms, expected)
    turn.write(renewed)
    return Answer(ErrorCode.NONE, renewed.producer_id, renewed.producer_epoch)


def _check_owner(txn: Transaction, expected: Owner) -> None:
    """Raises KafkaError unless the producer owns the transactional id.

    Does not check the epoch. The epoch is checked later, when it is bumped.
    """
    if expected.producer_id == txn.owner.producer_id:
        return
    if expected.producer_id == txn.previous_producer_id and used_up(expected.producer_epoch):
        return  # it may have missed the answer with its new id
    raise _taken()


def _taken() -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED, "Another producer has taken the transactional id: close this producer."
    )


def _renew(
    shard: TransactionShard, turn: Turn, txn: Transaction, timeout_ms: int, expected: Owner | None
) -> Transaction:
    producer_id, epoch = txn.producer_id, txn.producer_epoch
    if epoch == NO_PRODUCER_EPOCH:
        epoch, last_epoch = FIRST_EPOCH, NO_PRODUCER_EPOCH
    elif expected is None or expected.producer_epoch == epoch:
        last_epoch = epoch if expected is not None else NO_PRODUCER_EPOCH
        if txn.epochs_used_up:
            producer_id, epoch = shard.new_producer_id(), 0
        else:
            epoch += 1
    elif expected.producer_epoch == txn.last_epoch:
        last_epoch = txn.last_epoch  # a retry: another producer would have cleared the last epoch
    else:
        raise KafkaError(
            ErrorCode.PRODUCER_FENCED,
            f"The producer's epoch {expected.producer_epoch} is fenced: start the producer again.",
        )
    return txn.to(
        State.EMPTY,
        turn.wall_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        last_epoch=last_epoch,
        next_producer_id=NO_PRODUCER_ID,
        next_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=-1,
    )
