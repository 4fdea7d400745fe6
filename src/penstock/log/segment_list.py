"""Keeps the segments of one log in the order of their base offsets. The last segment is active: appends go there."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, overload

from penstock.log.slices import LogSlice

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.log.segment import Segment
    from penstock.log.txn_index import AbortedTransaction

_last_offset = attrgetter("last_offset")


class SegmentList(Sequence["Segment"]):
    """Holds the segments of a log. Only its methods change the list, so that `bases`, `active` and `size` match the
    segments."""

    __slots__ = ("_sealed_size", "_segments", "active", "bases")

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self._sealed_size = sum(segment.size for segment in segments[:-1])

    def __len__(self) -> int:
        return len(self._segments)

    @overload
    def __getitem__(self, slot: int) -> Segment: ...
    @overload
    def __getitem__(self, slot: slice) -> list[Segment]: ...
    def __getitem__(self, slot: int | slice) -> Segment | list[Segment]:
        return self._segments[slot]

    @property
    def size(self) -> int:
        """Returns the size of all segment files together, in bytes, without the index files."""
        return self._sealed_size + self.active.size

    # Reading.

    def starting_at(self, offset: int) -> list[Segment]:
        """Returns the segment that contains `offset`, and all later segments."""
        return self._segments[max(0, bisect_right(self.bases, offset) - 1) :]

    def slice_from(self, log: Log, offset: int, max_bytes: int, upper_bound: int, min_one_batch: bool) -> LogSlice:
        """Returns a slice of `log` that begins with the batch that holds `offset`; an empty slice if there is none.

        All batches of the slice end below `upper_bound`. With `min_one_batch`, the first batch is whole even if it
        exceeds `max_bytes`.
        """
        segments, bases = self._segments, self.bases
        slot = bisect_right(bases, offset) - 1
        while slot < len(segments):
            segment = segments[slot]
            found = segment.locate(offset)
            slot += 1
            if found is None:
                continue
            position, first_size = found
            next_base = log.log_end_offset if slot == len(segments) else bases[slot]
            end = segment.size if upper_bound >= next_base else segment.position_of(upper_bound)
            size = min(max_bytes, end - position)
            if size < first_size:
                size = first_size if min_one_batch and end - position >= first_size else 0
            return LogSlice(log, segment if size else None, position, size)
        return LogSlice(log, None, 0, 0)

    def aborted_between(self, start: int, end: int) -> list[AbortedTransaction]:
        """Returns the aborted transactions that overlap [start, end)."""
        found: list[AbortedTransaction] = []
        for segment in self.starting_at(start):
            if not segment.has_aborted:
                continue
            entries = segment.aborted
            # Entries are in the order of their markers.
            for slot in range(bisect_left(entries, start, key=_last_offset), len(entries)):
                aborted = entries[slot]
                if aborted.first_offset < end:
                    found.append(aborted)
                if aborted.last_stable_offset >= end:
                    return found
        return found

    # Changing.

    def add(self, segment: Segment) -> None:
        """Appends a segment to the list; it becomes the active segment."""
        self._segments.append(segment)
        self._changed()

    def remove(self, doomed: list[Segment]) -> None:
        """Removes the `doomed` segments. If no segment is left, the caller must call `add` before the list is used
        again."""
        self._segments = [segment for segment in self._segments if segment not in doomed]
        self._changed()

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Replaces the consecutive sealed segments `old` by the segments `new`."""
        slot = self._segments.index(old[0])
        self._segments[slot : slot + len(old)] = [new]
        self._changed()

    def _changed(self) -> None:
        self.bases = [segment.base_offset for segment in self._segments]
        if self._segments:
            self.active = self._segments[-1]
        self._sealed_size = sum(segment.size for segment in self._segments[:-1])
