"""Before the first batch of a transaction enters a partition, its coordinator is asked whether it belongs there.

Without that, a batch that was held up on its way could open a transaction that nobody ends (KIP-890). The partition
remembers that a look-up is under way; a marker or another batch in between makes it void. So whoever waits for the
transaction before to end has to start the look-up anew, or the marker of that end would void it; and so has whoever was
overtaken by that marker on the way to the coordinator.
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

# Produce: until here the client has added the partition itself, and before that it knows fewer errors.
ABORTABLE_SINCE = 11
IMPLICIT_SINCE = 12


class LookUp(NamedTuple):
    partition: Partition
    producer_id: int
    producer_epoch: int
    sequence: int
    #: Whether the coordinator adds the partition, as clients of transaction version 2 expect.
    implicit: bool
    verification: Verification
    #: In which it began. A later epoch has read the log anew, or another node has written to it: it knows no look-up.
    leader_epoch: int

    @property
    def producer(self) -> tuple[int, int]:
        return self.producer_id, self.producer_epoch


def start(
    partition: Partition, producer_id: int, producer_epoch: int, sequence: int, *, implicit: bool
) -> LookUp | None:
    """None if the transaction is open here already, and needs no look-up."""
    verification = partition.leader_log().producers.start_verification(
        producer_id, producer_epoch, sequence, supports_epoch_bump=implicit
    )
    if verification is None:
        return None
    return LookUp(partition, producer_id, producer_epoch, sequence, implicit, verification, partition.leader_epoch)


def start_produced(produced: Iterable[tuple[Partition, Buffer]], api_version: int) -> list[LookUp]:
    """The batches whose transaction their partition doesn't know yet. Empty once a transaction is under way."""
    found = []
    for partition, records in produced:
        if len(memoryview(records)) < HEADER_SIZE:
            continue  # the append will say what is wrong with it
        header = parse_header(records)
        if not header.is_transactional or header.producer_id < 0:
            continue
        implicit = api_version >= IMPLICIT_SINCE
        look_up = start(partition, header.producer_id, header.producer_epoch, header.base_sequence, implicit=implicit)
        if look_up is not None:
            found.append(look_up)
    return found


async def ask(
    broker: Broker, transactional_id: str, look_ups: list[LookUp]
) -> dict[Partition, Verification | ErrorCode | None]:
    """For each partition the proof to append with, or why not; None where none is needed any more."""
    settings = broker.settings
    if not settings.bool("transaction.partition.verification.enable"):
        return {look_up.partition: look_up.verification for look_up in look_ups}
    loop = asyncio.get_running_loop()
    pause = settings.int("add.partitions.to.txn.retry.backoff.ms") / 1000
    deadline = loop.time() + settings.int("add.partitions.to.txn.retry.backoff.max.ms") / 1000
    verdicts = await _ask_once(broker, transactional_id, look_ups)
    while loop.time() + pause <= deadline:
        waiting = [each for each in look_ups if _again(each, verdicts[each.partition])]
        if not waiting:
            break
        if any(verdicts[each.partition] is _ENDING for each in waiting):
            await asyncio.sleep(pause)
        look_ups = []
        for each in waiting:
            verdicts[each.partition] = None
            with suppress(KafkaError):  # the partition went away: the append will say so
                again = start(
                    each.partition, each.producer_id, each.producer_epoch, each.sequence, implicit=each.implicit
                )
                if again is not None:
                    look_ups.append(again)
        verdicts |= await _ask_once(broker, transactional_id, look_ups)
    for each in look_ups:
        if _is_void(each, verdicts[each.partition]):
            verdicts[each.partition] = _ENDING
    return verdicts


def _again(look_up: LookUp, verdict: Verification | ErrorCode | None) -> bool:
    return (look_up.implicit and verdict is _ENDING) or _is_void(look_up, verdict)


def _is_void(look_up: LookUp, verdict: Verification | ErrorCode | None) -> bool:
    """The marker of the transaction before came after the look-up had begun, and before its answer."""
    if verdict is None or isinstance(verdict, ErrorCode):
        return False
    return not look_up.partition.log.producers.is_admitted(look_up.producer_id, look_up.producer_epoch, verdict)


_ENDING = ErrorCode.CONCURRENT_TRANSACTIONS
#: The transaction's coordinator has no answer now.
UNREACHABLE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)


async def _ask_once(
    broker: Broker, transactional_id: str, look_ups: list[LookUp]
) -> dict[Partition, Verification | ErrorCode | None]:
    verdicts: dict[Partition, Verification | ErrorCode | None] = {}
    for producer in {look_up.producer for look_up in look_ups}:
        mine = [look_up for look_up in look_ups if look_up.producer == producer]
        names = [(look_up.partition.topic, look_up.partition.index) for look_up in mine]
        codes = await broker.transactions.admit(transactional_id, *producer, names, add=mine[0].implicit)
        for look_up, name in zip(mine, names):
            code = codes[name]
            if look_up.partition.leader_epoch != look_up.leader_epoch:
                code = ErrorCode.NOT_COORDINATOR
            verdicts[look_up.partition] = look_up.verification if code is ErrorCode.NONE else code
            if code not in (ErrorCode.NONE, _ENDING):
                look_up.partition.log.producers.end_verification(look_up.producer_id, look_up.verification)
    return verdicts


def produce_refusal(code: ErrorCode, api_version: int) -> KafkaError:
    """In words that the producer's version knows; NOT_ENOUGH_REPLICAS makes all of them send the batch again."""
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "The coordinator knows a newer epoch of the producer.")
        case ErrorCode.TRANSACTION_ABORTABLE if api_version < ABORTABLE_SINCE:
            return KafkaError(ErrorCode.INVALID_TXN_STATE, "The partition was not added to the transaction.")
        case ErrorCode.CONCURRENT_TRANSACTIONS if api_version < IMPLICIT_SINCE:
            return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "The transaction before is ending: send it again.")
        case _ if code in UNREACHABLE:
            return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "The coordinator can't be asked now: send it again.")
        case _:
            return KafkaError(code, "The transaction's coordinator refused the partition.")
