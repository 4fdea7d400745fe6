"""Selects the batches of a fetched partition that are visible at the reader's isolation level. Pure code."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import AbortedTransaction
from penstock.records.batches import crc_ok, iter_batches
from penstock.records.control import read_end_txn
from penstock.records.header import BatchHeader
from penstock.records.record import Record, read_records


@dataclass(slots=True)
class Fetched:
    topic: str
    partition: int
    fetch_offset: int
    """The offset that was requested; the first batch may also hold earlier records."""
    next_offset: int
    """The offset at which the next fetch starts."""
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    batches: list[tuple[BatchHeader, memoryview]]
    """The data batches, without control batches; for read_committed also without aborted batches."""
    leader_epoch: int = -1
    """The leader epoch of the last batch that was fetched, visible or not."""

    def records(self) -> list[Record]:
        """Returns all records from `fetch_offset` on. Decompresses them."""
        records: list[Record] = []
        for header, batch in self.batches:
            found = read_records(batch)
            if header.base_offset < self.fetch_offset:
                found = [record for record in found if record.offset >= self.fetch_offset]
            records += found
        return records


def visible_batches(
    data: memoryview,
    fetch_offset: int,
    *,
    aborted: Iterable[AbortedTransaction] | None = None,
    check_crc: bool = True,
) -> tuple[list[tuple[BatchHeader, memoryview]], int]:
    """Returns the data batches that a reader may see, and the offset after the last fetched batch.

    `aborted` lists the aborted transactions for read_committed; None means read_uncommitted.
    """
    return read_batches(data, fetch_offset, aborted=aborted, check_crc=check_crc)[:2]


def read_batches(
    data: memoryview,
    fetch_offset: int,
    *,
    aborted: Iterable[AbortedTransaction] | None = None,
    check_crc: bool = True,
) -> tuple[list[tuple[BatchHeader, memoryview]], int, int]:
    """Returns the result of `visible_batches` and the leader epoch of the last fetched batch.

    The records of an aborted transaction are dropped from its first offset to the abort marker of the same producer.
    """
    upcoming = deque(sorted(aborted or (), key=lambda each: each.first_offset))
    dropping: set[int] = set()
    visible = []
    next_offset, leader_epoch = fetch_offset, -1
    for header, batch in iter_batches(data, allow_partial=True):
        if check_crc and not crc_ok(batch):
            sentence = f"The batch at offset {header.base_offset} came damaged: its checksum is wrong."
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, sentence)
        if header.next_offset <= fetch_offset:
            continue
        next_offset, leader_epoch = header.next_offset, header.partition_leader_epoch
        while upcoming and upcoming[0].first_offset <= header.last_offset:
            dropping.add(upcoming.popleft().producer_id)
        if header.is_control:
            if header.producer_id in dropping:
                marker = read_end_txn(batch)
                if marker is not None and not marker.committed:
                    dropping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropping):
            visible.append((header, batch))
    return visible, next_offset, leader_epoch
