"""State that is derived from the batches, rebuilt from them: producers, transactions, leader epochs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.log.scan import scan_headers
from penstock.log.txn_index import AbortedTransaction
from penstock.records.control import read_end_txn

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.log.producers import CompletedTxn, ProducerStateManager
    from penstock.log.segment import Segment
    from penstock.records.header import BatchHeader


def batches_between(segments: list[Segment], start: int, end: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
    """(segment, position, header) of the batches that begin in [start, end)."""
    for slot, segment in enumerate(segments):
        next_base = segments[slot + 1].base_offset if slot + 1 < len(segments) else end
        if next_base <= start or segment.base_offset >= end or not segment.size:
            continue
        position = segment.position_of(start) if start > segment.base_offset else 0
        for found, header in scan_headers(segment.file, position, segment.size):
            if header.base_offset >= end:
                return
            yield segment, found, header


def rebuild_producers(log: Log) -> dict[int, list[AbortedTransaction]]:
    """From the newest snapshot at or below the end of the log, and the batches after it.

    Returns the aborted transactions that came by, under the base offset of the segment that they ended in.
    """
    environment = log.environment
    producers = log.producers
    start = log.snapshots.load_latest(
        producers,
        log.log_start_offset,
        log.log_end_offset,
        environment.clock.wall_ms(),
        environment.producer_expiration_ms,
    )
    aborted: dict[int, list[AbortedTransaction]] = {}
    begin = log.log_start_offset if start is None else start
    for segment, position, header in batches_between(log.segments, begin, log.log_end_offset):
        if header.producer_id < 0:
            continue
        marker = read_end_txn(segment.file.pread(header.size, position)) if header.is_control else None
        completed = producers.update(header, marker)
        if completed is not None and completed.aborted:
            aborted.setdefault(segment.base_offset, []).append(aborted_entry(producers, completed))
    producers.map_end_offset = log.log_end_offset
    producers.on_high_watermark(log.high_watermark)
    return aborted


def aborted_entry(producers: ProducerStateManager, completed: CompletedTxn) -> AbortedTransaction:
    stable = producers.last_stable_offset_after(completed)
    return AbortedTransaction(completed.producer_id, completed.first_offset, completed.last_offset, stable)
