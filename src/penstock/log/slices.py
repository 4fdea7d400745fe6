"""Defines the result of a read: a range of a segment file. The caller chooses later how to read its bytes."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from penstock.disk.api import Buffer
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.batches import crc_ok
from penstock.records.header import HEADER_SIZE, LOG_OVERHEAD, MAGIC, MIN_BATCH_LENGTH, parse_header

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.log.segment import Segment
    from penstock.log.txn_index import AbortedTransaction


#: More bytes than this are verified in a thread: a batch may have only 68 bytes, and each takes 1 µs.
CHECKED_AT_ONCE = 256 * 1024


class LogSlice:
    """Refers to a range of batches in a segment file. As in Kafka, `max_bytes` may make the last batch incomplete."""

    __slots__ = ("_log", "_truncations", "position", "segment", "size")

    def __init__(self, log: Log, segment: Segment | None, position: int, size: int) -> None:
        self._log = log
        self._truncations = log.truncations
        self.segment = segment
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    @property
    def segment_base_offset(self) -> int:
        return self.segment.base_offset if self.segment is not None else -1

    def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """Returns the aborted transactions that may have records in this slice.

        The result may include a few transactions without records in the slice, but its size does not grow with the log.
        """
        log, segment = self._log, self.segment
        if segment is None:
            return []
        bases = log.segments.bases
        slot = bisect_right(bases, segment.base_offset)
        bound = bases[slot] if slot < len(bases) else end
        try:
            found = log.aborted_transactions(start, min(end, bound))
            past = segment.index.first_past(self.position + self.size) if found else None
        except OSError as error:
            raise log.health.failed(error) from error
        return found if past is None else [each for each in found if each.first_offset < past]

    def read_cached(self) -> Buffer | None:
        """Returns the bytes if they are in memory and verified. Returns None otherwise; the caller then awaits
        `read()`."""
        segment = self.segment
        if segment is None or not self.size:
            return b""
        if segment.needs_check(self.position, self.position + self.size):
            return None
        self._check_not_truncated()
        try:
            return segment.file.pread_cached(self.size, self.position)
        except OSError as error:
            raise self._log.health.failed(error) from error

    async def read(self) -> Buffer:
        segment = self.segment
        if segment is None or not self.size:
            return b""
        try:
            data = await segment.file.read(self.size, self.position)
        except OSError as error:
            raise self._log.health.failed(error) from error
        if len(data) > CHECKED_AT_ONCE and segment.needs_check(self.position, self.position + self.size):
            return self._judged(segment, data, await self._log.environment.disk.run(_good_bytes, data))
        return self._judged(segment, data)

    def read_now(self) -> Buffer:
        segment = self.segment
        if segment is None or not self.size:
            return b""
        try:
            data = segment.file.pread(self.size, self.position)
        except OSError as error:
            raise self._log.health.failed(error) from error
        return self._judged(segment, data)

    def _judged(self, segment: Segment, data: Buffer, checked: tuple[int, bool] | None = None) -> Buffer:
        """Verifies the bytes that an earlier process wrote. Returns the bytes before the first damaged batch."""
        self._check_not_truncated()
        if len(data) != self.size:
            raise self._corrupt(segment, self.position + len(data), "the file is shorter than at the time of the fetch")
        if not segment.needs_check(self.position, self.position + self.size):
            return data
        good, damaged = _good_bytes(data) if checked is None else checked
        if damaged and not good:
            raise self._corrupt(segment, self.position, "a batch does not match its checksum")
        segment.mark_checked(self.position, self.position + good)
        return data if good == len(data) else memoryview(data)[:good]

    def _check_not_truncated(self) -> None:
        """Raises KafkaError if the log was truncated after the slice was made: the same file positions may now hold
        other batches."""
        if self._log.truncations != self._truncations:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "The partition's log was truncated while it was read: look up its leader again.",
            )

    def _corrupt(self, segment: Segment, position: int, reason: str) -> KafkaError:
        self._log.health.report_corruption(f"{segment.file.path} at byte {position}: {reason}")
        return KafkaError(
            ErrorCode.CORRUPT_MESSAGE, "The stored batch is damaged and is not served: restore it from a replica."
        )


def _good_bytes(data: Buffer) -> tuple[int, bool]:
    """Returns the number of bytes of the valid whole batches at the start, and True if a damaged batch follows them."""
    view = memoryview(data)
    good = lowest = 0
    while good + HEADER_SIZE <= len(view):
        header = parse_header(view, good)
        end = good + header.batch_length + LOG_OVERHEAD
        whole = header.magic == MAGIC and header.batch_length >= MIN_BATCH_LENGTH
        if whole and end > len(view):
            break
        if not whole or header.base_offset < lowest or not crc_ok(view[good:end]):
            return good, True
        good, lowest = end, header.next_offset
    return good, False
