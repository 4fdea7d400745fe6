"""Keeps acquisition locks: which member holds which acquired records, and until when.

Records that a member acquires within a short time share one lock. So the number of locks does not grow with the number
of records. A heap finds the expired locks without a scan. When the session of a member closes, the member loses its
locks, and their records are released in several steps. Meanwhile the member may acquire records with new locks.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass

from penstock.share.window import Run, Window

#: Records that a member acquires within this time share a lock. A lock lasts up to this much longer than configured.
GRAIN_MS = 50
#: Runs that `held` looks at for each run that it may return.
LOOKED_AT = 4


@dataclass(slots=True)
class Lock:
    number: int
    member: str | None  # None once the member's session is closed
    deadline_ms: int
    first: int  # the records are in [first, stop); other locks may have records there too
    stop: int
    since_ms: int

    @property
    def is_empty(self) -> bool:
        return self.first >= self.stop

    def cover(self, first: int, stop: int) -> None:
        """Extends the range of this lock, so that it contains [first, stop)."""
        if self.is_empty:
            self.first, self.stop = first, stop
        else:
            self.first, self.stop = min(self.first, first), max(self.stop, stop)


def held(window: Window, locks: Collection[Lock], state: int, most: int) -> list[Run]:
    """Returns up to `most` ranges of records that the locks hold, in the order of their offsets.

    Moves the start of the locks past the returned records, so that the next call continues there. So the caller must
    change the state of all returned records. The result may be empty although the locks hold records, because one call
    examines a limited number of ranges.
    """
    if not locks:
        return []
    numbers = {lock.number for lock in locks}
    found: list[Run] = []
    position = stop = max(lock.stop for lock in locks)
    for looked_at, run in enumerate(window.runs(min(lock.first for lock in locks), stop)):
        if len(found) >= most or looked_at >= most * LOOKED_AT:
            position = run.first
            break
        if run.state == state and run.owner in numbers:
            found.append(run)
    for lock in locks:
        lock.first = max(lock.first, position)
    return found


class Locks:
    __slots__ = ("_heap", "_latest", "_next", "_of_member", "abandoned", "by_number")

    def __init__(self) -> None:
        #: The locks that have not expired.
        self.by_number: dict[int, Lock] = {}
        #: The locks of closed sessions whose records are not all released yet.
        self.abandoned: dict[int, Lock] = {}
        self._latest: dict[str, Lock] = {}
        self._of_member: dict[str, dict[int, None]] = {}
        self._heap: list[tuple[int, int]] = []
        self._next = 1

    def take(self, member: str, first: int, stop: int, now_ms: int, duration_ms: int) -> Lock:
        """Returns a lock with which the member holds the records in [first, stop).

        Extends the member's latest lock if its deadline is near enough to the new deadline; otherwise makes a new lock.
        """
        deadline_ms = now_ms + duration_ms
        lock = self._latest.get(member)
        if lock is not None and deadline_ms <= lock.deadline_ms <= deadline_ms + GRAIN_MS:
            lock.cover(first, stop)
            return lock
        lock = Lock(self._next, member, deadline_ms + GRAIN_MS, first, stop, now_ms)
        self._next += 1
        self._latest[member] = lock
        self.put_back(lock)
        return lock

    def put_back(self, lock: Lock) -> None:
        """Adds a lock: a new lock, or an expired lock that still holds records."""
        self.by_number[lock.number] = lock
        if lock.member is not None:
            self._of_member.setdefault(lock.member, {})[lock.number] = None
        heapq.heappush(self._heap, (lock.deadline_ms, lock.number))

    def abandon(self, member: str) -> None:
        """Takes the locks away from a member whose session is closed."""
        self._latest.pop(member, None)
        for number in self._of_member.pop(member, ()):
            lock = self.by_number[number]
            lock.member = None
            self.abandoned[number] = lock

    def drop(self, lock: Lock) -> None:
        self.by_number.pop(lock.number, None)
        self.abandoned.pop(lock.number, None)
        if lock.member is None:
            return
        numbers = self._of_member.get(lock.member)
        if numbers is not None:
            numbers.pop(lock.number, None)
            if not numbers:
                del self._of_member[lock.member]
        if self._latest.get(lock.member) is lock:
            del self._latest[lock.member]

    def next_deadline(self) -> int | None:
        while self._heap and self._heap[0][1] not in self.by_number:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> list[Lock]:
        """Removes and returns the locks that have expired, in the order of their deadlines."""
        found = []
        while self._heap and self._heap[0][0] <= now_ms:
            lock = self.by_number.get(heapq.heappop(self._heap)[1])
            if lock is not None:
                self.drop(lock)
                found.append(lock)
        return found
