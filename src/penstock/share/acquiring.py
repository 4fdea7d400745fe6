"""Tracks one ShareFetch of one partition: the member, the limits, and the records acquired so far."""

from __future__ import annotations

from typing import NamedTuple

from penstock.share.states import Acquired, AcquireMode, ShareLimits
from penstock.share.window import Run


class Wish(NamedTuple):
    """Holds the member that fetches, and the limits of its ShareFetch for one partition."""

    member: str
    max_records: int
    batch_size: int = 500
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED


class Acquiring:
    """Holds the progress of one ShareFetch: the records acquired so far, and the number of records it may still
    acquire."""

    __slots__ = ("limits", "now_ms", "ranges", "stopped", "taken", "throttling", "wish")

    def __init__(self, wish: Wish, limits: ShareLimits, now_ms: int) -> None:
        self.wish = wish
        self.limits = limits
        self.now_ms = now_ms
        self.ranges: list[Acquired] = []
        self.taken = 0
        self.stopped = False
        self.throttling = False

    @property
    def left(self) -> int:
        return self.wish.max_records - self.taken

    @property
    def done(self) -> bool:
        return self.stopped or self.left <= 0

    def portion(self, run: Run, batch_size: int) -> int:
        """Returns how many records of the available range `run` this ShareFetch may acquire."""
        limits = self.limits
        size = run.size if self.wish.mode is AcquireMode.BATCH_OPTIMIZED else min(run.size, self.left)
        if run.deliveries < limits.throttled_from:
            return size
        if self.taken:
            return 0  # delivered later, apart from other records
        self.throttling = True
        alone = limits.max_deliveries > 2 and run.deliveries == limits.max_deliveries - 1
        most = 1 if alone else max(1, batch_size >> (run.deliveries - limits.throttled_from + 1))
        if most <= size:
            self.stopped = True
        return min(size, most)

    def add(self, first: int, stop: int, count: int) -> None:
        self.taken += stop - first
        last = self.ranges[-1] if self.ranges else None
        if (
            last is not None
            and last.last == first - 1
            and last.deliveries == count
            and first - last.first < self.wish.batch_size
        ):
            self.ranges[-1] = Acquired(last.first, stop - 1, count)
        else:
            self.ranges.append(Acquired(first, stop - 1, count))
