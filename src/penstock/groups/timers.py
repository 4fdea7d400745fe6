"""Keeps timers in a heap, without a periodic sweep. A deadline is extended by setting one field.

A heartbeat only writes `timer.deadline_ms`. The heap keeps the entry at the old deadline; when this time comes, the
timer is added again with its new deadline. So a member costs one heap operation per session timeout, however often it
sends heartbeats.
"""

from __future__ import annotations

import heapq
from enum import IntEnum

NEVER = 1 << 62


class TimerKind(IntEnum):
    SESSION = 1  # a member sends no heartbeats
    PENDING_MEMBER = 2  # a member id was handed out, but no member joined with it
    JOIN = 3  # the join phase of a rebalance is over
    SYNC = 4  # a member joined but did not request its assignment
    REVOCATION = 5  # a member of a consumer group keeps partitions that it has to revoke
    REBALANCE = 6  # a consumer group's next target assignment is due
    DELETION = 7  # topics were deleted: the committed offsets for them are erased
    ASSIGNMENT = 8  # the next step of a streams group's target assignment


class Timer:
    """Holds one deadline. A caller may set `deadline_ms` to a later time directly; all other changes go through
    `Timers`."""

    __slots__ = ("deadline_ms", "group_id", "kind", "member_id", "queued_ms")

    def __init__(self, kind: TimerKind, group_id: str, member_id: str = "") -> None:
        self.kind = kind
        self.group_id = group_id
        self.member_id = member_id
        self.deadline_ms = NEVER
        self.queued_ms = NEVER

    @property
    def armed(self) -> bool:
        return self.deadline_ms != NEVER

    def cancel(self) -> None:
        """Cancels the timer. Its heap entry is dropped when its time comes."""
        self.deadline_ms = NEVER


class Timers:
    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, timer: Timer, deadline_ms: int) -> None:
        timer.deadline_ms = deadline_ms
        if deadline_ms < timer.queued_ms:
            timer.queued_ms = deadline_ms
            self._serial += 1
            heapq.heappush(self._heap, (deadline_ms, self._serial, timer))

    def next_deadline(self) -> int | None:
        """Returns the time of the next check for due timers.

        No timer is due before this time. It may be too early if a timer was extended or cancelled.
        """
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> list[Timer]:
        """Removes the due timers from the heap, and returns them in the order of their deadlines."""
        heap = self._heap
        fired: list[Timer] = []
        while heap and heap[0][0] <= now_ms:
            queued_ms, _, timer = heapq.heappop(heap)
            if queued_ms != timer.queued_ms:
                continue  # the timer has already fired at an earlier deadline that was queued later
            timer.queued_ms = NEVER
            if timer.deadline_ms <= now_ms:
                timer.deadline_ms = NEVER
                fired.append(timer)
            elif timer.deadline_ms != NEVER:
                self.set(timer, timer.deadline_ms)
        return fired
