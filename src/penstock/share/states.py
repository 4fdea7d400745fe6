"""Defines the states of a record in a share group, a member's acknowledgement types, and the limits of a group.

available ──acquire──► acquired ──accept──► acknowledged
    ▲                     │ ├─────reject──► archived
    └──release, timeout───┘ └─release or timeout after the last delivery──► archived

In a group with a dead-letter topic, a record is archiving before it is archived: until its dead letter is written.
In a group with a back-off, a released record is delayed before it is available.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class RecordState(IntEnum):
    """Lists the states of a record, numbered as in `__share_group_state`. PENDING and DELAYED are never stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3  # given up; its dead letter has not been written yet
    ARCHIVED = 4
    PENDING = 5  # an acknowledgement or a release that is being written
    DELAYED = 6  # released, and not delivered again before its back-off is over; stored as available


FINAL = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})


class AcquireMode(IntEnum):
    """Selects whether a ShareFetch may acquire more records than `max_records`, to acquire whole batches (KIP-1206)."""

    BATCH_OPTIMIZED = 0  # whole record batches, so that more records than the limit may be acquired
    RECORD_LIMIT = 1  # never more records than the limit


class ShareLimits(NamedTuple):
    """Holds the limits of one share group, from its group configs or the broker's defaults."""

    lock_duration_ms: int = 30_000
    max_deliveries: int = 5
    max_record_locks: int = 2000
    renewable: bool = True
    dead_letters: bool = False
    retry_ms: int = 0
    max_retry_ms: int = 0

    def backoff_ms(self, deliveries: int) -> int:
        """Returns how long to wait before the next delivery of a record. The time doubles with each delivery."""
        if not self.retry_ms or deliveries < 1:
            return 0
        return min(self.retry_ms << min(deliveries - 1, 30), max(self.retry_ms, self.max_retry_ms))

    @property
    def given_up(self) -> RecordState:
        """Returns the state that a record gets when it is rejected or has reached the delivery limit."""
        return RecordState.ARCHIVING if self.dead_letters else RecordState.ARCHIVED

    @property
    def throttled_from(self) -> int:
        """Returns the delivery count from which records are delivered in smaller and smaller batches, as in Kafka.

        If one record makes its consumer fail, the consumer's whole batch is delivered again. In small batches, fewer
        good records reach the delivery limit because of a bad record.
        """
        return max(2, (self.max_deliveries + 1) // 2)


class StateBatch(NamedTuple):
    """Holds a range of records in one state, in the form in which the share coordinator stores it."""

    first: int
    last: int
    state: int
    deliveries: int


class Acquired(NamedTuple):
    """Holds a range of records that a member has acquired, and how often they have been delivered."""

    first: int
    last: int
    deliveries: int


class FetchedBatch(NamedTuple):
    """Holds a record batch that was read from the log. Markers and aborted batches are not deliverable."""

    first: int
    last: int
    deliverable: bool = True


class AcknowledgedRange(NamedTuple):
    """Holds a member's acknowledgement of a range of offsets: one type for all of them, or one type for each offset."""

    first: int
    last: int
    types: tuple[int, ...]
