"""Encodes and decodes control records: records that brokers write, not clients, in batches with the control flag.

The key consists of a version (int16) and a type (int16). The value starts with its own version (int16). The remaining
fields of the value depend on the type: a transaction marker has the coordinator's epoch, and a control record of the
quorum has the fields of a Raft message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import NO_LEADER_EPOCH
from penstock.records.build import build_batch
from penstock.records.header import parse_header
from penstock.records.record import Record, read_records

if TYPE_CHECKING:
    from typing_extensions import Buffer

_KEY = struct.Struct(">hh")
_END_TXN = struct.Struct(">hi")
_KEY_VERSION = 0
_END_TXN_VERSION = 0


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTxn(NamedTuple):
    """Holds the marker that ends a producer's transaction in a partition."""

    committed: bool
    coordinator_epoch: int


def control_key(kind: ControlType) -> bytes:
    return _KEY.pack(_KEY_VERSION, kind)


def control_type(key: bytes | None) -> ControlType | None:
    """Returns the type in a control record's key; None for an unknown type, which readers skip."""
    if key is None or len(key) < _KEY.size:
        raise KafkaError(ErrorCode.INVALID_RECORD, "A control record has no version and type in its key.")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"A control record's key has the unknown version {version}.")
    try:
        return ControlType(kind)
    except ValueError:
        return None


def build_end_txn(
    marker: EndTxn,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    kind = ControlType.COMMIT if marker.committed else ControlType.ABORT
    value = _END_TXN.pack(_END_TXN_VERSION, marker.coordinator_epoch)
    return build_batch(
        [(timestamp, control_key(kind), value, ())],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        leader_epoch=leader_epoch,
    )


def parse_end_txn(record: Record) -> EndTxn | None:
    """Returns the marker in a control record; None if the record is not a marker of a transaction's end."""
    kind = control_type(record.key)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if record.value is None or len(record.value) < _END_TXN.size:
        raise KafkaError(ErrorCode.INVALID_RECORD, "The marker of a transaction's end is incomplete.")
    version, coordinator_epoch = _END_TXN.unpack_from(record.value)
    if version < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"The marker of a transaction's end has the unknown version {version}."
        )
    return EndTxn(kind is ControlType.COMMIT, coordinator_epoch)


def read_end_txn(batch: Buffer) -> EndTxn | None:
    """Returns the marker of a control batch; None if the batch is empty or holds another control record."""
    if not parse_header(batch).is_control:
        return None
    records = read_records(batch)
    return parse_end_txn(records[0]) if records else None


def build_control(
    messages: Iterable[Any],
    *,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """Builds a control batch with one record for each message of `protocol.persisted.raft`.

    Each message is encoded in the version that its `version` field has. The caller should leave this field at 0: Kafka
    4.3 writes only version 0, and its tools read no other version.
    """
    from penstock.protocol.codec import encode

    records = [
        (timestamp, control_key(_KINDS[type(message).__name__]), encode(message, message.version), ())
        for message in messages
    ]
    return build_batch(records, base_offset=base_offset, control=True, leader_epoch=leader_epoch)


def parse_control(record: Record) -> tuple[ControlType, Any] | None:
    """Returns the type and the message of a control record; None if the type is unknown.

    The message is an `EndTxn`, or a message of `protocol.persisted.raft`.
    """
    kind = control_type(record.key)
    if kind is None:
        return None
    if kind in (ControlType.ABORT, ControlType.COMMIT):
        return kind, parse_end_txn(record)
    from penstock.protocol.codec import DecodeError, decode

    value = record.value or b""
    if len(value) < 2:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"The {kind.name} control record is incomplete.")
    try:
        return kind, decode(_message_class(kind), int.from_bytes(value[:2], "big", signed=True), value)
    except DecodeError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"The {kind.name} control record is damaged: {error}.") from None


def _message_class(kind: ControlType) -> Any:
    from importlib import import_module

    module, name = _MESSAGES[kind]
    return getattr(import_module(f"penstock.protocol.persisted.raft.{module}"), name)


_MESSAGES: dict[ControlType, tuple[str, str]] = {
    ControlType.LEADER_CHANGE: ("leader_change_message", "LeaderChangeMessage"),
    ControlType.SNAPSHOT_HEADER: ("snapshot_header_record", "SnapshotHeaderRecord"),
    ControlType.SNAPSHOT_FOOTER: ("snapshot_footer_record", "SnapshotFooterRecord"),
    ControlType.KRAFT_VERSION: ("kraft_version_record", "KRaftVersionRecord"),
    ControlType.KRAFT_VOTERS: ("voters_record", "VotersRecord"),
}
_KINDS: dict[str, ControlType] = {name: kind for kind, (_, name) in _MESSAGES.items()}
