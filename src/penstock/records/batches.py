"""Splits a buffer into record batches, and verifies the checksum of a batch.

The length fields are needed before the CRC can be verified, so they are checked first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastcrc import crc32

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.header import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MIN_BATCH_LENGTH,
    BatchHeader,
    parse_header,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

crc32c = crc32.iscsi

_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_MIN_LEGACY_LENGTH = 14  # the smallest message of the formats before v2


def iter_batches(buf: Buffer, *, allow_partial: bool = False) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yields each batch of `buf` with its bytes, in order, without verifying the CRC.

    Raises CORRUPT_MESSAGE if the last batch is incomplete. With `allow_partial`, leaves out an incomplete last batch
    instead: a broker may cut off the last batch of a fetched record set.
    """
    view = memoryview(buf)
    end = len(view)
    pos = 0
    while pos < end:
        length = _batch_length(view, pos, end)
        if length is None or pos + LOG_OVERHEAD + length > end:
            if allow_partial:
                return
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"The record batch at byte {pos} is incomplete: send all of it."
            )
        if length < MIN_BATCH_LENGTH:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"The record batch at byte {pos} is shorter than its header.")
        header = parse_header(view, pos)
        next_pos = pos + LOG_OVERHEAD + length
        yield header, view[pos:next_pos]
        pos = next_pos


def split_batches(buf: Buffer, *, allow_partial: bool = False) -> list[tuple[BatchHeader, memoryview]]:
    return list(iter_batches(buf, allow_partial=allow_partial))


def _batch_length(view: memoryview, pos: int, end: int) -> int | None:
    """Returns the length field of the batch at `pos`; None if the buffer ends before the magic byte."""
    if pos + LOG_OVERHEAD > end:
        return None
    (length,) = _LENGTH.unpack_from(view, pos + 8)
    if length < _MIN_LEGACY_LENGTH:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"The record batch at byte {pos} has the impossible length {length}."
        )
    if pos + MAGIC_POSITION >= end:
        return None
    refuse_other_magic(view[pos + MAGIC_POSITION])
    return int(length)


def refuse_other_magic(magic: int) -> None:
    """Raises KafkaError for message formats 0 and 1, which are not supported, and for bytes that are no record
    batch."""
    if magic == MAGIC:
        return
    if magic in (0, 1):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"Message format v{magic} is not supported: send record batches of format v2 (Kafka 0.11 and later).",
        )
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"A record batch has the unknown magic byte {magic}.")


def claimed_attributes(records: Buffer) -> int:
    """Returns the attributes of the first batch without validating it; 0 if there is no batch.

    Used for rules about a whole produce request: zstd needs version 7, transactional batches need a transactional id.
    """
    view = memoryview(records)
    return view[ATTRIBUTES_POSITION] << 8 | view[ATTRIBUTES_POSITION + 1] if len(view) >= HEADER_SIZE else 0


def crc_ok(batch: Buffer) -> bool:
    """True if the checksum of this batch is right. `batch` holds exactly one whole batch."""
    view = memoryview(batch)
    if len(view) < HEADER_SIZE:
        return False
    (stored,) = _CRC.unpack_from(view, CRC_POSITION)
    return bool(crc32c(view[CRC_START:]) == stored)


def check_crc(batch: Buffer) -> None:
    if not crc_ok(batch):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "A record batch does not match its CRC: send it again.")
