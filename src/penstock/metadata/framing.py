"""Encodes and decodes metadata records: frame version, record type and record version as varints, then the body.

Record classes are imported when the first record of their type appears. Records are written in the version that belongs
to the cluster's metadata.version. So a release of that metadata.version can read the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from penstock.protocol.codec import DecodeError, encode, reader
from penstock.protocol.compile import Reader

FRAME_VERSION = 1
LATEST_METADATA_VERSION = 30
_MAX_VARINT_BYTES = 5


class RecordType(NamedTuple):
    key: int
    class_name: str
    module: str
    # (metadata.version that introduced it, record version), newest first; record version 0 needs no entry.
    versions: tuple[tuple[int, int], ...] = ()


_TYPES = (
    RecordType(0, "RegisterBrokerRecord", "register_broker_record", ((30, 4), (17, 3), (8, 2), (7, 1))),
    RecordType(1, "UnregisterBrokerRecord", "unregister_broker_record"),
    RecordType(2, "TopicRecord", "topic_record"),
    RecordType(3, "PartitionRecord", "partition_record", ((23, 2), (17, 1))),
    RecordType(4, "ConfigRecord", "config_record"),
    RecordType(5, "PartitionChangeRecord", "partition_change_record", ((23, 2), (17, 1))),
    RecordType(7, "FenceBrokerRecord", "fence_broker_record"),
    RecordType(8, "UnfenceBrokerRecord", "unfence_broker_record"),
    RecordType(9, "RemoveTopicRecord", "remove_topic_record"),
    RecordType(10, "DelegationTokenRecord", "delegation_token_record"),
    RecordType(11, "UserScramCredentialRecord", "user_scram_credential_record"),
    RecordType(12, "FeatureLevelRecord", "feature_level_record"),
    RecordType(14, "ClientQuotaRecord", "client_quota_record"),
    RecordType(15, "ProducerIdsRecord", "producer_ids_record"),
    RecordType(17, "BrokerRegistrationChangeRecord", "broker_registration_change_record", ((30, 3), (17, 2), (7, 1))),
    RecordType(18, "AccessControlEntryRecord", "access_control_entry_record"),
    RecordType(19, "RemoveAccessControlEntryRecord", "remove_access_control_entry_record"),
    RecordType(20, "NoOpRecord", "no_op_record"),
    RecordType(21, "ZkMigrationStateRecord", "zk_migration_state_record"),
    RecordType(22, "RemoveUserScramCredentialRecord", "remove_user_scram_credential_record"),
    RecordType(23, "BeginTransactionRecord", "begin_transaction_record"),
    RecordType(24, "EndTransactionRecord", "end_transaction_record"),
    RecordType(25, "AbortTransactionRecord", "abort_transaction_record"),
    RecordType(26, "RemoveDelegationTokenRecord", "remove_delegation_token_record"),
    RecordType(27, "RegisterControllerRecord", "register_controller_record"),
    RecordType(28, "ClearElrRecord", "clear_elr_record"),
)
_BY_KEY = {one.key: one for one in _TYPES}
_BY_NAME = {one.class_name: one for one in _TYPES}


@lru_cache(maxsize=64)
def record_class(key: int) -> Any:
    found = _BY_KEY.get(key)
    if found is None:
        raise DecodeError(
            f"metadata record type {key} does not exist in Kafka 4.3: run the release that wrote this log"
        )
    return getattr(import_module(f"penstock.protocol.persisted.metadata.{found.module}"), found.class_name)


@lru_cache(maxsize=256)
def _frame(class_name: str, metadata_version: int) -> tuple[bytes, int]:
    kind = _BY_NAME[class_name]
    version = next((version for since, version in kind.versions if metadata_version >= since), 0)
    return bytes((FRAME_VERSION, kind.key, version)), version


def encode_record(record: Any, metadata_version: int = LATEST_METADATA_VERSION) -> bytes:
    prefix, version = _frame(type(record).__name__, metadata_version)
    return prefix + encode(record, version)


def encode_records(
    records: Iterable[Any], metadata_version: int, timestamp_ms: int
) -> list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]:
    """Returns the records in the form that `records.build.build_batch` takes."""
    return [(timestamp_ms, None, encode_record(record, metadata_version), ()) for record in records]


def decode_record(value: bytes | memoryview | None) -> Any:
    """Returns the message in a metadata record's value."""
    if value is None:
        raise DecodeError("a metadata record has no value")
    frame, position = _uvarint(value, 0)
    if frame != FRAME_VERSION:
        raise DecodeError(f"metadata record frame version {frame} is unknown; only {FRAME_VERSION} is known")
    key, position = _uvarint(value, position)
    version, position = _uvarint(value, position)
    record, end = _reader(key, version)(value, position)
    if end != len(value):
        raise DecodeError(f"a metadata record of type {key} has {len(value) - end} bytes after its end")
    return record


@lru_cache(maxsize=128)
def _reader(key: int, version: int) -> Reader:
    return reader(record_class(key), version)


def _uvarint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    if position < len(buffer) and buffer[position] < 0x80:
        return buffer[position], position + 1
    result = shift = 0
    for _ in range(_MAX_VARINT_BYTES):
        if position >= len(buffer):
            raise DecodeError("a metadata record is cut off inside its frame")
        byte = buffer[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
    raise DecodeError("a varint of a metadata record's frame is too long")
