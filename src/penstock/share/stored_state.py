"""Holds the state of one share partition at its share coordinator: a start offset and runs of records."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.share.state_journal import Snapshot, Update
from penstock.share.states import FINAL, RecordState, StateBatch
from penstock.share.window import Window

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
        """Returns the start offset and the state batches after an update. Does not change the state."""
        window = Window(self.window.start)
        _add(window, self.batches())
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
    for batch in batches:
        first, stop = max(batch.first, window.start), batch.last + 1
        if window.start == UNKNOWN_OFFSET and not window.size:
            window.drop_before(batch.first)  # a write before the start offset is known
        rank = _RANK.get(batch.state, 0)
        for run in list(window.runs(first, stop)):
            if rank >= _RANK.get(run.state, 0):
                window.fill(run.first, run.stop, batch.state, batch.deliveries)
        if stop > window.end:
            window.append(first, RecordState.AVAILABLE, _UNTOLD)
            window.append(stop, batch.state, batch.deliveries)


def _told(window: Window) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(run.first, run.stop - 1, run.state, run.deliveries)
        for run in window.runs(window.start, window.end)
        if run.deliveries != _UNTOLD
    )
