"""The states of a record in a share group, the answers of a member to a record, and the limits of a group.

available ──acquire──► acquired ──accept──► acknowledged
    ▲                     │ ├─────reject──► archived
    └──release, timeout───┘ └─release or timeout after the last delivery──► archived
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class RecordState(IntEnum):
    """The state of a record, with the numbers of `__share_group_state`. PENDING (being written) is never stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    PENDING = 3  # an acknowledgement or a release that is being written
    ARCHIVED = 4


FINAL = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})


class AcquireMode(IntEnum):
    """Whether a ShareFetch may acquire more records than `max_records` (KIP-1206)."""

    BATCH_OPTIMIZED = 0  # whole record batches, so that more records than the limit may be acquired
    RECORD_LIMIT = 1  # never more records than the limit


class ShareLimits(NamedTuple):
    """The limits of one share group, from its group configs or the broker's defaults."""

    lock_duration_ms: int = 30_000
    max_deliveries: int = 5
    max_record_locks: int = 2000
    renewable: bool = True

    @property
    def throttled_from(self) -> int:
        """The number of deliveries from which on a record is delivered in smaller and smaller groups, as in Kafka.

        If one record makes its consumer fail, the others in its group are delivered again, too; they must not reach the
        limit of deliveries because of it.
        """
        return max(2, (self.max_deliveries + 1) // 2)


class StateBatch(NamedTuple):
    """A range of records in one state, in the form in which the share coordinator stores it."""

    first: int
    last: int
    state: int
    deliveries: int


class Acquired(NamedTuple):
    """A range of records that a member has acquired, and how often they have been delivered."""

    first: int
    last: int
    deliveries: int


class FetchedBatch(NamedTuple):
    """A record batch that was read from the log. Markers and aborted batches are not deliverable."""

    first: int
    last: int
    deliverable: bool = True


class AcknowledgedRange(NamedTuple):
    """A member's acknowledgement of a range of offsets: one type for all of them, or one type for each offset."""

    first: int
    last: int
    types: tuple[int, ...]
