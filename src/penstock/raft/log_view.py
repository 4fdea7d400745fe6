"""Keeps the quorum's view of its log: start and end offset, flushed offset, and the start of each epoch.

The caller holds the records. Each change of this view comes with an effect that makes the caller change the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.check import check
from penstock.raft.voters import VoterSet


class OffsetAndEpoch(NamedTuple):
    """Holds the end offset of a log or snapshot, and the epoch of the last record before this offset.

    Identifies a snapshot, or the point at which two logs diverge.
    """

    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Holds records that are kept or truncated together. `voters` is the set of voters in the control record, if
    any."""

    base_offset: int
    last_offset: int
    epoch: int
    content: Any
    voters: VoterSet | None = None


class Diverging(NamedTuple):
    """Tells a follower to truncate its log, which diverges from the leader's log at or before `end`."""

    end: OffsetAndEpoch


class Behind(NamedTuple):
    """Tells a follower to fetch the snapshot, because only the snapshot still contains the requested records."""

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
        """Creates the view of a recovered log. `epochs` are (epoch, start offset) pairs; all of the log is on disk."""
        check(start_offset <= end_offset, "a log does not end before its start")
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.flushed_offset = end_offset
        self.snapshot = snapshot
        self._epochs = [epoch for epoch, _ in epochs]
        self._starts = [start for _, start in epochs]
        self._anchor()

    def _anchor(self) -> None:
        """Adds the epoch of the snapshot's last record to the list of epochs, if the log starts at the snapshot's end.

        The snapshot then holds the record directly before the log's first record.
        """
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
        """Returns True if a log with this last epoch and end offset is at least as up to date as this log."""
        return (last_epoch, end_offset) >= (self.last_epoch, self.end_offset)

    def append(self, batch: Batch) -> None:
        check(batch.base_offset == self.end_offset, "a batch starts at the end of the log")
        check(batch.epoch >= self.last_epoch, "epochs do not decrease along the log")
        if batch.epoch > self.last_epoch or not self._epochs:
            self._epochs.append(batch.epoch)
            self._starts.append(batch.base_offset)
        self.end_offset = batch.last_offset + 1

    def flushed(self, offset: int) -> None:
        check(offset <= self.end_offset, "the flushed offset does not pass the end of the log")
        self.flushed_offset = max(self.flushed_offset, offset)

    def _check_quiet(self) -> None:
        """Raises an error if an fsync is in progress. Called before the log is truncated or reset.

        Otherwise the end of this fsync would count for new records at the same offsets, which are not on disk yet.
        """
        check(self.flushed_offset == self.end_offset, "a log is truncated only while no fsync is in progress")

    def truncate_to(self, offset: int) -> None:
        check(self.start_offset <= offset <= self.end_offset, "a truncation ends inside the log")
        self._check_quiet()
        self.end_offset = offset
        self.flushed_offset = offset
        floor = 1 if self._starts and self._starts[0] == self.start_offset and self.snapshot is not None else 0
        while len(self._starts) > floor and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()

    def snapshot_taken(self, snapshot: OffsetAndEpoch, start_offset: int) -> None:
        """Records that a snapshot is on disk and that the log now starts at `start_offset`, at or before the snapshot's
        end."""
        check(start_offset <= snapshot.offset <= self.end_offset, "a snapshot contains all removed records")
        self.snapshot = snapshot
        self.start_offset = max(self.start_offset, start_offset)
        keep = max(0, bisect_right(self._starts, self.start_offset) - 1)
        del self._epochs[:keep], self._starts[:keep]
        if self._starts:
            self._starts[0] = max(self._starts[0], self.start_offset)
        self._anchor()

    def reset(self, snapshot: OffsetAndEpoch) -> None:
        """Empties the view of the log; the next record gets the snapshot's end offset."""
        self._check_quiet()
        self.snapshot = snapshot
        self.start_offset = self.end_offset = self.flushed_offset = snapshot.offset
        self._epochs = [snapshot.epoch]
        self._starts = [snapshot.offset]

    def end_offset_for(self, epoch: int) -> OffsetAndEpoch:
        """Returns the largest epoch of the log that is not above `epoch`, and its end offset."""
        above = bisect_right(self._epochs, epoch)
        end = self.end_offset if above == len(self._epochs) else self._starts[above]
        return OffsetAndEpoch(end, self._epochs[above - 1] if above else 0)

    def compare(self, offset: int, last_epoch: int) -> Diverging | Behind | None:
        """Compares this log with a follower's log, which ends at `offset` with a record of `last_epoch`. Returns None
        if the follower's log is a prefix of this log."""
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
        """Returns the offset to which this log, a follower's log, must be truncated.

        `end` is from the leader's answer: in the leader's log, the epoch `end.epoch` ends at `end.offset`.
        """
        mine = self.end_offset_for(end.epoch)
        return min(mine.offset, end.offset) if mine.epoch == end.epoch else mine.offset
