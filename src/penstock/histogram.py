"""Counts measurements in buckets, for histograms of metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts measurements by size. `bounds` are the upper bounds of the buckets; the last bucket has no bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0

    def add(self, value: int, weight: int = 1) -> None:
        """Counts a measurement. With a weight, counts it as `weight` equal measurements."""
        self.counts[bisect_left(self.bounds, value)] += weight
        self.total += value * weight
