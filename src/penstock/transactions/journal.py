"""Encodes and decodes records of `__transaction_state`."""

from __future__ import annotations

from typing import NamedTuple

from penstock.protocol.codec import decode
from penstock.protocol.persisted.framing import PREFIX_BYTES, encode_key, encode_value
from penstock.protocol.persisted.transaction.transaction_log import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from penstock.transactions.states import State
from penstock.transactions.transaction import Transaction

TRANSACTION_LOG = 0
#: Records are flexible since transaction version 1.
FLEXIBLE_SINCE = 1


class JournalRecord(NamedTuple):
    """Holds a transactional id and its new state; a state of None is a tombstone."""

    transactional_id: str
    transaction: Transaction | None


def encode_record(record: JournalRecord, server_version: int) -> tuple[bytes, bytes | None]:
    key = encode_key(TransactionLogKey(transactional_id=record.transactional_id))
    if record.transaction is None:
        return key, None
    value_version = 1 if server_version >= FLEXIBLE_SINCE else 0
    return key, encode_value(_to_value(record.transaction, value_version), value_version)


def _to_value(txn: Transaction, value_version: int) -> TransactionLogValue:
    value = TransactionLogValue(
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        transaction_timeout_ms=txn.timeout_ms,
        transaction_status=int(txn.state),
        transaction_partitions=None if txn.state is State.EMPTY else _to_topics(txn),
        transaction_last_update_timestamp_ms=txn.update_ms,
        transaction_start_timestamp_ms=txn.start_ms,
    )
    if value_version >= 1:
        value.previous_producer_id = txn.previous_producer_id
        value.next_producer_id = txn.next_producer_id
        value.next_producer_epoch = txn.next_epoch
        value.client_transaction_version = txn.client_version
    return value


def _to_topics(txn: Transaction) -> list[PartitionsSchema]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(txn.partitions):
        topics.setdefault(topic, []).append(partition)
    return [PartitionsSchema(topic=topic, partition_ids=partitions) for topic, partitions in topics.items()]


def decode_record(key: bytes | None, value: bytes | None) -> JournalRecord | None:
    """Decodes a record. Returns None for an unknown type, so that records of newer versions stay in the log."""
    if key is None or len(key) < PREFIX_BYTES or int.from_bytes(key[:PREFIX_BYTES], "big") != TRANSACTION_LOG:
        return None
    transactional_id = decode(TransactionLogKey, 0, key, PREFIX_BYTES).transactional_id
    if value is None:
        return JournalRecord(transactional_id, None)
    version = int.from_bytes(value[:PREFIX_BYTES], "big")
    stored = decode(TransactionLogValue, version, value, PREFIX_BYTES)
    return JournalRecord(transactional_id, _from_value(transactional_id, stored))


def _from_value(transactional_id: str, value: TransactionLogValue) -> Transaction:
    return Transaction(
        transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=State(value.transaction_status),
        partitions=frozenset(
            (topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        update_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
        next_epoch=value.next_producer_epoch,
    )
