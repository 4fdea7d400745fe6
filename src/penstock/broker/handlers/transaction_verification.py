"""Verifies that a partition belongs to a transaction, before the transaction's first batch is appended there.

This node asks the transaction's coordinator. Without this verification, a delayed batch could start a transaction that
never ends (KIP-890). A marker that is written to the partition meanwhile invalidates the verification. Then, or if the
coordinator answers that the producer's previous transaction is still ending, the verification starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.header import HEADER_SIZE, parse_header

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.broker.broker import Broker
    from penstock.broker.replicas.partition import Partition
    from penstock.log.producers import Verification

# Produce versions since which clients know TRANSACTION_ABORTABLE, and since which the coordinator adds the partition.
ABORTABLE_SINCE = 11
IMPLICIT_SINCE = 12


class PendingVerification(NamedTuple):
    partition: Partition
    producer_id: int
    producer_epoch: int
    sequence: int
    #: True if the coordinator adds the partition, as clients of transaction version 2 expect.
    implicit: bool
    verification: Verification
    #: The leader epoch in which the verification started. The verification is void in a later epoch, because the log
    #: was loaded again or another node led meanwhile.
    leader_epoch: int

    @property
    def producer(self) -> tuple[int, int]:
        return self.producer_id, self.producer_epoch


def start(
    partition: Partition, producer_id: int, producer_epoch: int, sequence: int, *, implicit: bool
) -> PendingVerification | None:
    """Starts to verify that the partition belongs to the transaction.

    Returns None if the transaction is already open in the partition.
    """
    verification = partition.leader_log().producers.start_verification(
        producer_id, producer_epoch, sequence, supports_epoch_bump=implicit
    )
    if verification is None:
        return None
    return PendingVerification(
        partition, producer_id, producer_epoch, sequence, implicit, verification, partition.leader_epoch
    )


def start_produced(produced: Iterable[tuple[Partition, Buffer]], api_version: int) -> list[PendingVerification]:
    """Starts to verify each batch whose transaction is not open in its partition.

    Returns the pending verifications; an empty list for most requests.
    """
    found = []
    for partition, records in produced:
        if len(memoryview(records)) < HEADER_SIZE:
            continue  # the append reports the error
        header = parse_header(records)
        if not header.is_transactional or header.producer_id < 0:
            continue
        implicit = api_version >= IMPLICIT_SINCE
        pending = start(partition, header.producer_id, header.producer_epoch, header.base_sequence, implicit=implicit)
        if pending is not None:
            found.append(pending)
    return found


async def ask(
    broker: Broker, transactional_id: str, pending: list[PendingVerification]
) -> dict[Partition, Verification | ErrorCode | None]:
    """Asks the transaction's coordinator to verify the partitions.

    Returns for each partition a `Verification`, which allows the append; an error code, which refuses it; or None if
    no verification is needed.
    """
    settings = broker.settings
    if not settings.bool("transaction.partition.verification.enable"):
        return {each.partition: each.verification for each in pending}
    loop = asyncio.get_running_loop()
    pause = settings.int("add.partitions.to.txn.retry.backoff.ms") / 1000
    deadline = loop.time() + settings.int("add.partitions.to.txn.retry.backoff.max.ms") / 1000
    verdicts = await _ask_once(broker, transactional_id, pending)
    while loop.time() + pause <= deadline:
        waiting = [each for each in pending if _again(each, verdicts[each.partition])]
        if not waiting:
            break
        if any(verdicts[each.partition] is _ENDING for each in waiting):
            await asyncio.sleep(pause)
        pending = []
        for each in waiting:
            verdicts[each.partition] = None
            with suppress(KafkaError):  # the partition is gone: the append reports it
                again = start(
                    each.partition, each.producer_id, each.producer_epoch, each.sequence, implicit=each.implicit
                )
                if again is not None:
                    pending.append(again)
        verdicts |= await _ask_once(broker, transactional_id, pending)
    for each in pending:
        if _is_void(each, verdicts[each.partition]):
            verdicts[each.partition] = _ENDING
    return verdicts


def _again(pending: PendingVerification, verdict: Verification | ErrorCode | None) -> bool:
    return (pending.implicit and verdict is _ENDING) or _is_void(pending, verdict)


def _is_void(pending: PendingVerification, verdict: Verification | ErrorCode | None) -> bool:
    """Returns True if the verification is invalid, because a marker was written before the coordinator answered."""
    if verdict is None or isinstance(verdict, ErrorCode):
        return False
    return not pending.partition.log.producers.is_admitted(pending.producer_id, pending.producer_epoch, verdict)


_ENDING = ErrorCode.CONCURRENT_TRANSACTIONS
#: The transaction's coordinator cannot answer at the moment.
UNREACHABLE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)


async def _ask_once(
    broker: Broker, transactional_id: str, pending: list[PendingVerification]
) -> dict[Partition, Verification | ErrorCode | None]:
    verdicts: dict[Partition, Verification | ErrorCode | None] = {}
    for producer in {each.producer for each in pending}:
        mine = [each for each in pending if each.producer == producer]
        names = [(each.partition.topic, each.partition.index) for each in mine]
        codes = await broker.transactions.admit(transactional_id, *producer, names, add=mine[0].implicit)
        for each, name in zip(mine, names):
            code = codes[name]
            if each.partition.leader_epoch != each.leader_epoch:
                code = ErrorCode.NOT_COORDINATOR
            verdicts[each.partition] = each.verification if code is ErrorCode.NONE else code
            if code not in (ErrorCode.NONE, _ENDING):
                each.partition.log.producers.end_verification(each.producer_id, each.verification)
    return verdicts


def produce_refusal(code: ErrorCode, api_version: int) -> KafkaError:
    """Returns the error for the producer. Replaces error codes that its request version does not know.

    Some codes become NOT_ENOUGH_REPLICAS: this error makes producers of all versions send the batch again.
    """
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                "A newer producer with the same transactional id has fenced this producer: close this producer.",
            )
        case ErrorCode.TRANSACTION_ABORTABLE if api_version < ABORTABLE_SINCE:
            return KafkaError(
                ErrorCode.INVALID_TXN_STATE, "The partition is not in the transaction: abort the transaction."
            )
        case ErrorCode.CONCURRENT_TRANSACTIONS if api_version < IMPLICIT_SINCE:
            return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "The previous transaction is still ending: retry.")
        case _ if code in UNREACHABLE:
            return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "The transaction's coordinator is not available: retry.")
        case _:
            return KafkaError(code, "The transaction's coordinator refused the partition: abort the transaction.")
