"""Before the first batch of a transaction enters a partition, its coordinator is asked whether it belongs there.

Without that, a batch that was held up on its way could open a transaction that nobody ends (KIP-890). The partition
remembers that a look-up is under way; a marker or another batch in between makes it void.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.header import HEADER_SIZE, parse_header

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.broker.broker import Broker
    from penstock.broker.partition import Partition
    from penstock.log.producers import Verification

# Produce: until here the client has added the partition itself, and before that it knows fewer errors.
ABORTABLE_SINCE = 11
IMPLICIT_SINCE = 12

Verdict = "Verification | KafkaError"


class LookUp(NamedTuple):
    partition: Partition
    producer_id: int
    producer_epoch: int
    verification: Verification


def start(produced: Iterable[tuple[Partition, Buffer]], api_version: int) -> list[LookUp]:
    """The batches whose transaction their partition doesn't know yet. Empty once a transaction is under way."""
    found = []
    for partition, records in produced:
        if len(memoryview(records)) < HEADER_SIZE:
            continue  # the append will say what is wrong with it
        header = parse_header(records)
        if not header.is_transactional or header.producer_id < 0:
            continue
        verification = partition.leader_log().producers.start_verification(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            supports_epoch_bump=api_version >= IMPLICIT_SINCE,
        )
        if verification is not None:
            found.append(LookUp(partition, header.producer_id, header.producer_epoch, verification))
    return found


async def ask(
    broker: Broker, transactional_id: str, look_ups: list[LookUp], api_version: int
) -> dict[Partition, Verification | KafkaError]:
    """What each partition gets to know: the proof to append with, or why not."""
    if not broker.settings.bool("transaction.partition.verification.enable"):
        return {look_up.partition: look_up.verification for look_up in look_ups}
    verdicts: dict[Partition, Verification | KafkaError] = {}
    for producer in {(look_up.producer_id, look_up.producer_epoch) for look_up in look_ups}:
        mine = [look_up for look_up in look_ups if (look_up.producer_id, look_up.producer_epoch) == producer]
        partitions = [(look_up.partition.topic, look_up.partition.index) for look_up in mine]
        codes = await broker.transactions.admit(
            transactional_id, *producer, partitions, add=api_version >= IMPLICIT_SINCE
        )
        for look_up, name in zip(mine, partitions):
            code = codes[name]
            verdicts[look_up.partition] = (
                look_up.verification if code is ErrorCode.NONE else _refusal(code, api_version)
            )
    return verdicts


def _refusal(code: ErrorCode, api_version: int) -> KafkaError:
    """In words that the producer's version knows; NOT_ENOUGH_REPLICAS makes all of them send the batch again."""
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "The coordinator knows a newer epoch of the producer.")
        case ErrorCode.TRANSACTION_ABORTABLE if api_version < ABORTABLE_SINCE:
            return KafkaError(ErrorCode.INVALID_TXN_STATE, "The partition was not added to the transaction.")
        case ErrorCode.CONCURRENT_TRANSACTIONS if api_version < IMPLICIT_SINCE:
            return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "The transaction before is ending: send it again.")
        case ErrorCode.COORDINATOR_LOAD_IN_PROGRESS | ErrorCode.COORDINATOR_NOT_AVAILABLE | ErrorCode.NOT_COORDINATOR:
            return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "The coordinator can't be asked now: send it again.")
        case _:
            return KafkaError(code, "The transaction's coordinator refused the partition.")
