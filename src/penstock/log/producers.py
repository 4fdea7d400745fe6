"""Keeps the producer state of a partition: sequence numbers for idempotence, open transactions for the last stable
offset.

    client batch ──validate──► duplicate of one of the last five batches: answered with its offset, nothing appended
                               out of sequence or of an old epoch: refused
                               else appended, then `update`d

The state can be rebuilt from the headers of the batches; a snapshot only makes that faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from penstock.log.snapshots import SnapshotEntry
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import (
    EPOCH_PER_TRANSACTION,
    MAX_PRODUCER_EPOCH,
    MAX_SEQUENCE,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
)
from penstock.records.control import EndTxn
from penstock.records.header import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader

REMEMBERED_BATCHES = 5


class AppendOrigin(Enum):
    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"
    RAFT_LEADER = "raft leader"


class BatchMetadata(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class CompletedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


@dataclass(slots=True)
class ProducerEntry:
    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_PRODUCER_EPOCH
    last_timestamp: int = -1
    txn_first_offset: int | None = None
    #: The newest last; never more than REMEMBERED_BATCHES.
    batches: list[BatchMetadata] = field(default_factory=list)

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1

    def move_to_epoch(self, epoch: int) -> None:
        if epoch != self.producer_epoch:
            self.producer_epoch = epoch
            self.batches.clear()


@dataclass(slots=True, eq=False)
class Verification:
    """Holds a running check: the broker asks the transaction coordinator whether a transaction is open (KIP-890).

    The check comes before the first batch of the transaction is appended to this log.
    """

    producer_epoch: int
    lowest_sequence: int
    supports_epoch_bump: bool
    #: True while no batch and no marker of the producer came since the check began: then its batch may be appended.
    token: object = field(default_factory=object)


class ProducerStateManager:
    __slots__ = ("_entries", "_ongoing", "_unreplicated", "_verifications", "map_end_offset")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        #: First offset → producer id. Appends come in offset order, so the first key is the smallest.
        self._ongoing: dict[int, int] = {}
        #: First offset → last offset of transactions that ended at or above the high watermark.
        self._unreplicated: dict[int, int] = {}
        self._verifications: dict[int, Verification] | None = None
        #: The state includes the batches of the log below this offset.
        self.map_end_offset = 0

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def clear(self, map_end_offset: int) -> None:
        self._entries.clear()
        self._ongoing.clear()
        self._unreplicated.clear()
        self._verifications = None
        self.map_end_offset = map_end_offset

    # Before an append.

    def admit(self, header: BatchHeader) -> BatchMetadata | None:
        """Checks a batch's sequence number. Returns None if the batch is the producer's next batch. For a duplicate,
        returns the earlier batch. Raises KafkaError for any other batch."""
        entry = self._entries.get(header.producer_id)
        if (
            entry is not None
            and entry.batches
            and entry.producer_epoch == header.producer_epoch
            and entry.batches[-1].last_sequence + 1 == header.base_sequence
            and entry.txn_first_offset is None
            and not self._verifications
        ):
            return None
        duplicate = self.find_duplicate(header)
        if duplicate is None:
            self.validate(header, AppendOrigin.CLIENT)
        return duplicate

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.producer_epoch != header.producer_epoch:
            return None
        first, last = header.base_sequence, header.last_sequence
        for batch in reversed(entry.batches):
            if batch.last_sequence == last and batch.first_sequence == first:
                return batch
        return None

    def validate(
        self,
        header: BatchHeader,
        origin: AppendOrigin,
        *,
        marker: EndTxn | None = None,
        transaction_version: int = -1,
    ) -> None:
        """Raises KafkaError unless this batch is allowed as the next batch of its producer."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            self._validate_unknown(header, origin, marker)
            return
        if header.is_control:
            if marker is not None:
                _check_marker(entry, header, origin, marker, transaction_version)
            return
        if header.producer_epoch < entry.producer_epoch and origin is not AppendOrigin.REPLICATION:
            raise _old_epoch(entry, header)
        if origin is AppendOrigin.CLIENT:
            self._check_verified_sequence(entry, header)
            _check_sequence(entry, header)
        if entry.txn_first_offset is not None and not header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {header.producer_id} has an open transaction: end it before you send a record outside it.",
            )

    def _validate_unknown(self, header: BatchHeader, origin: AppendOrigin, marker: EndTxn | None) -> None:
        """Checks a batch of a producer that is unknown or has expired. Such a producer may begin with any sequence
        number.

        Raises KafkaError only if a pending verification shows that earlier records are missing.
        """
        if origin is AppendOrigin.CLIENT and marker is None:
            self._check_verified_sequence(None, header)

    def _check_verified_sequence(self, entry: ProducerEntry | None, header: BatchHeader) -> None:
        verification = self._verifications.get(header.producer_id) if self._verifications else None
        if verification is None:
            return
        sequence = header.base_sequence
        unknown_start = verification.supports_epoch_bump and sequence != 0 and (entry is None or not entry.batches)
        if unknown_start or sequence > verification.lowest_sequence:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Producer {header.producer_id} sent sequence {sequence}, but records before it are missing: retry.",
            )

    # After an append.

    def update(self, header: BatchHeader, marker: EndTxn | None = None) -> CompletedTxn | None:
        """Updates the state with a batch that was appended. Returns the transaction that the batch ended, or None."""
        producer_id = header.producer_id
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(producer_id)
        attributes = header.attributes
        if attributes & CONTROL_FLAG:
            return self._end_transaction(entry, header, marker) if marker is not None else None
        if header.producer_epoch != entry.producer_epoch:
            entry.move_to_epoch(header.producer_epoch)
        batches = entry.batches
        if len(batches) == REMEMBERED_BATCHES:
            del batches[0]
        delta = header.last_offset_delta
        timestamp = header.max_timestamp
        sequence = header.base_sequence
        last_sequence = NO_SEQUENCE if sequence == NO_SEQUENCE else (sequence + delta) & MAX_SEQUENCE
        batches.append(BatchMetadata(last_sequence, header.base_offset + delta, delta, timestamp))
        entry.last_timestamp = timestamp
        if attributes & TRANSACTIONAL_FLAG and entry.txn_first_offset is None:
            entry.txn_first_offset = header.base_offset
            self._ongoing[header.base_offset] = producer_id
        if self._verifications:
            self._verifications.pop(producer_id, None)
        return None

    def _end_transaction(self, entry: ProducerEntry, header: BatchHeader, marker: EndTxn) -> CompletedTxn | None:
        first, entry.txn_first_offset = entry.txn_first_offset, None
        entry.move_to_epoch(header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = header.max_timestamp
        if self._verifications:
            self._verifications.pop(entry.producer_id, None)
        if first is None:
            return None
        self._ongoing.pop(first, None)
        self._unreplicated[first] = header.base_offset
        return CompletedTxn(entry.producer_id, first, header.base_offset, not marker.committed)

    # The last stable offset.

    @property
    def first_unstable_offset(self) -> int | None:
        """Returns the first offset of the oldest transaction that has no marker below the high watermark.

        Returns None if there is no such transaction.
        """
        if not self._ongoing and not self._unreplicated:
            return None
        undecided = next(iter(self._ongoing), None)
        unreplicated = min(self._unreplicated, default=None)
        if undecided is None or unreplicated is None:
            return unreplicated if undecided is None else undecided
        return min(undecided, unreplicated)

    @property
    def first_undecided_offset(self) -> int | None:
        return next(iter(self._ongoing), None)

    def last_stable_offset_after(self, completed: CompletedTxn) -> int:
        """Returns the last stable offset after the end of the transaction `completed`.

        The transaction index stores this offset in the entry of `completed`.
        """
        for first_offset, producer_id in self._ongoing.items():
            if producer_id != completed.producer_id:
                return first_offset
        return completed.last_offset + 1

    def on_high_watermark(self, high_watermark: int) -> None:
        if self._unreplicated:
            for first, last in list(self._unreplicated.items()):
                if last < high_watermark:
                    del self._unreplicated[first]

    def on_log_start(self, log_start_offset: int) -> None:
        self.on_high_watermark(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)

    # Verification of transactional producers.

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        entry = self._entries.get(producer_id)
        return entry is not None and entry.txn_first_offset is not None and entry.producer_epoch == producer_epoch

    def start_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, *, supports_epoch_bump: bool
    ) -> Verification | None:
        """Begins to verify with the coordinator that the producer's transaction is open.

        Returns None if the transaction is already open in this log and needs no verification.
        """
        if self.has_ongoing_transaction(producer_id, producer_epoch):
            return None
        if self._verifications is None:
            self._verifications = {}
        known = self._verifications.get(producer_id)
        if known is None or known.producer_epoch != producer_epoch:
            known = Verification(producer_epoch, sequence, supports_epoch_bump)
            self._verifications[producer_id] = known
        elif sequence < known.lowest_sequence:
            known.lowest_sequence = sequence
        return known

    def end_verification(self, producer_id: int, verification: Verification) -> None:
        """Removes a failed verification, so that requests with unknown producer ids do not fill the memory."""
        if self._verifications and self._verifications.get(producer_id) is verification:
            del self._verifications[producer_id]

    def is_verified(self, header: BatchHeader, verification: Verification | None) -> bool:
        return self.is_admitted(header.producer_id, header.producer_epoch, verification)

    def is_admitted(self, producer_id: int, producer_epoch: int, verification: Verification | None) -> bool:
        """True if the producer's transaction is open in this log, or if `verification` is the pending verification of
        the producer."""
        if self.has_ongoing_transaction(producer_id, producer_epoch):
            return True
        known = self._verifications.get(producer_id) if self._verifications else None
        return verification is not None and known is verification

    def check_open(self, producer_id: int, producer_epoch: int, verification: Verification | None) -> None:
        """Raises KafkaError unless the transaction is open or `verification` is valid. Does not check sequences."""
        entry = self._entries.get(producer_id)
        if entry is not None and producer_epoch < entry.producer_epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Producer {producer_id} has epoch {producer_epoch}, but the partition has records of its newer epoch "
                f"{entry.producer_epoch}.",
            )
        known = self._verifications.get(producer_id) if self._verifications else None
        if verification is not None and known is verification:
            return
        if not self.has_ongoing_transaction(producer_id, producer_epoch):
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"The transaction of producer {producer_id} ended before its "
                "offsets were written: begin a new transaction.",
            )

    # Expiry and snapshots.

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        expired = [
            entry.producer_id
            for entry in self._entries.values()
            if entry.txn_first_offset is None and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self._entries[producer_id]
        return len(expired)

    def snapshot(self) -> list[SnapshotEntry]:
        return [
            SnapshotEntry(
                entry.producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_offset,
                entry.batches[-1].offset_delta if entry.batches else 0,
                entry.last_timestamp,
                entry.coordinator_epoch,
                -1 if entry.txn_first_offset is None else entry.txn_first_offset,
            )
            for entry in self._entries.values()
        ]

    def load(self, entries: Iterable[SnapshotEntry], offset: int, now_ms: int, expiration_ms: int) -> None:
        """Loads the producer state at `offset` from the entries of a snapshot. Leaves out producers that have
        expired."""
        self.clear(offset)
        for saved in entries:
            if saved.txn_first_offset < 0 and now_ms - saved.timestamp >= expiration_ms:
                continue
            entry = ProducerEntry(saved.producer_id, saved.producer_epoch, saved.coordinator_epoch, saved.timestamp)
            if saved.last_offset >= 0:
                entry.batches.append(
                    BatchMetadata(saved.last_sequence, saved.last_offset, saved.offset_delta, saved.timestamp)
                )
            if saved.txn_first_offset >= 0:
                entry.txn_first_offset = saved.txn_first_offset
            self._entries[saved.producer_id] = entry
        open_txns = [entry for entry in self._entries.values() if entry.txn_first_offset is not None]
        for entry in sorted(open_txns, key=lambda each: each.txn_first_offset or 0):
            self._ongoing[entry.txn_first_offset or 0] = entry.producer_id


def _old_epoch(entry: ProducerEntry, header: BatchHeader) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Epoch {header.producer_epoch} of producer {header.producer_id} is over: "
        f"epoch {entry.producer_epoch} has written since.",
    )


