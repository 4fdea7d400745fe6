"""Handles DescribeTransactions and ListTransactions, which change nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_65_describe_transactions, api_66_list_transactions
from penstock.transactions.states import State

if TYPE_CHECKING:
    from penstock.transactions.shard import TransactionShard

DescribedTransaction = api_65_describe_transactions.TransactionState
ListedTransaction = api_66_list_transactions.TransactionState


def describe(shard: TransactionShard, transactional_id: str) -> DescribedTransaction:
    if not transactional_id:
        return describe_error(transactional_id, ErrorCode.INVALID_REQUEST)
    txn = shard.transactions.get(transactional_id)
    if txn is None:
        return describe_error(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(txn.partitions):
        topics.setdefault(topic, []).append(partition)
    return DescribedTransaction(
        transactional_id=transactional_id,
        transaction_state=txn.state.label,
        transaction_timeout_ms=txn.timeout_ms,
        transaction_start_time_ms=txn.start_ms,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        topics=[
            api_65_describe_transactions.TopicData(topic=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ],
    )


def describe_error(transactional_id: str, code: ErrorCode) -> DescribedTransaction:
    return DescribedTransaction(error_code=code, transactional_id=transactional_id)


def list_transactions(
    shard: TransactionShard,
    wall_ms: int,
    *,
    states: Collection[State] = (),
    producer_ids: Collection[int] = (),
    longer_than_ms: int = -1,
    matches: Callable[[str], bool] | None = None,
) -> Iterator[ListedTransaction]:
    """Yields the transactions that match all given filters."""
    for txn in shard.transactions.values():
        if states and txn.state not in states:
            continue
        if producer_ids and txn.producer_id not in producer_ids:
            continue
        if longer_than_ms >= 0 and wall_ms - txn.start_ms <= longer_than_ms:
            continue
        if matches is not None and not matches(txn.transactional_id):
            continue
        yield ListedTransaction(
            transactional_id=txn.transactional_id,
            producer_id=txn.producer_id,
            transaction_state=txn.state.label,
        )
