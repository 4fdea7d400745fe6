"""Holds the offsets that a share group has begun to deliver, as runs: ranges of records in the same state.

A run is an index into four arrays, not an object, and takes 19 bytes. A new batch is one run. If its records are
acknowledged one by one, it is split into several runs. There are no gaps between the runs of the window.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.share.states import RecordState

STATES = max(RecordState) + 1
NOBODY = 0
NO_END = 2**63  # the offset after the last possible offset, so that no range ends behind it


class Run(NamedTuple):
    first: int
    stop: int  # the offset after the last record
    state: int
    deliveries: int
    owner: int  # the lock of acquired records, the transition of pending ones, NOBODY for all others

    @property
    def size(self) -> int:
        return self.stop - self.first


class Window:
    __slots__ = ("_counts", "_firsts", "_owners", "_states", "end", "start", "totals")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        #: Number of records in each state.
        self.totals = [0] * STATES
        self._firsts = array("q")
        self._states = array("b")
        self._counts = array("h")
        self._owners = array("q")

    def __len__(self) -> int:
        """Returns the number of runs: ranges of records in the same state."""
        return len(self._firsts)

    @property
    def size(self) -> int:
        """Returns the number of offsets in the window."""
        return self.end - self.start

    @property
    def bytes(self) -> int:
        """Returns the memory that the arrays use, in bytes."""
        columns = (self._firsts, self._states, self._counts, self._owners)
        return sum(len(column) * column.itemsize for column in columns)

    def runs(self, first: int, stop: int) -> Iterator[Run]:
        """Yields the runs (ranges of records in the same state) that overlap [first, stop), cut to this range.

        The window must not change during the iteration.
        """
        first, stop = max(first, self.start), min(stop, self.end)
        if first >= stop:
            return
        firsts = self._firsts
        index = bisect_right(firsts, first) - 1
        while index < len(firsts) and firsts[index] < stop:
            after = firsts[index + 1] if index + 1 < len(firsts) else self.end
            yield Run(
                max(firsts[index], first),
                min(after, stop),
                self._states[index],
                self._counts[index],
                self._owners[index],
            )
            index += 1

    def columns(self) -> Iterator[tuple[int, int, int, int]]:
        """Yields first offset, stop offset, state and delivery count of each run, much faster than `runs`.

        The window must not change during the iteration.
        """
        stops = self._firsts[1:]
        stops.append(self.end)
        return zip(self._firsts, stops, self._states, self._counts)

    def copy(self) -> Window:
        copied = Window(self.start)
        copied.end, copied.totals = self.end, self.totals[:]
        copied._firsts, copied._states = self._firsts[:], self._states[:]
        copied._counts, copied._owners = self._counts[:], self._owners[:]
        return copied

    def count(self, first: int, stop: int) -> int:
        """Returns the number of runs (ranges of records in the same state) that overlap [first, stop)."""
        first = max(first, self.start)
        return max(0, bisect_left(self._firsts, stop) - max(0, bisect_right(self._firsts, first) - 1))

    def reach(self, first: int, runs: int) -> int:
        """Returns the first offset after the next `runs` runs (ranges of records in the same state), counted from
        `first`.

        Returns NO_END if the window has no more runs after them.
        """
        after = max(0, bisect_right(self._firsts, max(first, self.start)) - 1) + runs
        return self._firsts[after] if after < len(self._firsts) else NO_END

    def first_in(self, state: int, since: int) -> int | None:
        """Returns the lowest offset at or after `since` whose record is in this state; None if there is none."""
        if not self.totals[state]:
            return None
        since = max(since, self.start)
        states, firsts = self._states, self._firsts
        index = max(0, bisect_right(firsts, since) - 1)
        try:
            found = states.index(state, index)
        except ValueError:
            return None
        return max(firsts[found], since)

    def append(self, stop: int, state: int, count: int = 0, owner: int = NOBODY) -> None:
        """Extends the window up to offset `stop`. The new records are all in the given state."""
        if stop <= self.end:
            return
        self.totals[state] += stop - self.end
        if not self._ends_with(len(self._firsts) - 1, state, count, owner):
            self._firsts.append(self.end)
            self._states.append(state)
            self._counts.append(count)
            self._owners.append(owner)
        self.end = stop

    def _ends_with(self, index: int, state: int, count: int, owner: int) -> bool:
        return (
            index >= 0
            and self._states[index] == state
            and self._counts[index] == count
            and self._owners[index] == owner
        )

    def fill(self, first: int, stop: int, state: int, count: int = 0, owner: int = NOBODY) -> None:
        """Sets the state of the window's records in [first, stop)."""
        first, stop = max(first, self.start), min(stop, self.end)
        if first >= stop:
            return
        low, high = self._cut(first), self._cut(stop)
        self._uncount(low, high)
        self.totals[state] += stop - first
        merged = self._ends_with(low - 1, state, count, owner)
        if high < len(self._firsts) and self._ends_with(high, state, count, owner):
            high += 1
        self._replace(low, high, () if merged else (first,), state, count, owner)

    def fill_all(self, wanted: Sequence[Run]) -> None:
        """Sets the states of many ranges in one pass. The ranges must be in order and must not overlap."""
        wanted = [run for run in wanted if run.stop > self.start and run.first < self.end]
        if not wanted:
            return
        first, stop = max(wanted[0].first, self.start), min(wanted[-1].stop, self.end)
        low, high = self._cut(first), self._cut(stop)
        parts = list(_overlaid(list(self.runs(first, stop)), wanted))
        self._uncount(low, high)
        firsts, states, counts, owners = array("q"), array("b"), array("h"), array("q")
        last = (self._states[low - 1], self._counts[low - 1], self._owners[low - 1]) if low else None
        for begin, end, state, count, owner in parts:
            self.totals[state] += end - begin
            if (state, count, owner) != last:
                last = (state, count, owner)
                firsts.append(begin)
                states.append(state)
                counts.append(count)
                owners.append(owner)
        if last is not None and high < len(self._firsts) and self._ends_with(high, *last):
            high += 1
        self._firsts[low:high] = firsts
        self._states[low:high] = states
        self._counts[low:high] = counts
        self._owners[low:high] = owners

    def drop_before(self, offset: int) -> None:
        """Moves the start of the window to `offset`. If `offset` is after the end, the window becomes empty."""
        if offset <= self.start:
            return
        if offset >= self.end:
            self._uncount(0, len(self._firsts))
            self._replace(0, len(self._firsts), (), 0, 0, 0)
            self.start = self.end = offset
            return
        index = self._cut(offset)
        self._uncount(0, index)
        self._replace(0, index, (), 0, 0, 0)
        self.start = offset

    def _cut(self, offset: int) -> int:
        """Returns the index of the range (of records in the same state) that begins at `offset`.

        If no range begins there, splits the range that contains `offset`.
        """
        firsts = self._firsts
        index = bisect_left(firsts, offset)
        if offset >= self.end or (index < len(firsts) and firsts[index] == offset):
            return index
        firsts.insert(index, offset)
        for column in (self._states, self._counts, self._owners):
            column.insert(index, column[index - 1])
        return index

    def _uncount(self, low: int, high: int) -> None:
        firsts, totals = self._firsts, self.totals
        for index in range(low, high):
            after = firsts[index + 1] if index + 1 < len(firsts) else self.end
            totals[self._states[index]] -= after - firsts[index]

    def _replace(self, low: int, high: int, firsts: tuple[int, ...], state: int, count: int, owner: int) -> None:
        some = len(firsts)
        self._firsts[low:high] = array("q", firsts)
        self._states[low:high] = array("b", [state] * some)
        self._counts[low:high] = array("h", [count] * some)
        self._owners[low:high] = array("q", [owner] * some)


def _overlaid(present: list[Run], wanted: Sequence[Run]) -> Iterator[Run]:
    """Yields the ranges of `present`, replaced by the ranges of `wanted` where both overlap.

    The ranges of `present` have no gaps between them.
    """
    first, stop = present[0].first, present[-1].stop
    position = first
    index = 0
    for run in wanted:
        begin, end = max(run.first, first), min(run.stop, stop)
        while position < begin:
            under = present[index]
            upto = min(under.stop, begin)
            yield Run(position, upto, under.state, under.deliveries, under.owner)
            position = upto
            if position == under.stop:
                index += 1
        yield Run(begin, end, run.state, run.deliveries, run.owner)
        position = end
        while index < len(present) and present[index].stop <= position:
            index += 1