def _check_sequence(entry: ProducerEntry, header: BatchHeader) -> None:
    first = header.base_sequence
    if entry.producer_epoch == NO_PRODUCER_EPOCH:
        return
    if header.producer_epoch != entry.producer_epoch:
        if first != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Producer {header.producer_id} starts epoch {header.producer_epoch} with sequence {first} instead "
                "of 0.",
            )
        return
    last = entry.last_sequence
    if first != last + 1 and not (first == 0 and last == MAX_SEQUENCE):
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Producer {header.producer_id} sent sequence {first}, which does not follow its last sequence {last}.",
        )


def _check_marker(
    entry: ProducerEntry, header: BatchHeader, origin: AppendOrigin, marker: EndTxn, transaction_version: int
) -> None:
    if origin is AppendOrigin.REPLICATION:
        return
    epoch, current = header.producer_epoch, entry.producer_epoch
    if transaction_version >= EPOCH_PER_TRANSACTION:
        repeated = epoch == current and (entry.txn_first_offset is None or epoch == MAX_PRODUCER_EPOCH)
        if epoch <= current and not repeated:
            raise _old_epoch(entry, header)
    elif epoch < current:
        raise _old_epoch(entry, header)
    if origin is AppendOrigin.COORDINATOR and entry.coordinator_epoch > marker.coordinator_epoch:
        raise KafkaError(
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            f"A coordinator with the newer epoch {entry.coordinator_epoch} has already ended a transaction of producer "
            f"{header.producer_id}: coordinator epoch {marker.coordinator_epoch} is fenced.",
        )
