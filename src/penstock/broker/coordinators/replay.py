"""Applies a chunk of a coordinator's log to its state machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.protocol.vocabulary import NO_PRODUCER_ID
from penstock.records.batches import split_batches
from penstock.records.control import read_end_txn
from penstock.records.record import Record, read_records

if TYPE_CHECKING:
    from penstock.broker.coordinators.state_machine import Machine
    from penstock.log.log import Log


def replay(machine: Machine[Any], log: Log, offset: int, data: Any) -> int:
    """Applies the records of the batches in `data` to the state machine.

    Returns the offset after the last batch; the end of the log if `data` has no batches.
    """
    next_offset = log.log_end_offset  # for a chunk without batches: compaction has removed the rest of the log
    latest: dict[bytes | None, Record] = {}  # only the last record of a key is applied, as after compaction
    for header, batch in split_batches(data, allow_partial=True):
        next_offset = max(header.next_offset, offset + 1)
        if header.is_control or header.is_transactional:
            _apply_all(machine, latest, NO_PRODUCER_ID)
            latest = {}
        if header.is_control:
            marker = read_end_txn(batch)
            if marker is not None:
                machine.apply_marker(header.producer_id, marker.committed)
            continue
        if machine.incremental:
            for record in read_records(batch):
                _apply(machine, record, NO_PRODUCER_ID)
            continue
        for record in read_records(batch):
            latest.pop(record.key, None)
            latest[record.key] = record
        if header.is_transactional:
            _apply_all(machine, latest, header.producer_id)
            latest = {}
    _apply_all(machine, latest, NO_PRODUCER_ID)
    return next_offset


def _apply_all(machine: Machine[Any], records: dict[bytes | None, Record], producer_id: int) -> None:
    for record in records.values():
        _apply(machine, record, producer_id)


def _apply(machine: Machine[Any], record: Record, producer_id: int) -> None:
    decoded = machine.decode(record.key, record.value)
    if decoded is not None:
        machine.apply(decoded, record.offset, producer_id)
