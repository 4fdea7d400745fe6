"""Keeps recent lags of the groups that clients describe. Pure: time is an argument, in milliseconds.

Each request that describes a group adds a sample. So a group that is never described costs nothing, and the history of
a group has gaps.
"""

from __future__ import annotations

from collections import OrderedDict, deque

MAX_GROUPS = 200
POINTS = 360
SHORTEST_MS = 1000


class LagHistory:
    def __init__(self) -> None:
        self._groups: OrderedDict[str, deque[tuple[int, int]]] = OrderedDict()

    def add_sample(self, group: str, at_ms: int, lag: int) -> list[tuple[int, int]]:
        """Adds a sample, unless the last sample is younger than SHORTEST_MS. Returns the samples as (time, lag)."""
        samples = self._groups.setdefault(group, deque(maxlen=POINTS))
        self._groups.move_to_end(group)
        if len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)
        if not samples or at_ms - samples[-1][0] >= SHORTEST_MS:
            samples.append((at_ms, lag))
        return list(samples)
