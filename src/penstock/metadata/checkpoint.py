"""Reads and writes snapshots of the metadata log in Kafka's format. `<end offset>-<epoch>.checkpoint` is a small log.

A snapshot consists of a header batch (with the set of voters if the log has one), batches of records, and a footer
batch. A file without its footer is not a snapshot. `bootstrap.checkpoint`, from which a formatted directory starts, has
the same format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock.metadata.framing import LATEST_METADATA_VERSION, decode_record, encode_record
from penstock.metadata.voters import Voter, voter_messages
from penstock.protocol.codec import DecodeError
from penstock.protocol.errors import KafkaError
from penstock.raft.batches import voter_set_of
from penstock.records.batches import check_crc, iter_batches
from penstock.records.build import build_batch
from penstock.records.control import ControlType, build_control, parse_control
from penstock.records.record import read_records

BOOTSTRAP_FILE = "bootstrap.checkpoint"
CHECKPOINT_SUFFIX = ".checkpoint"
BATCH_BYTES = 16 * 1024  # small enough that building one batch does not block the loop for long
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class CheckpointError(Exception):
    """Raised if the file is not a complete snapshot."""


class Checkpoint(NamedTuple):
    records: list[Any]
    kraft_version: int
    voters: tuple[Voter, ...]


def checkpoint_name(end_offset: int, epoch: int) -> str:
    """Returns the file name of a snapshot of all records below `end_offset`. `epoch` is the epoch of the last of these
    records.
    """
    return f"{end_offset:020d}-{epoch:010d}{CHECKPOINT_SUFFIX}"


def parse_checkpoint_name(name: str) -> tuple[int, int] | None:
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def write_checkpoint(
    records: Iterable[Any],
    *,
    epoch: int,
    timestamp_ms: int,
    last_contained_timestamp_ms: int = 0,
    metadata_version: int = LATEST_METADATA_VERSION,
    kraft_version: int = 0,
    voters: Sequence[Voter] = (),
) -> Iterator[bytes]:
    """Yields the batches of a snapshot file one by one, so that the event loop can do other work between them."""
    from penstock.protocol.persisted.raft.snapshot_footer_record import SnapshotFooterRecord
    from penstock.protocol.persisted.raft.snapshot_header_record import SnapshotHeaderRecord

    header = SnapshotHeaderRecord(version=0, last_contained_log_timestamp=last_contained_timestamp_ms)
    first = [header, *voter_messages(kraft_version, voters)]
    yield build_control(first, timestamp=timestamp_ms, base_offset=0, leader_epoch=epoch)
    offset = len(first)
    values: list[bytes] = []
    size = 0
    for record in records:
        values.append(encode_record(record, metadata_version))
        size += len(values[-1])
        if size >= BATCH_BYTES:
            yield _data_batch(values, timestamp_ms, offset, epoch)
            offset += len(values)
            values, size = [], 0
    if values:
        yield _data_batch(values, timestamp_ms, offset, epoch)
        offset += len(values)
    footer = SnapshotFooterRecord(version=0)
    yield build_control([footer], timestamp=timestamp_ms, base_offset=offset, leader_epoch=epoch)


def _data_batch(values: list[bytes], timestamp_ms: int, offset: int, epoch: int) -> bytes:
    return build_batch([(timestamp_ms, None, value, ()) for value in values], base_offset=offset, leader_epoch=epoch)


def check_checkpoint(data: bytes) -> None:
    """Raises CheckpointError if a batch of the file is torn or damaged. Decodes no records, because the file may be
    large.
    """
    try:
        for _, batch in iter_batches(data):
            check_crc(batch)
    except (KafkaError, DecodeError) as error:
        raise CheckpointError(str(error)) from None


def read_checkpoint(data: bytes) -> Checkpoint:
    """Parses a snapshot file. Raises CheckpointError if the file is torn, damaged or not a snapshot."""
    records: list[Any] = []
    kraft_version = 0
    voters: tuple[Voter, ...] = ()
    begun = ended = False
    try:
        for header, batch in iter_batches(data):
            check_crc(batch)
            if ended:
                raise CheckpointError("the file continues after its footer")
            if not header.is_control:
                records += [decode_record(record.value) for record in read_records(batch)]
                continue
            for kind, message in filter(None, map(parse_control, read_records(batch))):
                begun |= kind is ControlType.SNAPSHOT_HEADER
                ended |= kind is ControlType.SNAPSHOT_FOOTER
                if kind is ControlType.KRAFT_VERSION:
                    kraft_version = message.kraft_version
                elif kind is ControlType.KRAFT_VOTERS:
                    voters = voter_set_of(message).voters
    except (KafkaError, DecodeError) as error:
        raise CheckpointError(str(error)) from None
    if not begun or not ended:
        raise CheckpointError("the file has no header or no footer")
    return Checkpoint(records, kraft_version, voters)
