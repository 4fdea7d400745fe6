"""What the quorum has to know of its log: where it starts and ends, what is fsynced, and where each epoch began.

The records are the caller's. This view is changed together with the effect that tells the caller to do the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.check import check
from penstock.raft.voters import VoterSet


class OffsetAndEpoch(NamedTuple):
    """An end offset, and the epoch of the last record before it. Names a snapshot, and a point where logs part."""

    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that stand or fall together. `voters` is the set that its control record brings, if it holds one."""

    base_offset: int
    last_offset: int
    epoch: int
    content: Any
    voters: VoterSet | None = None


class Diverging(NamedTuple):
    """The logs part here at the latest: the asker has to cut its own."""

    end: OffsetAndEpoch


class Behind(NamedTuple):
    """The asker needs what only a snapshot has."""

    snapshot: OffsetAndEpoch


class LogView:
    __slots__ = ("_epochs", "_starts", "end_offset", "flushed_offset", "snapshot", "start_offset")

    def __init__(
        self,
        *,
        start_offset: int = 0,
        end_offset: int = 0,
        epochs: Sequence[tuple[int, int]] = (),
        snapshot: OffsetAndEpoch | None = None,
    ) -> None:
        """A log as recovery left it. `epochs` is (epoch, start offset); all of it is on disk."""
        check(start_offset <= end_offset, "a log ends where it starts or later")
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.flushed_offset = end_offset
        self.snapshot = snapshot
        self._epochs = [epoch for epoch, _ in epochs]
        self._starts = [start for _, start in epochs]
        self._anchor()

    def _anchor(self) -> None:
        """A log that starts where its snapshot ends knows the epoch of the record before its first."""
        snapshot = self.snapshot
        if snapshot is None or self.start_offset != snapshot.offset:
            return
        if not self._epochs or self._epochs[0] > snapshot.epoch:
            self._epochs.insert(0, snapshot.epoch)
            self._starts.insert(0, self.start_offset)

    @property
    def last_epoch(self) -> int:
        return self._epochs[-1] if self._epochs else 0

    def is_at_most(self, last_epoch: int, end_offset: int) -> bool:
        """Whether a log that ends like that has all that this one could have committed."""
        return (last_epoch, end_offset) >= (self.last_epoch, self.end_offset)

    def append(self, batch: Batch) -> None:
        check(batch.base_offset == self.end_offset, "a batch follows the one before it")
        check(batch.epoch >= self.last_epoch, "epochs grow along the log")
        if batch.epoch > self.last_epoch or not self._epochs:
            self._epochs.append(batch.epoch)
            self._starts.append(batch.base_offset)
        self.end_offset = batch.last_offset + 1

    def flushed(self, offset: int) -> None:
        check(offset <= self.end_offset, "only what is in the log is on disk")
        self.flushed_offset = max(self.flushed_offset, offset)

    def _check_quiet(self) -> None:
        """An fsync that ends after a cut would be taken for one of what was appended since."""
        check(self.flushed_offset == self.end_offset, "a log is cut when no fsync is under way")

    def truncate_to(self, offset: int) -> None:
        check(self.start_offset <= offset <= self.end_offset, "a cut falls inside of the log")
        self._check_quiet()
        self.end_offset = offset
        self.flushed_offset = offset
        floor = 1 if self._starts and self._starts[0] == self.start_offset and self.snapshot is not None else 0
        while len(self._starts) > floor and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()

    def snapshot_taken(self, snapshot: OffsetAndEpoch, start_offset: int) -> None:
        """A snapshot is on disk and the log now starts at `start_offset`, which is in it or follows it."""
        check(start_offset <= snapshot.offset <= self.end_offset, "a snapshot holds what the log has lost")
        self.snapshot = snapshot
        self.start_offset = max(self.start_offset, start_offset)
        keep = max(0, bisect_right(self._starts, self.start_offset) - 1)
        del self._epochs[:keep], self._starts[:keep]
        if self._starts:
            self._starts[0] = max(self._starts[0], self.start_offset)
        self._anchor()

    def reset(self, snapshot: OffsetAndEpoch) -> None:
        """Nothing is left but the snapshot; the next record gets its end offset."""
        self._check_quiet()
        self.snapshot = snapshot
        self.start_offset = self.end_offset = self.flushed_offset = snapshot.offset
        self._epochs = [snapshot.epoch]
        self._starts = [snapshot.offset]

    def end_offset_for(self, epoch: int) -> OffsetAndEpoch:
        """The largest epoch of the log that is not above `epoch`, and where it ends."""
        above = bisect_right(self._epochs, epoch)
        end = self.end_offset if above == len(self._epochs) else self._starts[above]
        return OffsetAndEpoch(end, self._epochs[above - 1] if above else 0)

    def compare(self, offset: int, last_epoch: int) -> Diverging | Behind | None:
        """Whether a log that ends at `offset`, in `last_epoch`, is a prefix of this one (None)."""
        if self.start_offset > 0:
            assert self.snapshot is not None
            if offset < self.start_offset:
                return Behind(self.snapshot)
            if offset == self.start_offset and (offset, last_epoch) != self.snapshot:
                return Behind(self.snapshot)
        end = self.end_offset_for(last_epoch)
        if end.epoch == last_epoch and offset <= end.offset:
            return None
        if end.offset < self.start_offset or (end.offset == self.start_offset > 0):
            assert self.snapshot is not None
            return Behind(self.snapshot)
        return Diverging(end)

    def cut_for(self, end: OffsetAndEpoch) -> int:
        """Where to cut when the leader's log has `end.epoch` end at `end.offset`."""
        mine = self.end_offset_for(end.epoch)
        return min(mine.offset, end.offset) if mine.epoch == end.epoch else mine.offset
