"""Keeps acquisition locks: which member holds which acquired records, and until when.

Records that a member acquires within a short time share one lock, so that the number of locks does not grow with the
number of records. A heap finds the expired locks without a scan.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

#: Records that a member acquires within this time share a lock. A lock lasts up to this much longer than configured.
GRAIN_MS = 50


@dataclass(slots=True)
class Lock:
    number: int
    member: str
    deadline_ms: int
    first: int  # the records are in [first, stop); other locks may have records there too
    stop: int
    since_ms: int


class Locks:
    __slots__ = ("_heap", "_latest", "_next", "_of_member", "by_number")

    def __init__(self) -> None:
        #: The locks that have not expired.
        self.by_number: dict[int, Lock] = {}
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
            lock.first, lock.stop = min(lock.first, first), max(lock.stop, stop)
            return lock
        lock = Lock(self._next, member, deadline_ms + GRAIN_MS, first, stop, now_ms)
        self._next += 1
        self._latest[member] = lock
        self.put_back(lock)
        return lock

    def put_back(self, lock: Lock) -> None:
        """Keeps a lock: a new lock, or a lock that `due` has returned and that still holds records."""
        self.by_number[lock.number] = lock
        self._of_member.setdefault(lock.member, {})[lock.number] = None
        heapq.heappush(self._heap, (lock.deadline_ms, lock.number))

    def held_by(self, member: str) -> Iterator[Lock]:
        for number in self._of_member.get(member, ()):
            yield self.by_number[number]

    def drop(self, lock: Lock) -> None:
        self.by_number.pop(lock.number, None)
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
