"""Encodes and decodes Kafka's `.snapshot` files, version 1: one entry per producer, with only its last batch."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from penstock.records.batches import crc32c

VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class SnapshotError(Exception):
    """Raised if the file is torn or is not a snapshot. The caller then uses an older snapshot, or rebuilds the state
    from the log."""


class SnapshotEntry(NamedTuple):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    txn_first_offset: int  # -1: no transaction is open


def render_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _HEAD.pack(VERSION, crc32c(body)) + body


def parse_snapshot(data: bytes) -> list[SnapshotEntry]:
    if len(data) < _HEAD.size + _COUNT.size:
        raise SnapshotError("the file is shorter than an empty snapshot")
    version, crc = _HEAD.unpack_from(data)
    if version != VERSION:
        raise SnapshotError(f"the snapshot has the unknown version {version}")
    body = data[_HEAD.size :]
    if crc32c(body) != crc:
        raise SnapshotError("the checksum of the snapshot does not match")
    (count,) = _COUNT.unpack_from(body)
    entries = body[_COUNT.size :]
    if count < 0 or len(entries) != count * _ENTRY.size:
        raise SnapshotError(f"the count of entries is {count}, but {len(entries)} bytes of entries follow")
    return [SnapshotEntry._make(fields) for fields in _ENTRY.iter_unpack(entries)]
