"""Handles AddPartitionsToTxn: adds partitions to a transaction, or verifies that they belong to it.

A partition's leader asks the coordinator before it accepts the first batch of a transaction. With transaction version 0
or 1 the client has added the partition before, and the leader only verifies it. From version 2 on the leader adds the
partition for the producer.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import TopicPartition
from penstock.transactions.states import AT_REST, DECIDED, State
from penstock.transactions.transaction import PARTITION_BYTES, Transaction

if TYPE_CHECKING:
    from penstock.transactions.shard import TransactionShard
    from penstock.transactions.turn import Turn


def add(
    shard: TransactionShard,
    turn: Turn,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Collection[TopicPartition],
    client_version: int,
) -> ErrorCode:
    txn = _find(shard, transactional_id, producer_id, producer_epoch)
    if not isinstance(txn, Transaction):
        return txn
    begins = txn.state in AT_REST
    if not begins and txn.partitions.issuperset(partitions):
        return ErrorCode.NONE
    added = len(txn.partitions.union(partitions)) - len(txn.partitions)
    if not shard.allowance.grant(PARTITION_BYTES * added, turn.now_ms):
        return ErrorCode.POLICY_VIOLATION
    ongoing = txn.to(
        State.ONGOING,
        turn.wall_ms,
        partitions=txn.partitions.union(partitions),
        start_ms=turn.wall_ms if begins else txn.start_ms,
        client_version=client_version,
    )
    turn.write(ongoing)
    if begins and not ongoing.two_phase:
        shard.watch(ongoing, turn.now_ms + ongoing.timeout_ms)
    return ErrorCode.NONE


def verify(
    shard: TransactionShard,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Collection[TopicPartition],
) -> dict[TopicPartition, ErrorCode]:
    txn = _find(shard, transactional_id, producer_id, producer_epoch)
    if not isinstance(txn, Transaction):
        return dict.fromkeys(partitions, txn)
    return {
        partition: ErrorCode.NONE if partition in txn.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }


def _find(
    shard: TransactionShard, transactional_id: str, producer_id: int, producer_epoch: int
) -> Transaction | ErrorCode:
    """Returns the producer's transaction.

    Returns an error code if the transaction is unknown, is ending, or has another producer.
    """
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    txn = shard.transactions.get(transactional_id)
    if txn is None or producer_id not in (txn.producer_id, txn.owner.producer_id):
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if txn.owner != (producer_id, producer_epoch):
        return ErrorCode.PRODUCER_FENCED
    if txn.state in DECIDED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if txn.taken_over:
        return ErrorCode.INVALID_TXN_STATE
    return txn
