"""How fast topics grow, from one look to a later one. Pure: time is an argument, in seconds.

Nothing is counted for it: a look knows where every log ends, and two looks know what came in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: A rate is over the looks of the last so many seconds.
WINDOW_S = 10.0
SHORTEST_S = 0.5
POINTS = 60


class Sums(NamedTuple):
    """Of a topic's partitions whose leaders have told."""

    partitions: int
    end: int
    size: int


class Rate(NamedTuple):
    records: float
    bytes: float


@dataclass(frozen=True, slots=True)
class _Look:
    at_s: float
    topics: Mapping[str, Sums]


class Rates:
    def __init__(self) -> None:
        self._looks: deque[_Look] = deque()
        #: Records a second over all topics, look by look.
        self.history: deque[float] = deque(maxlen=POINTS)

    def see(self, at_s: float, topics: Mapping[str, Sums]) -> dict[str, Rate]:
        """The rates as of this look; without those that can't be told yet, or of topics that changed meanwhile."""
        now = _Look(at_s, topics)
        while len(self._looks) > 1 and self._looks[1].at_s <= at_s - WINDOW_S:
            self._looks.popleft()
        before = self._looks[0] if self._looks else None
        self._looks.append(now)
        if before is None or at_s - before.at_s < SHORTEST_S:
            return {}
        found = {}
        for name, sums in topics.items():
            earlier = before.topics.get(name)
            if earlier is not None and earlier.partitions == sums.partitions and earlier.end <= sums.end:
                seconds = at_s - before.at_s
                found[name] = Rate((sums.end - earlier.end) / seconds, max(0, sums.size - earlier.size) / seconds)
        self.history.append(sum(rate.records for rate in found.values()))
        return found
