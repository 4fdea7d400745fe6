"""Keeps the start offset of each leader epoch of a log.

Followers use these offsets to find where their log and the leader's log diverge.

Epochs and start offsets both increase. The file is Kafka's `leader-epoch-checkpoint`: a version, a count, then one line
(epoch, start offset) per epoch.
"""

from __future__ import annotations

from bisect import bisect_right

from penstock.log.checkpoints import CheckpointError, parse_lines, render_lines

UNDEFINED = -1


class LeaderEpochCache:
    __slots__ = ("changed", "epochs", "latest_epoch", "starts")

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.starts: list[int] = []
        #: The last of `epochs`, kept apart: every append compares it with its own.
        self.latest_epoch: int | None = None
        #: Set by every change; cleared when the file is written.
        self.changed = False

    def __len__(self) -> int:
        return len(self.epochs)

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self.epochs, self.starts))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Records that `epoch` starts at `start_offset`, and removes entries that contradict the new entry.

        Returns False and changes nothing if `epoch` is already the latest epoch.
        """
        if epoch < 0 or (self.epochs and epoch == self.epochs[-1]):
            return False
        while self.epochs and (self.epochs[-1] >= epoch or self.starts[-1] >= start_offset):
            self.epochs.pop()
            self.starts.pop()
        self.epochs.append(epoch)
        self.starts.append(start_offset)
        self._changed()
        return True

    def epoch_for_offset(self, offset: int) -> int:
        slot = bisect_right(self.starts, offset) - 1
        return self.epochs[slot] if slot >= 0 else UNDEFINED

    def next_start(self, offset: int) -> int:
        """Returns the start offset of the first epoch that starts above `offset`; 2^63 if there is no such epoch."""
        slot = bisect_right(self.starts, offset)
        return self.starts[slot] if slot < len(self.starts) else 1 << 63

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Returns the largest known epoch that is not above `epoch`, and the end offset of that epoch.

        As in Kafka, returns (-1, -1) if `epoch` is above all known epochs: its end is unknown here.
        """
        if epoch == UNDEFINED or not self.epochs or epoch > self.epochs[-1]:
            return UNDEFINED, UNDEFINED
        if epoch == self.epochs[-1]:
            return epoch, log_end_offset
        above = bisect_right(self.epochs, epoch)
        known = self.epochs[above - 1] if above else epoch
        return known, self.starts[above]

    def truncate_from_end(self, end_offset: int) -> None:
        while self.starts and self.starts[-1] >= end_offset:
            self.epochs.pop()
            self.starts.pop()
            self._changed()

    def truncate_from_start(self, start_offset: int) -> None:
        """Removes epochs that end at or before `start_offset`. An epoch that contains this offset now starts there."""
        slot = bisect_right(self.starts, start_offset) - 1
        if slot < 0 or (slot == 0 and self.starts[0] == start_offset):
            return
        del self.epochs[:slot]
        del self.starts[:slot]
        self.starts[0] = start_offset
        self.changed = True

    def clear(self) -> None:
        if self.epochs:
            self.epochs.clear()
            self.starts.clear()
            self._changed()

    def _changed(self) -> None:
        self.latest_epoch = self.epochs[-1] if self.epochs else None
        self.changed = True

    def copy_from(self, other: LeaderEpochCache) -> None:
        """Replaces the epochs of this cache by a copy of the epochs of `other`."""
        if (self.epochs, self.starts) != (other.epochs, other.starts):
            self.epochs, self.starts = list(other.epochs), list(other.starts)
            self._changed()

    def to_bytes(self) -> bytes:
        return render_lines(f"{epoch} {start}" for epoch, start in zip(self.epochs, self.starts))

    @staticmethod
    def from_bytes(data: bytes) -> LeaderEpochCache:
        """Parses a `leader-epoch-checkpoint` file. Raises CheckpointError if it is torn."""
        cache = LeaderEpochCache()
        for line in parse_lines(data):
            try:
                epoch, start = map(int, line.split(" "))
            except ValueError:
                raise CheckpointError(f"the line {line!r} does not consist of an epoch and an offset") from None
            if cache.epochs and (epoch <= cache.epochs[-1] or start < cache.starts[-1]):
                raise CheckpointError(f"epochs are out of order at the line {line!r}")
            cache.epochs.append(epoch)
            cache.starts.append(start)
            cache.latest_epoch = epoch
        return cache


def common_end(ours: LeaderEpochCache, our_end: int, theirs: LeaderEpochCache, their_end: int, start: int) -> int:
    """Compares the leader epochs of two logs from `start` on. Returns the offset at which they first differ.

    Offset and leader epoch identify a record, so both logs have the same records below the returned offset. If the
    epochs never differ, returns the end of the shorter log.
    """
    end = min(our_end, their_end)
    offset = min(start, end)
    while offset < end and ours.epoch_for_offset(offset) == theirs.epoch_for_offset(offset):
        offset = min(ours.next_start(offset), theirs.next_start(offset), end)
    return offset
