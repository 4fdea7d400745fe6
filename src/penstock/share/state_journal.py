"""Encodes and decodes the records of `__share_group_state`: a snapshot of a share partition, and updates after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.protocol.codec import decode
from penstock.protocol.persisted.framing import PREFIX_BYTES, encode_key, encode_value
from penstock.protocol.persisted.share import share_snapshot, share_update
from penstock.protocol.uuid import uuid_to_str
from penstock.share.states import StateBatch

SNAPSHOT, UPDATE = 0, 1
_VALUE_VERSION = 0


class ShareKey(NamedTuple):
    """Identifies a share partition: group, topic id and partition."""

    group: str
    topic_id: bytes
    partition: int

    @property
    def coordinator_key(self) -> str:
        """Returns the key with which FindCoordinator finds the share coordinator."""
        return f"{self.group}:{uuid_to_str(self.topic_id)}:{self.partition}"


class Snapshot(NamedTuple):
    """Holds the whole state of a share partition."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    batches: tuple[StateBatch, ...]
    created_ms: int
    written_ms: int


class Update(NamedTuple):
    """Holds the changes of a share partition's state since the last snapshot. A field that is -1 is unchanged."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    batches: tuple[StateBatch, ...]


class JournalRecord(NamedTuple):
    """Holds one record of the log: a share partition, and a snapshot or update of its state.

    A `value` of None deletes the state.
    """

    key: ShareKey
    value: Snapshot | Update | None


def encode_record(record: JournalRecord) -> tuple[bytes, bytes | None]:
    key, value = record
    fields: dict[str, Any] = {"group_id": key.group, "topic_id": key.topic_id, "partition": key.partition}
    if isinstance(value, Update):
        update = share_update.ShareUpdateValue(
            snapshot_epoch=value.snapshot_epoch,
            leader_epoch=value.leader_epoch,
            start_offset=value.start_offset,
            delivery_complete_count=value.complete_count,
            state_batches=[share_update.StateBatch(**fields_of(batch)) for batch in value.batches],
        )
        return encode_key(share_update.ShareUpdateKey(**fields)), encode_value(update, _VALUE_VERSION)
    encoded_key = encode_key(share_snapshot.ShareSnapshotKey(**fields))
    if value is None:
        return encoded_key, None
    snapshot = share_snapshot.ShareSnapshotValue(
        snapshot_epoch=value.snapshot_epoch,
        state_epoch=value.state_epoch,
        leader_epoch=value.leader_epoch,
        start_offset=value.start_offset,
        delivery_complete_count=value.complete_count,
        create_timestamp=value.created_ms,
        write_timestamp=value.written_ms,
        state_batches=[share_snapshot.StateBatch(**fields_of(batch)) for batch in value.batches],
    )
    return encoded_key, encode_value(snapshot, _VALUE_VERSION)


def fields_of(batch: StateBatch) -> dict[str, Any]:
    """Returns a state batch as a dictionary, with the field names of Kafka's messages."""
    return {
        "first_offset": batch.first,
        "last_offset": batch.last,
        "delivery_state": batch.state,
        "delivery_count": batch.deliveries,
    }


def decode_record(key: bytes | None, value: bytes | None) -> JournalRecord | None:
    """Decodes a record of the log. Returns None for an unknown type: records of newer versions stay in the log."""
    if key is None or len(key) < PREFIX_BYTES:
        return None
    number = int.from_bytes(key[:PREFIX_BYTES], "big")
    if number not in (SNAPSHOT, UPDATE):
        return None
    message = decode(share_snapshot.ShareSnapshotKey, 0, key, PREFIX_BYTES)
    name = ShareKey(message.group_id, message.topic_id, message.partition)
    if value is None:
        return JournalRecord(name, None)
    version = int.from_bytes(value[:PREFIX_BYTES], "big")
    if number == UPDATE:
        update = decode(share_update.ShareUpdateValue, version, value, PREFIX_BYTES)
        return JournalRecord(
            name,
            Update(
                update.snapshot_epoch,
                update.leader_epoch,
                update.start_offset,
                update.delivery_complete_count,
                read_batches(update.state_batches),
            ),
        )
    snapshot = decode(share_snapshot.ShareSnapshotValue, version, value, PREFIX_BYTES)
    return JournalRecord(
        name,
        Snapshot(
            snapshot.snapshot_epoch,
            snapshot.state_epoch,
            snapshot.leader_epoch,
            snapshot.start_offset,
            snapshot.delivery_complete_count,
            read_batches(snapshot.state_batches),
            snapshot.create_timestamp,
            snapshot.write_timestamp,
        ),
    )


def read_batches(batches: Sequence[Any]) -> tuple[StateBatch, ...]:
    """Returns the state batches from the array of a Kafka message."""
    return tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count) for each in batches
    )
