"""Keeps the lags of groups during the last hour. Pure code: time is an argument, in milliseconds.

The sampler regularly adds the lags of all groups. A request that describes a group also adds the group's lags, if the
last sample is old. Each topic has its own samples, because not every user may see all topics of a group: each user gets
the sum over the topics that this user may see.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping

#: Series of samples, one for each topic of a group. A group beyond has a history once others get no samples any more.
MAX_SERIES = 2_000
#: A group with more topics has no history, because its sums would take too long.
MAX_TOPICS = 200
#: With a sample every 10 s, an hour.
POINTS = 360
#: A series without a sample for this time may be removed, for example that of a deleted group.
STALE_MS = 300_000


class _Series:
    __slots__ = ("lags", "times_ms")

    def __init__(self) -> None:
        self.times_ms, self.lags = array("q"), array("q")

    def add(self, at_ms: int, lag: int) -> None:
        self.times_ms.append(at_ms)
        self.lags.append(lag)
        if len(self.times_ms) > POINTS:
            del self.times_ms[0], self.lags[0]


class LagHistory:
    def __init__(self, shortest_ms: int = 0) -> None:
        """Creates an empty history. Drops a sample that comes less than `shortest_ms` after the topic's last sample."""
        self._shortest_ms = shortest_ms
        #: The series by group and topic; the one with the newest sample is the last.
        self._series: OrderedDict[tuple[str, str], _Series] = OrderedDict()

    def add_sample(self, group: str, at_ms: int, lags: Mapping[str, int]) -> None:
        """Adds a sample: the lag of each topic of a group at the time `at_ms`."""
        if len(lags) > MAX_TOPICS:
            return
        for topic, lag in lags.items():
            series = self._series.get((group, topic))
            if series is None:
                if not self._has_room(at_ms):
                    return
                series = self._series[group, topic] = _Series()
            elif at_ms - series.times_ms[-1] < self._shortest_ms:
                continue
            series.add(at_ms, lag)
            self._series.move_to_end((group, topic))

    def _has_room(self, at_ms: int) -> bool:
        """Returns True if one more series can be added. At the limit, first removes a series without new samples."""
        if len(self._series) < MAX_SERIES:
            return True
        oldest = next(iter(self._series.values()))
        if at_ms - oldest.times_ms[-1] < STALE_MS:
            return False
        self._series.popitem(last=False)
        return True

    def samples(self, group: str, topics: Collection[str]) -> list[tuple[int, int]]:
        """Returns pairs (time, lag) of a group. Each lag is the sum of the topics' latest samples at that time.

        A topic without a sample at that time counts as 0. Returns an empty list for more than MAX_TOPICS topics.
        """
        if len(topics) > MAX_TOPICS:
            return []
        known = (self._series.get((group, topic)) for topic in topics)
        return _summed(each for each in known if each is not None)


def _summed(series: Iterable[_Series]) -> list[tuple[int, int]]:
    same_times: dict[bytes, list[_Series]] = {}
    for each in series:
        same_times.setdefault(each.times_ms.tobytes(), []).append(each)
    changes: Counter[int] = Counter()
    for members in same_times.values():  # one list in most cases, because a sample has all topics of a group
        before = 0
        for at_ms, lags in zip(members[0].times_ms, zip(*(each.lags for each in members))):
            lag = sum(lags)
            changes[at_ms] += lag - before
            before = lag
    found, lag = [], 0
    for at_ms in sorted(changes):
        lag += changes[at_ms]
        found.append((at_ms, lag))
    return found[-POINTS:]
