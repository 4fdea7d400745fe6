"""Appends several batches in one call: batches that coordinators build, and batches that followers fetch.

`Log.append_as_leader` itself appends the single batch of a client's request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.log.replay import aborted_entry
from penstock.log.scan import CorruptBatchError
from penstock.log.segment import MAX_RELATIVE_OFFSET
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.batches import check_crc, iter_batches
from penstock.records.control import read_end_txn
from penstock.records.header import HEADER_SIZE, parse_header

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.log.log import Log
    from penstock.log.producers import AppendOrigin, BatchMetadata, Verification
    from penstock.log.segment import Segment
    from penstock.records.control import EndTxn
    from penstock.records.header import BatchHeader
    from penstock.records.validate import LeaderBatch, RecordError


class AppendInfo(NamedTuple):
    base_offset: int
    last_offset: int
    #: -1 when records keep their own timestamps.
    log_append_time: int
    log_start_offset: int
    duplicate: bool
    max_timestamp: int
    record_errors: tuple[RecordError, ...] = ()


class Prepared(NamedTuple):
    """Holds a batch that passed validation and has its final offsets, so that it can be appended."""

    header: BatchHeader
    data: tuple[Buffer, ...]
    marker: EndTxn | None


def duplicate_of(log: Log, batch: BatchMetadata) -> AppendInfo:
    """Returns the result of a produce request that repeats a batch. `batch` is the earlier batch in the log.

    The result has the offsets of the earlier batch. As in Kafka, its append time is the timestamp of that batch.
    """
    return AppendInfo(
        batch.first_offset, batch.last_offset, batch.timestamp, log.log_start_offset, True, batch.timestamp
    )


def larger_than_segment(log: Log, size: int) -> KafkaError:
    return KafkaError(
        ErrorCode.RECORD_LIST_TOO_LARGE,
        f"The batch has {size} bytes, more than segment.bytes={log.config.segment_bytes}: send smaller batches.",
    )


def check_verified(log: Log, header: BatchHeader, verification: Verification | None) -> None:
    """Raises KafkaError for a transactional batch if the coordinator has not confirmed its transaction (KIP-890)."""
    if not log.producers.is_verified(header, verification):
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"Producer {header.producer_id} has no open transaction in this partition: add the partition to a "
            "transaction first.",
        )


def check_producer_room(log: Log, now_ms: int) -> None:
    """Raises KafkaError if the logs of this node together already hold the maximum number of producer ids."""
    producer_ids = log.environment.producer_ids
    if not producer_ids.grant(1, now_ms):
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"The broker already remembers penstock.max.producer.ids={producer_ids.limit} producers: wait until some "
            "of them expire (producer.id.expiration.ms), or raise the limit.",
        )


def append_own(
    log: Log, batches: list[LeaderBatch], origin: AppendOrigin, now_ms: int, transaction_version: int
) -> AppendInfo:
    prepared: list[Prepared] = []
    for batch in batches:
        header = batch.header
        marker = None
        if header.producer_id >= 0:
            if header.is_control:
                marker = read_end_txn(b"".join((batch.head, batch.tail)))
            log.producers.validate(header, origin, marker=marker, transaction_version=transaction_version)
        if header.size > log.config.segment_bytes:
            raise larger_than_segment(log, header.size)
        prepared.append(Prepared(header, (batch.head, batch.tail), marker))
    append_prepared(log, prepared, now_ms)
    last = batches[-1].header
    return AppendInfo(
        batches[0].header.base_offset,
        last.last_offset,
        last.max_timestamp if last.log_append_time else -1,
        log.log_start_offset,
        False,
        max(batch.header.max_timestamp for batch in batches),
    )


def append_fetched(log: Log, records: Buffer, leader_epoch: int) -> AppendInfo | None:
    prepared: list[Prepared] = []
    expected = log.log_end_offset
    for header, view in iter_batches(records, allow_partial=True):
        check_crc(view)
        if header.base_offset < expected or header.last_offset_delta < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"The leader sent a batch at offset {header.base_offset}, but this log continues at offset {expected}.",
            )
        if header.partition_leader_epoch > leader_epoch:
            break
        marker = read_end_txn(view) if header.is_control and header.producer_id >= 0 else None
        prepared.append(Prepared(header, (view,), marker))
        expected = header.next_offset
    if not prepared:
        return None
    append_prepared(log, prepared, log.environment.clock.wall_ms())
    first, last = prepared[0].header, prepared[-1].header
    max_timestamp = max(batch.header.max_timestamp for batch in prepared)
    return AppendInfo(first.base_offset, last.last_offset, -1, log.log_start_offset, False, max_timestamp)


def start_with_first_batch(log: Log, records: Buffer) -> None:
    """Lowers the start of an empty log to the base offset of the first batch in `records`, if the log would start
    inside that batch.

    This happens after DeleteRecords: the source log may then start in the middle of a batch, but only whole batches are
    copied.
    """
    first = parse_header(memoryview(records)) if len(memoryview(records)) >= HEADER_SIZE else None
    if first is not None and 0 <= first.base_offset < log.log_end_offset < first.next_offset:
        log.truncate_fully_and_start_at(first.base_offset)


def append_prepared(log: Log, batches: list[Prepared], now_ms: int) -> None:
    """Appends the batches. Consecutive batches that go into the same segment are written with one call."""
    start = 0
    while start < len(batches):
        header = batches[start].header
        segment = log.segments.active
        try:
            rolls = log.rolling.is_due(segment, header.size, header.max_timestamp, header.last_offset, now_ms)
        except CorruptBatchError as error:
            raise log.health.corrupt(error) from error
        except OSError as error:
            raise log.health.failed(error) from error
        if rolls:
            segment = log.roll(header.last_offset, now_ms)
        room = log.config.segment_bytes - segment.size - header.size
        stop = start + 1
        while stop < len(batches):
            header = batches[stop].header
            if header.size > room or header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                break
            room -= header.size
            stop += 1
        _append_run(log, segment, batches[start:stop])
        start = stop


def _append_run(log: Log, segment: Segment, run: list[Prepared]) -> None:
    buffers: list[Buffer] = []
    for batch in run:
        buffers.extend(batch.data)
    try:
        segment.append_many([batch.header for batch in run], buffers)
    except OSError as error:
        raise log.health.failed(error) from error
    account_run(log, segment, run)


def account_run(log: Log, segment: Segment, run: list[Prepared]) -> None:
    """Updates the log after batches were written to a segment: log end offset, leader epochs and producer state."""
    for header, _, marker in run:
        if header.partition_leader_epoch != log.epochs.latest_epoch:
            log.assign_epoch(header.partition_leader_epoch, header.base_offset)
        log.advance(header.next_offset, header.size)
        if header.producer_id >= 0:
            _update_producers(log, segment, header, marker)


def _update_producers(log: Log, segment: Segment, header: BatchHeader, marker: EndTxn | None) -> None:
    completed = log.producers.update(header, marker)
    if completed is not None and completed.aborted:
        try:
            segment.append_aborted(aborted_entry(log.producers, completed))
        except OSError as error:
            # The log has the marker, but the transaction index has no entry for it. Recovery writes the entry; until
            # then this log takes no more writes.
            raise log.health.failed_midway(error) from error
