"""Compacts a log batch by batch: decides which records stay, and builds the new batches.

A compaction reads the same batches twice. First an `OffsetMap` collects the latest offset of each key in the dirty
part. Then a `Compactor` decides on each batch by these rules:

- A record stays if no later record has its key. Records keep their offsets. Batches keep their first and last offset,
  because a producer's last sequence number is computed from these two offsets.
- A tombstone (no value) stays until the batch's delete horizon, so that slow readers see it. The horizon is set when
  compaction first meets the tombstone: now + delete.retention.ms, kept in the base timestamp. The tombstone stays
  longer while a replica is out of sync, because that replica may have an older record of the key.
- Records of an aborted transaction are removed. Its marker stays while compaction still finds data batches of the
  transaction. After that, the marker gets a delete horizon like a tombstone.
- A batch without remaining records is removed. But its header stays if it has the last sequence of an active producer,
  or if it is the last batch of the compaction, so that the log end offset does not change. If the producer's last batch
  is not committed, its last committed batch stays too: a truncation may remove the later batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.protocol.vocabulary import NO_TIMESTAMP
from penstock.records.build import seal
from penstock.records.compression import compress
from penstock.records.control import ControlType, control_type
from penstock.records.header import COMPRESSION_MASK, DELETE_HORIZON_FLAG, BatchHeader
from penstock.records.record import MAX_UNCOMPRESSED_BYTES, read_records
from penstock.records.scan import RawRecord, raw_records
from penstock.records.varint import varint

if TYPE_CHECKING:
    from typing_extensions import Buffer

_DIGEST_SIZE = 16


class AbortedTransaction(Protocol):
    """Holds the fields of a transaction index entry that compaction needs."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...


class LastRecord(NamedTuple):
    """Identifies the batch from which a producer's state is rebuilt.

    This is the data batch that ends at `last_data_offset`, or the marker with `producer_epoch` if that offset is None.
    """

    last_data_offset: int | None
    producer_epoch: int


class LastRecords:
    """Collects the last record of some producers, from batches that are added in offset order."""

    def __init__(self, producer_ids: Iterable[int]) -> None:
        self._wanted = frozenset(producer_ids)
        self.found: dict[int, LastRecord] = {}

    def add(self, header: BatchHeader) -> None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        if producer_id not in self._wanted:
            return
        if not header.is_control:
            self.found[producer_id] = LastRecord(header.last_offset, epoch)
        elif producer_id not in self.found or self.found[producer_id].producer_epoch != epoch:
            self.found[producer_id] = LastRecord(None, epoch)


def fingerprint(key: bytes) -> bytes:
    """Returns a key of less than 16 bytes unchanged, and a 16-byte digest of a longer key.

    So a short key never equals the digest of another key.
    """
    return key if len(key) < _DIGEST_SIZE else blake2b(key, digest_size=_DIGEST_SIZE).digest()


