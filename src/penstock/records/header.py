"""Encodes and decodes the header of a record batch (magic 2): 61 bytes, big-endian.

The CRC covers all bytes from `attributes` on. The offset and the leader epoch come before these bytes, so a
leader can assign both without computing the CRC again.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import (
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
LOG_OVERHEAD = 12  # base offset and batch length, which `batch_length` does not count
MAGIC_POSITION = 16
CRC_POSITION = 17
CRC_START = ATTRIBUTES_POSITION = 21  # the CRC covers everything from the attributes on
MIN_BATCH_LENGTH = HEADER_SIZE - LOG_OVERHEAD
MAGIC = 2


COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40


def sequence_after(sequence: int, increment: int) -> int:
    """Returns `sequence` plus `increment`. Sequence numbers wrap from 2^31-1 to 0 and are never negative."""
    return (sequence + increment) & MAX_SEQUENCE


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size(self) -> int:
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_dense(self) -> bool:
        """True if the batch has a record at every offset of its range. The offsets then follow from the
        header alone."""
        return self.records_count == self.last_offset_delta + 1

    def offset_within(self, delta: int, next_offset: int, left: int) -> int:
        """Returns the offset of a record with the offset field `delta`, moved into the allowed range if the field is
        wrong.

        The offset is at least `next_offset`. It also leaves room in the batch for the records that follow: `left`
        counts this record and all records after it.
        """
        return min(max(self.base_offset + delta, next_offset), self.last_offset - left + 1)

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_FLAG != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON_FLAG != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """Returns the time from which compaction may remove tombstones and markers of this batch; None if not set.

        The time is stored as the base timestamp.
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    def pack(self) -> bytes:
        return HEADER.pack(*self)


def parse_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Parses the batch header at `pos`. Raises KafkaError if fewer than 61 bytes follow; checks nothing else."""
    try:
        return BatchHeader._make(HEADER.unpack_from(buf, pos))
    except struct.error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"A record batch needs at least {HEADER_SIZE} bytes.") from None
