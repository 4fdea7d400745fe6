"""Deadlines without a sweep: a heap of timers in which moving a deadline back costs one store.

A heartbeat only writes `timer.deadline_ms`. The heap keeps the entry at the old, earlier time; when that comes up,
the timer is seen to have moved and is queued again. A member therefore costs one heap operation per session timeout,
however often it beats.
"""

from __future__ import annotations

import heapq
from enum import IntEnum

NEVER = 1 << 62


class TimerKind(IntEnum):
    SESSION = 1  # a member went silent
    PENDING_MEMBER = 2  # a member id was handed out and never came back
    JOIN = 3  # the join phase of a rebalance is over
    SYNC = 4  # a member joined and never asked for its assignment
    REVOCATION = 5  # a consumer-protocol member keeps partitions that it was told to give up
    REBALANCE = 6  # a consumer group's next target assignment is due
    DELETION = 7  # topics were deleted: the offsets that groups committed for them go


class Timer:
    """One deadline. `deadline_ms` may be pushed later directly; anything else goes through `Timers`."""

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
        """The heap entry stays until its time and is then dropped."""
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
        """When to look again. May be early (a timer moved or was cancelled), never late."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> list[Timer]:
        """The timers that fired, in order of deadline; each is disarmed."""
        heap = self._heap
        fired: list[Timer] = []
        while heap and heap[0][0] <= now_ms:
            queued_ms, _, timer = heapq.heappop(heap)
            if queued_ms != timer.queued_ms:
                continue  # an earlier deadline was queued after this one, and has been dealt with
            timer.queued_ms = NEVER
            if timer.deadline_ms <= now_ms:
                timer.deadline_ms = NEVER
                fired.append(timer)
            elif timer.deadline_ms != NEVER:
                self.set(timer, timer.deadline_ms)
        return fired
