"""Keeps the deadlines of open transactions in a heap, with one entry per transactional id.

A heap entry is corrected only when its time comes. If its id has a later deadline by then, the id gets a new entry. If
its transaction has ended, the caller ignores the deadline: a deadline names its transaction by producer id, epoch and
start time.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple


class Deadline(NamedTuple):
    at_ms: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    start_ms: int


class Deadlines:
    __slots__ = ("_heap", "_queued", "_wanted")

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._queued: dict[str, int] = {}
        self._wanted: dict[str, Deadline] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: Deadline) -> None:
        """Sets the deadline of a transactional id, and replaces the id's earlier deadline."""
        self._wanted[deadline.transactional_id] = deadline
        queued_ms = self._queued.get(deadline.transactional_id)
        if queued_ms is None or deadline.at_ms < queued_ms:
            self._queue(deadline)

    def _queue(self, deadline: Deadline) -> None:
        self._queued[deadline.transactional_id] = deadline.at_ms
        heapq.heappush(self._heap, (deadline.at_ms, deadline.transactional_id))

    def next_ms(self) -> int | None:
        """Returns the time of the next check for due deadlines. No deadline is due before this time."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> list[Deadline]:
        found: list[Deadline] = []
        while self._heap and self._heap[0][0] <= now_ms:
            queued_ms, transactional_id = heapq.heappop(self._heap)
            if self._queued.get(transactional_id) != queued_ms:
                continue  # already handled by an earlier deadline that was queued later
            del self._queued[transactional_id]
            deadline = self._wanted[transactional_id]
            if deadline.at_ms > now_ms:
                self._queue(deadline)
            else:
                del self._wanted[transactional_id]
                found.append(deadline)
        return found