@dataclass(slots=True)
class TransactionScan:
    """Tracks transactions while batches are read in offset order.

    The transaction index tells which transactions were aborted; the caller passes its entries to `add_aborted`.
    """

    on_kept_abort: Callable[[AbortedTransaction], None] | None = None
    _pending: list[tuple[int, int, AbortedTransaction]] = field(default_factory=list)
    _aborted: dict[int, tuple[AbortedTransaction, bool]] = field(default_factory=dict)
    _committed: set[int] = field(default_factory=set)
    _count: int = 0

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Adds aborted transactions that overlap the offsets to be read next. A transaction may be added twice."""
        for transaction in transactions:
            self._count += 1  # unique, so that entries are never compared beyond it
            heapq.heappush(self._pending, (transaction.first_offset, self._count, transaction))

    def data_is_aborted(self, header: BatchHeader) -> bool:
        """Returns True if the data batch belongs to an aborted transaction.

        Also notes that this compaction has read data of the transaction; `marker_is_spent` uses this.
        """
        self._start_up_to(header)
        if not header.is_transactional:
            return False
        aborted = self._aborted.get(header.producer_id)
        if aborted is None:
            self._committed.add(header.producer_id)
            return False
        self._aborted[header.producer_id] = (aborted[0], True)
        return True

    def marker_is_spent(self, header: BatchHeader, batch: Buffer) -> bool:
        """Returns True if the control batch is a transaction marker that compaction may delete after its delete
        horizon.

        A marker may be deleted if this compaction has read no data batch of its transaction, or if the control batch is
        already empty.
        """
        self._start_up_to(header)
        if header.records_count == 0:
            return True  # emptied in an earlier round
        match control_type(read_records(batch)[0].key):
            case ControlType.ABORT:
                aborted, seen = self._aborted.pop(header.producer_id, (None, False))
                if aborted is not None and seen and self.on_kept_abort is not None:
                    self.on_kept_abort(aborted)
                return not seen
            case ControlType.COMMIT:
                if header.producer_id not in self._committed:
                    return True
                self._committed.remove(header.producer_id)
                return False
            case _:
                return False

    def _start_up_to(self, header: BatchHeader) -> None:
        while self._pending and self._pending[0][0] <= header.last_offset:
            transaction = heapq.heappop(self._pending)[2]
            if transaction.last_offset >= header.base_offset:  # else its marker was passed already
                self._aborted.setdefault(transaction.producer_id, (transaction, False))


@dataclass(slots=True)
class OffsetMap:
    """Maps each key to its latest offset. The map covers the offsets from `start_offset` to `latest_offset`."""

    start_offset: int
    max_keys: int
    latest_offset: int = -1
    _offsets: dict[bytes, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._offsets)

    def add_batch(self, header: BatchHeader, batch: Buffer, transactions: TransactionScan) -> bool:
        """Adds the keys of a batch. Returns False if the map is full: the compaction then ends before this batch."""
        if header.is_control:
            transactions.marker_is_spent(header, batch)
        elif not transactions.data_is_aborted(header) and not self._add_records(header, batch):
            return False
        if header.last_offset >= self.start_offset:
            self.latest_offset = max(self.latest_offset, header.last_offset)
        return True

    def _add_records(self, header: BatchHeader, batch: Buffer) -> bool:
        offsets, base = self._offsets, header.base_offset
        for record in raw_records(header, batch):
            offset = base + record.offset_delta
            if record.key is None or offset < self.start_offset:
                continue
            key = fingerprint(record.key)
            if len(offsets) >= self.max_keys and key not in offsets:
                return False
            offsets[key] = offset
        return True

    def superseded(self, key: bytes, offset: int) -> bool:
        return self._offsets.get(fingerprint(key), -1) > offset


@dataclass(slots=True)
class CompactionStats:
    bytes_read: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_without_key: int = 0


@dataclass(slots=True)
class Compactor:
    """Decides which records of each batch stay. This compaction covers the offsets below `upper_bound_offset`."""

    offsets: OffsetMap
    transactions: TransactionScan
    now_ms: int
    delete_retention_ms: int
    upper_bound_offset: int
    last_records: Mapping[int, LastRecord] = field(default_factory=dict)
    last_committed: Mapping[int, LastRecord] = field(default_factory=dict)
    """The last committed record of each producer whose last record is not committed."""
    max_batch_bytes: int = MAX_UNCOMPRESSED_BYTES
    drops_tombstones: bool = True
    """False if tombstones and markers stay even after their delete horizon."""
    stats: CompactionStats = field(default_factory=CompactionStats)

    def clean(self, header: BatchHeader, batch: Buffer) -> Buffer | None:
        """Compacts one batch. Returns its new bytes, `batch` itself if it is unchanged, or None if it is removed."""
        self.stats.bytes_read += header.size
        if header.is_control:
            spent_marker = self.transactions.marker_is_spent(header, batch)
            discard = spent_marker and self._horizon_passed(header)
        else:
            spent_marker = False
            discard = self.transactions.data_is_aborted(header)
        keep_empty = header.next_offset == self.upper_bound_offset or self._is_last_of_producer(header)
        if discard:
            self.stats.records_read += header.records_count
            return empty_batch(header) if keep_empty else None
        records = raw_records(header, batch, self.max_batch_bytes)
        kept = list(records) if header.is_control else [r for r in records if self._keeps(header, r)]
        self.stats.records_read += header.records_count
        self.stats.records_kept += len(kept)
        if not kept:
            return empty_batch(header) if keep_empty else None
        needs_horizon = not header.has_delete_horizon and (spent_marker or not all(r.has_value for r in kept))
        if len(kept) == header.records_count and not needs_horizon:
            return batch
        horizon = self.now_ms + self.delete_retention_ms if needs_horizon else header.delete_horizon_ms
        return thinned_batch(header, kept, horizon)

    def _horizon_passed(self, header: BatchHeader) -> bool:
        return self.drops_tombstones and header.has_delete_horizon and header.base_timestamp <= self.now_ms

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        if not header.has_producer_id:
            return False
        return any(_holds(header, last.get(header.producer_id)) for last in (self.last_records, self.last_committed))

    def _keeps(self, header: BatchHeader, record: RawRecord) -> bool:
        offset = header.base_offset + record.offset_delta
        if offset > self.offsets.latest_offset:
            return True
        if record.key is None:
            self.stats.records_without_key += 1
            return False
        if self.offsets.superseded(record.key, offset):
            return False
        return record.has_value or not self._horizon_passed(header)


def _holds(header: BatchHeader, last: LastRecord | None) -> bool:
    if last is None:
        return False
    if last.last_data_offset is not None:
        return header.last_offset == last.last_data_offset
    return header.is_control and header.producer_epoch == last.producer_epoch


def thinned_batch(header: BatchHeader, kept: list[RawRecord], horizon_ms: int | None) -> bytes:
    """Returns the batch with only the `kept` records and a new base timestamp; other fields do not change."""
    old_base = header.base_timestamp
    append_time = header.max_timestamp if header.log_append_time else None
    times = [old_base + record.timestamp_delta if append_time is None else append_time for record in kept]
    base = times[0] if horizon_ms is None else horizon_ms
    parts: list[bytes] = []
    for record, time in zip(kept, times):
        delta = varint(time - base)
        parts += (varint(1 + len(delta) + len(record.tail)), bytes((record.attributes,)), delta, record.tail)
    payload = compress(header.compression, b"".join(parts))
    attributes = header.attributes & ~DELETE_HORIZON_FLAG | (0 if horizon_ms is None else DELETE_HORIZON_FLAG)
    changed = header._replace(
        attributes=attributes, base_timestamp=base, max_timestamp=max(times), records_count=len(kept)
    )
    return seal(changed, payload) + payload


def empty_batch(header: BatchHeader) -> bytes:
    """Returns a batch without records. Its header keeps the offsets, the epochs and the producer's last sequence."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_FLAG)
    return seal(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, records_count=0), b"")
