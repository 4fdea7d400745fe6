"""When open transactions time out: a heap whose entries are looked at only when their time comes."""

from __future__ import annotations

import heapq
from typing import NamedTuple


class Deadline(NamedTuple):
    """Names one transaction, so that an entry that outlives it does nothing to the next one."""

    at_ms: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    start_ms: int


class Deadlines:
    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[Deadline] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: Deadline) -> None:
        heapq.heappush(self._heap, deadline)

    def next_ms(self) -> int | None:
        return self._heap[0].at_ms if self._heap else None

    def due(self, now_ms: int) -> list[Deadline]:
        found: list[Deadline] = []
        while self._heap and self._heap[0].at_ms <= now_ms:
            found.append(heapq.heappop(self._heap))
        return found
