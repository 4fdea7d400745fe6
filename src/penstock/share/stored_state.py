"""Holds the state of one share partition at its share coordinator: a start offset and ranges of records in the same
state."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import pairwise

from penstock.share.state_journal import Snapshot, Update
from penstock.share.states import FINAL, RecordState, StateBatch
from penstock.share.window import NOBODY, Run, Window

UNKNOWN_OFFSET = -1
_UNTOLD = -1  # a delivery count that means: no write has named these offsets
#: A record goes on to states of a higher rank only, within a state epoch.
_RANK: dict[int, int] = {RecordState.ARCHIVING: 1, **dict.fromkeys(FINAL, 2)}


class StoredState:
    __slots__ = (
        "complete_count",
        "created_ms",
        "leader_epoch",
        "snapshot_epoch",
        "snapshot_offset",
        "state_epoch",
        "updates",
        "window",
        "written_ms",
    )

    def __init__(self, snapshot: Snapshot, log_offset: int) -> None:
        self.snapshot_epoch = snapshot.snapshot_epoch
        self.state_epoch = snapshot.state_epoch
        self.leader_epoch = snapshot.leader_epoch
        self.complete_count = snapshot.complete_count
        self.created_ms = snapshot.created_ms
        self.written_ms = snapshot.written_ms
        #: Where in the coordinator's log the last snapshot is: all that precedes it is redundant for this partition.
        self.snapshot_offset = log_offset
        #: Updates since the snapshot.
        self.updates = 0
        self.window = Window(snapshot.start_offset)
        _add(self.window, snapshot.batches)

    @property
    def start_offset(self) -> int:
        return self.window.start

    def update(self, update: Update) -> None:
        self.leader_epoch = max(self.leader_epoch, update.leader_epoch)
        self.complete_count = update.complete_count
        self.updates += 1
        _merge(self.window, update.start_offset, update.batches)

    def batches(self) -> tuple[StateBatch, ...]:
        return _told(self.window)

    def merged(self, start_offset: int, batches: Iterable[StateBatch]) -> tuple[int, tuple[StateBatch, ...]]:
        """Returns the start offset and the state batches that the state would have after an update."""
        window = self.window.copy()
        _merge(window, start_offset, batches)
        return window.start, _told(window)


def _merge(window: Window, start_offset: int, batches: Iterable[StateBatch]) -> None:
    """Applies a WriteShareGroupState to the window.

    The start offset never decreases, and an acknowledged, archiving or archived record does not become available: a
    delayed write that arrives after a later write must not make the record available again.
    """
    if start_offset != UNKNOWN_OFFSET:
        window.drop_before(start_offset)
    _add(window, batches)


def _add(window: Window, batches: Iterable[StateBatch]) -> None:
    """Adds state batches to the stored state, in one pass."""
    wanted = _flattened(batches)
    if not wanted:
        return
    if window.start == UNKNOWN_OFFSET and not window.size:
        window.drop_before(wanted[0].first)  # a write before the start offset is known
    window.fill_all(list(_accepted(window, wanted)))
    for first, last, state, deliveries in wanted[bisect_right(wanted, window.end, key=lambda batch: batch.last + 1) :]:
        if first > window.end:
            window.append(first, RecordState.AVAILABLE, _UNTOLD)
        window.append(last + 1, state, deliveries)


def _accepted(window: Window, wanted: list[StateBatch]) -> Iterator[Run]:
    """Yields the parts of state batches that may replace the present state, in the order of their offsets.

    States have ranks: available, then archiving, then acknowledged and archived. A state replaces only states of the
    same or a lower rank.
    """
    runs = window.runs(wanted[0].first, wanted[-1].last + 1)
    run = next(runs, None)
    for batch in wanted:
        stop, rank = batch.last + 1, _RANK.get(batch.state, 0)
        while run is not None and run.first < stop:
            if run.stop > batch.first and rank >= _RANK.get(run.state, 0):
                first = max(run.first, batch.first)
                yield Run(first, min(run.stop, stop), batch.state, batch.deliveries, NOBODY)
            if run.stop > stop:
                break  # the next batch may lie in this run, too
            run = next(runs, None)


def _flattened(batches: Iterable[StateBatch]) -> list[StateBatch]:
    """Returns the batches in the order of their offsets and without overlaps.

    Where batches overlap, the state of the highest rank wins (see `_accepted`); among equal ranks, the last batch wins.
    """
    ordered = sorted(enumerate(batches), key=lambda each: each[1].first)
    if all(before.last < after.first for (_, before), (_, after) in pairwise(ordered)):
        return [batch for _, batch in ordered]
    ends = sorted({edge for _, batch in ordered for edge in (batch.first, batch.last + 1)})
    found: list[StateBatch] = []
    open_ones: list[tuple[int, int, StateBatch]] = []  # a heap: the one that counts is first
    position = 0
    for first, stop in pairwise(ends):
        while position < len(ordered) and ordered[position][1].first <= first:
            index, batch = ordered[position]
            heappush(open_ones, (-_RANK.get(batch.state, 0), -index, batch))
            position += 1
        while open_ones and open_ones[0][2].last < first:
            heappop(open_ones)
        if open_ones:
            found.append(open_ones[0][2]._replace(first=first, last=stop - 1))
    return found


def _told(window: Window) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(first, stop - 1, state, deliveries)
        for first, stop, state, deliveries in window.columns()
        if deliveries != _UNTOLD
    )
