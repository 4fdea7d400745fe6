"""Computes how fast topics grow now, from two samples. Pure code: time is an argument, in seconds.

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


class Sums(NamedTuple):
    """Holds sums over a topic's partitions, without partitions whose leader did not respond."""

    partitions: int
    end: int
    size: int

    def rate_since(self, earlier: Sums | None, seconds: float) -> Rate | None:
        """Returns how fast the topic has grown since `earlier`, in records and bytes per second.

        Returns None if the topic is new, if its number of partitions has changed, or if its end offsets have gone back.
        """
        if earlier is None or earlier.partitions != self.partitions or earlier.end > self.end:
            return None
        return Rate((self.end - earlier.end) / seconds, max(0, self.size - earlier.size) / seconds)


class Rate(NamedTuple):
    records: float
    bytes: float


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    topics: Mapping[str, Sums]


class Rates:
    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def add_sample(self, at_s: float, topics: Mapping[str, Sums]) -> dict[str, Rate]:
        """Adds a sample and returns the growth rates by topic, as far as they are known."""
        while len(self._samples) > 1 and self._samples[1].at_s <= at_s - WINDOW_S:
            self._samples.popleft()
        before = self._samples[0] if self._samples else None
        self._samples.append(_Sample(at_s, topics))
        if before is None or at_s - before.at_s < SHORTEST_S:
            return {}
        seconds = at_s - before.at_s
        rates = ((name, sums.rate_since(before.topics.get(name), seconds)) for name, sums in topics.items())
        return {name: rate for name, rate in rates if rate is not None}
