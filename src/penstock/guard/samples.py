"""Describes a sample of the records that a replica serves from one offset on, cut into batches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from penstock.records.batches import crc_ok
from penstock.records.header import HEADER_SIZE, LOG_OVERHEAD, MAGIC, MIN_BATCH_LENGTH, parse_header

if TYPE_CHECKING:
    from typing_extensions import Buffer

DIGEST_BYTES = 8
UNKNOWN = -1


class Status(Enum):
    """Lists the possible answers of a replica to a request for records."""

    SERVED = "served"
    DAMAGED = "damaged"  # the replica itself found that its stored batch does not match the checksum
    ABSENT = "absent"  # the offset is below the start or above the end of the replica's log
    LACKING = "lacking"  # the replica's log ends before the high watermark of the others
    UNKNOWN = "unknown"  # no answer, or another error


@dataclass(frozen=True, slots=True)
class Sample:
    node_id: int
    status: Status
    records: Buffer = b""
    high_watermark: int = UNKNOWN

    @property
    def has_records(self) -> bool:
        return self.status is Status.SERVED and len(memoryview(self.records)) > 0


class Batch(NamedTuple):
    """Holds one batch of a sample. `digest` is a hash of all its bytes: replicas copy batches unchanged."""

    base_offset: int
    next_offset: int
    digest: bytes
    checksum: int
    """The stored checksum, which does not cover offset, length and leader epoch."""
    intact: bool
    leader_epoch: int
    max_timestamp: int
    is_dense: bool
    """False if offsets are missing inside the batch: compaction, which each replica does by itself, removes records."""

    def __str__(self) -> str:
        state = "" if self.intact else ", checksum fails"
        return f"batch {self.base_offset} to {self.next_offset - 1}, digest {self.digest.hex()}{state}"


def batches_of(records: Buffer, end_offset: int) -> list[Batch]:
    """Returns the batches at the start of `records`, up to and including the first damaged batch.

    An incomplete batch at the end is left out. But the first batch is always served whole: if it is incomplete, its
    length field is damaged. A batch that reaches past the high watermark `end_offset` has a damaged offset.
    """
    view = memoryview(records)
    found: list[Batch] = []
    at, lowest = 0, 0
    while at + HEADER_SIZE <= len(view):
        header = parse_header(view, at)
        end = at + header.batch_length + LOG_OVERHEAD
        possible = header.magic == MAGIC and header.batch_length >= MIN_BATCH_LENGTH and header.last_offset_delta >= 0
        if possible and header.base_offset >= lowest and end > len(view) and found:
            break
        whole = possible and header.base_offset >= lowest and end <= len(view) and header.next_offset <= end_offset
        intact = whole and crc_ok(view[at:end])
        dense = header.records_count == header.last_offset_delta + 1
        stop = max(end, at + HEADER_SIZE)
        found.append(
            Batch(
                header.base_offset,
                header.next_offset,
                _digest(view[at:stop]),
                header.crc,
                intact,
                header.partition_leader_epoch,
                header.max_timestamp,
                dense,
            )
        )
        if not intact:
            break
        at, lowest = end, header.next_offset
    return found


def _digest(data: memoryview) -> bytes:
    return sha256(data).digest()[:DIGEST_BYTES]
