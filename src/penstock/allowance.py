"""Limits the memory that a node uses for its clients. Callers estimate the memory that they need; at intervals, the
memory that is really in use is counted."""

from __future__ import annotations

from collections.abc import Callable

UNLIMITED = 2**63 - 1
#: A count takes a moment, so a full allowance is recounted only after this long.
FULL_RECOUNT_MS = 1_000
#: Any other allowance is recounted after this long, which finds freed memory and state loaded from a log.
RECOUNT_MS = 60_000


class Allowance:
    """Grants memory up to `limit`. The memory in use is the result of the last count plus the bytes granted since."""

    __slots__ = ("_counted_ms", "_counters", "_used", "limit")

    def __init__(self, limit: int = UNLIMITED) -> None:
        self.limit = limit
        self._counters: list[Callable[[], int]] = []
        self._used = 0
        self._counted_ms: int | None = None

    def counted_by(self, counter: Callable[[], int]) -> None:
        """Registers a function that returns how many bytes a part of the node uses. All parts share the limit."""
        self._counters.append(counter)

    def grant(self, size: int, now_ms: int) -> bool:
        """Grants `size` more bytes.

        Returns False if that would exceed the limit. A size of zero or less is always granted.
        """
        if size <= 0 or self.limit == UNLIMITED:
            return True
        since_ms = RECOUNT_MS if self._counted_ms is None else now_ms - self._counted_ms
        if since_ms >= RECOUNT_MS or (self._used + size > self.limit and since_ms >= FULL_RECOUNT_MS):
            self._used = sum(count() for count in self._counters)
            self._counted_ms = now_ms
        if self._used + size > self.limit:
            return False
        self._used += size
        return True
