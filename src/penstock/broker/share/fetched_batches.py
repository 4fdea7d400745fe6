"""Finds the record batches in bytes that were read from a log: their offsets, and whether they can be delivered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.records.batches import iter_batches
from penstock.records.control import read_end_txn
from penstock.share.states import Acquired, FetchedBatch

if TYPE_CHECKING:
    from penstock.log.txn_index import AbortedTransaction


class FetchedBatches:
    """Iterates over the batches in bytes that were read from a log. Then `cut` returns the bytes of the acquired
    batches.
    """

    __slots__ = ("_aborted", "_data", "_places")

    def __init__(self, data: Any, aborted: Sequence[AbortedTransaction] = ()) -> None:
        """Marks batches of the transactions in `aborted` as not deliverable.

        `aborted` is empty for a group that also reads uncommitted records.
        """
        self._data = memoryview(data)
        self._aborted = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._places: list[tuple[int, int, int, int]] = []  # first and last offset, first byte and byte after the last

    def __len__(self) -> int:
        """Returns the number of batches that the iteration has reached."""
        return len(self._places)

    def __iter__(self) -> Iterator[FetchedBatch]:
        position = 0
        aborting: set[int] = set()
        for header, batch in iter_batches(self._data, allow_partial=True):
            last = header.last_offset
            while self._aborted and self._aborted[-1].first_offset <= last:
                aborting.add(self._aborted.pop().producer_id)
            self._places.append((header.base_offset, last, position, position + header.size))
            position += header.size
            if header.is_control:
                marker = read_end_txn(batch) if header.producer_id in aborting else None
                if marker is not None and not marker.committed:
                    aborting.discard(header.producer_id)
                yield FetchedBatch(header.base_offset, last, deliverable=False)
            else:
                dropped = header.is_transactional and header.producer_id in aborting
                yield FetchedBatch(header.base_offset, last, deliverable=not dropped)

    def cut(self, acquired: Sequence[Acquired]) -> memoryview:
        """Returns the bytes of the batches from the first to the last acquired record."""
        first, last = acquired[0].first, acquired[-1].last
        held = [place for place in self._places if place[0] <= last and place[1] >= first]
        return self._data[held[0][2] : held[-1][3]]
