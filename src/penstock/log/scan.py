"""Walks the batches of a segment file by their headers, with or without verifying checksums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.disk.api import File
from penstock.records.batches import crc32c
from penstock.records.header import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MIN_BATCH_LENGTH,
    BatchHeader,
)

HEADER_CHUNK = 4096
VERIFY_CHUNK = 1 << 18


class CorruptBatchError(Exception):
    """Raised if the bytes at `position` are not a complete, valid batch."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class ScannedBatch(NamedTuple):
    position: int
    header: BatchHeader
    data: memoryview


def _checked(header: BatchHeader, path: str, position: int, end: int, lowest: int) -> BatchHeader:
    """Returns `header`. Raises CorruptBatchError if its offset or length is impossible, because the CRC does not cover
    these two fields."""
    if header.magic != MAGIC or header.batch_length < MIN_BATCH_LENGTH:
        raise CorruptBatchError(
            path, position, f"these bytes are not a batch: magic {header.magic}, length {header.batch_length}"
        )
    if position + header.batch_length + LOG_OVERHEAD > end:
        raise CorruptBatchError(path, position, f"a batch of {header.size} bytes is cut off at byte {end}")
    if header.last_offset_delta < 0 or header.base_offset < lowest:
        raise CorruptBatchError(
            path,
            position,
            f"a batch starts at offset {header.base_offset}, but the lowest possible offset here is {lowest}",
        )
    return header


def scan_headers(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yields (position, header) of every batch from `position`, the start of a batch, up to `end`."""
    chunk, chunk_start, lowest = b"", position, 0
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = file.pread(min(HEADER_CHUNK, end - position), position), position, 0
            if len(chunk) < HEADER_SIZE:
                raise CorruptBatchError(file.path, position, "the file ends in the middle of a batch header")
        header = _checked(BatchHeader._make(HEADER.unpack_from(chunk, at)), file.path, position, end, lowest)
        lowest = header.base_offset + header.last_offset_delta + 1
        yield position, header
        position += header.batch_length + LOG_OVERHEAD


def scan_verified(file: File, position: int, end: int, lowest: int = 0) -> Iterator[ScannedBatch]:
    """Yields every batch with its bytes. Raises CorruptBatchError at the first batch that is not valid.

    A batch is not valid if it is incomplete, if its CRC is wrong, or if it starts below the offset `lowest` or below
    the end of the previous batch.
    """
    chunk, chunk_start = memoryview(b""), position
    unpack = HEADER.unpack_from
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = _read_chunk(file, position, VERIFY_CHUNK, end), position, 0
            if len(chunk) < HEADER_SIZE:
                raise CorruptBatchError(file.path, position, "the file ends in the middle of a batch header")
        header = _checked(BatchHeader._make(unpack(chunk, at)), file.path, position, end, lowest)
        size = header.batch_length + LOG_OVERHEAD
        if at + size > len(chunk):
            chunk, chunk_start, at = _read_chunk(file, position, max(size, VERIFY_CHUNK), end), position, 0
            if len(chunk) < size:
                raise CorruptBatchError(file.path, position, "the file is shorter than its known size")
        if crc32c(chunk[at + CRC_START : at + size]) != header.crc:
            raise CorruptBatchError(file.path, position, "the checksum of the batch does not match")
        lowest = header.base_offset + header.last_offset_delta + 1
        yield ScannedBatch(position, header, chunk[at : at + size])
        position += size


def _read_chunk(file: File, position: int, size: int, end: int) -> memoryview:
    return memoryview(file.pread(min(size, end - position), position))
