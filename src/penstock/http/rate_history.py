"""Keeps the last POINTS rates of each topic, and of all topics together. Pure code: time is an argument.

A topic is added with its first record. It is removed if none of the last POINTS samples has a new record of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from math import isnan, nan
from typing import NamedTuple

from penstock.http.rates import Rate

#: With a sample every 10 s, an hour.
POINTS = 360
#: Topics with a series. A topic beyond has a history once another topic is silent.
MAX_TOPICS = 2_000


class RatePoint(NamedTuple):
    at_ms: int
    records: float | None
    """Records per second; None if the topic's rate was not known, because a leader did not answer."""
    bytes: float | None


class _Series:
    """Holds the rates of one topic, or of all topics together. The last rate is the newest."""

    __slots__ = ("bytes", "records", "silent")

    def __init__(self) -> None:
        self.records, self.bytes = array("f"), array("f")
        self.silent = 0

    def add(self, rate: Rate | None) -> None:
        self.records.append(nan if rate is None else rate.records)
        self.bytes.append(nan if rate is None else rate.bytes)
        self.silent = 0 if rate is not None and rate.records else self.silent + 1
        if len(self.records) > POINTS:
            del self.records[0], self.bytes[0]

    def points(self, times_ms: array[int]) -> list[RatePoint]:
        first = len(times_ms) - len(self.records)
        return [
            RatePoint(at_ms, None if isnan(records) else records, None if isnan(size) else size)
            for at_ms, records, size in zip(times_ms[first:], self.records, self.bytes)
        ]


class RateHistory:
    def __init__(self) -> None:
        self._times_ms = array("q")
        self._total = _Series()
        self._topics: dict[str, _Series] = {}

    def add_sample(self, at_ms: int, rates: Mapping[str, Rate]) -> None:
        """Adds a sample: the rates of all topics whose rate at the time `at_ms` is known."""
        self._times_ms.append(at_ms)
        if len(self._times_ms) > POINTS:
            del self._times_ms[0]
        known = rates.values()
        self._total.add(Rate(sum(each.records for each in known), sum(each.bytes for each in known)))
        for topic, rate in rates.items():
            if rate.records and topic not in self._topics and len(self._topics) < MAX_TOPICS:
                self._topics[topic] = _Series()
        for topic, series in list(self._topics.items()):
            series.add(rates.get(topic))
            if series.silent >= POINTS:
                del self._topics[topic]

    def of_all(self) -> list[RatePoint]:
        return self._total.points(self._times_ms)

    def of_topic(self, topic: str) -> list[RatePoint]:
        """Returns the rates of a topic; an empty list if the topic had no new records during the whole history."""
        series = self._topics.get(topic)
        return [] if series is None else series.points(self._times_ms)
