"""Decodes the files of a log directory into plain dictionaries: one for each batch, record or entry.

The file name decides the file's kind, as in Kafka; the directory name decides how internal topics are decoded. The
first key of every dictionary is `kind`. If a batch fails its checks, the last dictionary of its file has the kind
`corrupt`.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

from penstock.cli.exit import Exit, Failure
from penstock.disk.real import RealDisk
from penstock.log import checkpoints, epochs, snapshots, txn_index
from penstock.log.scan import CorruptBatchError, scan_verified
from penstock.protocol.codec import DecodeError
from penstock.protocol.errors import KafkaError
from penstock.protocol.schema import Field, Struct
from penstock.protocol.uuid import uuid_to_str
from penstock.protocol.vocabulary import CONSUMER_OFFSETS, METADATA_TOPIC, SHARE_GROUP_STATE, TRANSACTION_STATE
from penstock.records.compression import Codec
from penstock.records.control import parse_control
from penstock.records.header import BatchHeader
from penstock.records.record import Record, read_records

Item = dict[str, Any]
Decoder = Callable[[Record], Item]

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
OFFSET_CHECKPOINTS = (
    checkpoints.RECOVERY_POINT_FILE,
    checkpoints.LOG_START_FILE,
    checkpoints.HIGH_WATERMARK_FILE,
    checkpoints.CLEANER_FILE,
)
PROPERTIES_FILES = (checkpoints.META_PROPERTIES_FILE, checkpoints.PARTITION_METADATA_FILE)
JSON_FILES = (checkpoints.CLEAN_SHUTDOWN_FILE, "quorum-state")
DECODER_BY_TOPIC = {
    METADATA_TOPIC: "metadata",
    CONSUMER_OFFSETS: "offsets",
    TRANSACTION_STATE: "transactions",
    SHARE_GROUP_STATE: "share",
}


def dump(path: str, *, deep: bool, decode: str | None) -> Iterator[Item]:
    """Yields the dictionaries of one file.

    `decode` chooses the decoder of records: "plain", or a value of DECODER_BY_TOPIC. None chooses it by the directory's
    name.
    """
    name = os.path.basename(path)
    suffix = os.path.splitext(name)[1]
    if suffix == ".log" or (suffix == ".checkpoint" and name != "leader-epoch-checkpoint"):
        yield from _batches(path, deep=deep, decode=_decoder(decode or _topic_decoder(path)))
        return
    data = _content(path)
    match suffix:
        case ".index":
            yield from _offset_index(_base_offset(name), data)
        case ".timeindex":
            yield from _time_index(_base_offset(name), data)
        case ".txnindex":
            yield from _txn_index(_base_offset(name), data)
        case ".snapshot":
            yield from _snapshot(data)
        case _:
            yield from _small_file(name, data)


def _content(path: str) -> bytes:
    disk = _disk_with(path)
    try:
        return disk.read_bytes(path)
    except OSError as problem:
        raise Failure(f"{path} can't be read: {problem.strerror}", Exit.STORAGE) from None


def _disk_with(path: str) -> RealDisk:
    disk = RealDisk()
    if not disk.exists(path):
        raise Failure(f"{path} does not exist: name a file of a log directory", Exit.NOT_FOUND)
    return disk


def _base_offset(name: str) -> int:
    found = re.match(r"(\d{20})", name)
    if found is None:
        raise Failure(
            f"The file name {name} does not start with a base offset of 20 digits: give the file its original name",
            Exit.USAGE,
        )
    return int(found[1])


def _topic_decoder(path: str) -> str:
    if os.path.basename(path) == "bootstrap.checkpoint":
        return "metadata"
    directory = os.path.basename(os.path.dirname(os.path.abspath(path)))
    topic = directory.rpartition("-")[0]
    return DECODER_BY_TOPIC.get(topic, "plain")


# --- batches ------------------------------------------------------------------------------------------------------


def _batches(path: str, *, deep: bool, decode: Decoder) -> Iterator[Item]:
    file = _disk_with(path).open(path)
    try:
        for position, header, data in scan_verified(file, 0, file.size):
            yield _batch(position, header)
            if deep:
                for record in read_records(data):
                    yield _control(record) if header.is_control else decode(record)
    except CorruptBatchError as problem:
        yield {"kind": "corrupt", "position": problem.position, "reason": problem.reason}
    except KafkaError as problem:
        yield {"kind": "corrupt", "reason": problem.message}
    finally:
        file.close()


def _batch(position: int, header: BatchHeader) -> Item:
    return {
        "kind": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.records_count,
        "position": position,
        "size": header.size,
        "leader_epoch": header.partition_leader_epoch,
        "timestamp": header.max_timestamp,
        "timestamp_type": "log_append" if header.log_append_time else "create",
        "compression": Codec(header.compression).name.lower(),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon_ms": header.delete_horizon_ms,
        "crc": header.crc,
    }


def _control(record: Record) -> Item:
    parsed = parse_control(record)
    name, content = ("unknown", None) if parsed is None else (parsed[0].name.lower(), parsed[1])
    return {"kind": "control", "offset": record.offset, "type": name, "value": _plain(content)}


def _decoder(name: str) -> Decoder:
    if name == "plain":
        return _plain_record
    if name == "metadata":
        return _metadata_record
    from penstock.protocol.persisted import index

    lookups = {"offsets": index.group_record, "transactions": index.transaction_record, "share": index.share_record}
    lookup = lookups[name]

    def coordinator_record(record: Record) -> Item:
        from penstock.protocol.persisted.framing import decode_record

        try:
            key, value = decode_record(lookup, record.key or b"", record.value)
        except DecodeError as problem:
            return _plain_record(record) | {"undecoded": str(problem)}
        kind = type(key).__name__.removesuffix("Key")
        return {"kind": "record", "offset": record.offset, "type": kind, "key": _plain(key), "value": _plain(value)}

    return coordinator_record


def _plain_record(record: Record) -> Item:
    return {
        "kind": "record",
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": {name: _text(value) for name, value in record.headers},
    }


def _metadata_record(record: Record) -> Item:
    from penstock.metadata.framing import decode_record

    try:
        message = decode_record(record.value)
    except DecodeError as problem:
        return _plain_record(record) | {"undecoded": str(problem)}
    return {"kind": "record", "offset": record.offset, "type": type(message).__name__, "value": _plain(message)}


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _plain(value: Any, kind: str = "") -> Any:
    """Converts a message to dictionaries and lists. Writes ids in Kafka's text form, and other bytes as hexadecimal
    text."""
    if isinstance(value, Struct):
        return {field.name: _plain(getattr(value, field.name), _kind(field)) for field in type(value).FIELDS}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if isinstance(value, list):
        return [_plain(each, kind) for each in value]
    if isinstance(value, bytes | memoryview):
        return uuid_to_str(bytes(value)) if kind == "uuid" else bytes(value).hex()
    return value


def _kind(field: Field) -> str:
    return field.item if isinstance(field.item, str) and field.item else field.kind


# --- indexes, snapshots, checkpoints ------------------------------------------------------------------------------


def _entries(data: bytes, layout: struct.Struct) -> Iterator[tuple[int, ...]]:
    """Yields the entries of an index. Stops at the zeros that Kafka preallocates in the index of an active segment."""
    whole = len(data) - len(data) % layout.size
    empty = bytes(layout.size)
    end = whole
    while end > layout.size and data[end - layout.size : end] == empty:
        end -= layout.size
    yield from layout.iter_unpack(data[:end])


def _offset_index(base: int, data: bytes) -> Iterator[Item]:
    for offset, position in _entries(data, OFFSET_ENTRY):
        yield {"kind": "offset", "offset": base + offset, "position": position}


def _time_index(base: int, data: bytes) -> Iterator[Item]:
    for timestamp, offset in _entries(data, TIME_ENTRY):
        yield {"kind": "time", "timestamp": timestamp, "offset": base + offset}


def _txn_index(base: int, data: bytes) -> Iterator[Item]:
    found = txn_index.parse_txn_index(base, data)
    if found is None:
        yield {"kind": "corrupt", "reason": "this is not a transaction index"}
        return
    for aborted in found:
        yield {"kind": "aborted", **aborted._asdict()}


def _snapshot(data: bytes) -> Iterator[Item]:
    try:
        for entry in snapshots.parse_snapshot(data):
            yield {"kind": "producer", **entry._asdict()}
    except snapshots.SnapshotError as problem:
        yield {"kind": "corrupt", "reason": str(problem)}


def _small_file(name: str, data: bytes) -> Iterator[Item]:
    try:
        if name in OFFSET_CHECKPOINTS:
            for (topic, partition), offset in checkpoints.parse_offsets(data).items():
                yield {"kind": "checkpoint", "topic": topic, "partition": partition, "offset": offset}
        elif name == checkpoints.LEADER_EPOCH_FILE:
            for epoch, start in epochs.LeaderEpochCache.from_bytes(data).entries:
                yield {"kind": "epoch", "epoch": epoch, "start_offset": start}
        elif name in PROPERTIES_FILES:
            text = data.replace(b": ", b"=") if name == checkpoints.PARTITION_METADATA_FILE else data
            yield {"kind": "properties", **checkpoints.parse_properties(text)}
        elif name in JSON_FILES:
            yield {"kind": "json", **json.loads(data or b"{}")}
        else:
            raise Failure(
                f"{name} is not a file of a log: name a segment, index, snapshot or checkpoint",
                Exit.USAGE,
            )
    except (checkpoints.CheckpointError, json.JSONDecodeError) as problem:
        yield {"kind": "corrupt", "reason": str(problem)}
