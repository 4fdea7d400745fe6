"""Computes how fast topics grow, from two samples. Pure: time is an argument, in seconds.

No counters are needed: the difference between two samples of an end offset is the number of records appended in
between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: A rate is taken over the samples of this window.
WINDOW_S = 10.0
SHORTEST_S = 0.5
POINTS = 300


class Sums(NamedTuple):
    """Holds sums over a topic's partitions, without partitions whose leader did not respond."""

    partitions: int
    end: int
    size: int


class Rate(NamedTuple):
    records: float
    bytes: float


class Point(NamedTuple):
    """Holds the sum of the growth rates of all topics at one time."""

    at_s: float
    records: float
    bytes: float


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    topics: Mapping[str, Sums]


class Rates:
    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()
        #: The rates of all topics together, a point per sample.
        self.history: deque[Point] = deque(maxlen=POINTS)

    def add_sample(self, at_s: float, topics: Mapping[str, Sums]) -> dict[str, Rate]:
        """Adds a sample and returns the growth rates by topic.

        Leaves out a topic if it is new, if its number of partitions has changed, or if its end offsets have gone back.
        """
        now = _Sample(at_s, topics)
        while len(self._samples) > 1 and self._samples[1].at_s <= at_s - WINDOW_S:
            self._samples.popleft()
        before = self._samples[0] if self._samples else None
        self._samples.append(now)
        if before is None or at_s - before.at_s < SHORTEST_S:
            return {}
        found = {}
        for name, sums in topics.items():
            earlier = before.topics.get(name)
            if earlier is not None and earlier.partitions == sums.partitions and earlier.end <= sums.end:
                seconds = at_s - before.at_s
                found[name] = Rate((sums.end - earlier.end) / seconds, max(0, sums.size - earlier.size) / seconds)
        rates = found.values()
        self.history.append(Point(at_s, sum(each.records for each in rates), sum(each.bytes for each in rates)))
        return found
