"""Rebuilds state from the batches of a log: producers, transactions, leader epochs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.log.scan import CorruptBatchError, scan_headers
from penstock.log.txn_index import AbortedTransaction
from penstock.records.batches import crc_ok
from penstock.records.control import EndTxn, read_end_txn

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.log.producers import CompletedTxn, ProducerStateManager
    from penstock.log.segment import Segment
    from penstock.records.header import BatchHeader


def batches_between(segments: Sequence[Segment], start: int, end: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
    """Yields (segment, position, header) of the batches that end at or after `start` and begin before `end`."""
    for slot, segment in enumerate(segments):
        next_base = segments[slot + 1].base_offset if slot + 1 < len(segments) else end
        if next_base <= start or segment.base_offset >= end or not segment.size:
            continue
        position = segment.position_of(start) if start > segment.base_offset else 0
        for found, header in scan_headers(segment.file, position, segment.size):
            if header.base_offset >= end:
                return
            yield segment, found, header


#: Batches with a producer id that recovery keeps in memory for the next pass; if there are more, they are read again.
MAX_KEPT = 100_000


@dataclass(slots=True)
class Recovered:
    """Holds facts about the last batches of a log, such as their producers and epochs.

    Recovery collects these facts while it verifies the batches, so that each batch is read only once.
    """

    start_offset: int
    #: (epoch, offset) where the leader epoch changes.
    epochs: list[tuple[int, int]] = field(default_factory=list)
    #: Batches of producers; None if there were too many to keep.
    batches: list[tuple[Segment, int, BatchHeader]] | None = field(default_factory=list)

    def note(self, segment: Segment, position: int, header: BatchHeader) -> None:
        if header.base_offset < self.start_offset:
            return
        if not self.epochs or self.epochs[-1][0] != header.partition_leader_epoch:
            self.epochs.append((header.partition_leader_epoch, header.base_offset))
        if header.producer_id >= 0 and self.batches is not None:
            self.batches.append((segment, position, header))
            if len(self.batches) > MAX_KEPT:
                self.batches = None

    def batches_from(self, log: Log, offset: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
        """Yields the batches from `offset` to the log end. May leave out batches without a producer id."""
        if self.batches is None:
            yield from batches_between(log.segments, offset, log.log_end_offset)
            return
        yield from batches_between(log.segments, offset, min(self.start_offset, log.log_end_offset))
        for found in self.batches:
            if offset <= found[2].last_offset < log.log_end_offset:
                yield found


def rebuild_producers(log: Log, recovered: Recovered | None = None) -> dict[int, list[AbortedTransaction]]:
    """Rebuilds the producer state from the newest snapshot that is not above the log end, and from all later batches.

    Returns the aborted transactions among these batches, by the base offset of the segment that has their marker.
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
    if recovered is None:
        recovered = Recovered(log.log_end_offset)
    for segment, position, header in recovered.batches_from(log, begin):
        if header.producer_id < 0:
            continue
        marker = _marker(segment, position, header) if header.is_control else None
        completed = producers.update(header, marker)
        if completed is not None and completed.aborted:
            aborted.setdefault(segment.base_offset, []).append(aborted_entry(producers, completed))
    producers.map_end_offset = log.log_end_offset
    producers.on_high_watermark(log.high_watermark)
    return aborted


def _marker(segment: Segment, position: int, header: BatchHeader) -> EndTxn | None:
    """Reads a transaction's marker. Verifies its checksum again, because the marker decides which records readers
    see."""
    data = segment.file.pread(header.size, position)
    if not crc_ok(data):
        raise CorruptBatchError(segment.file.path, position, "the checksum of a transaction's marker does not match")
    return read_end_txn(data)


def aborted_entry(producers: ProducerStateManager, completed: CompletedTxn) -> AbortedTransaction:
    stable = producers.last_stable_offset_after(completed)
    return AbortedTransaction(completed.producer_id, completed.first_offset, completed.last_offset, stable)
