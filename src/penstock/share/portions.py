"""Splits a long acknowledgement into parts, so that other requests are served between two parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.share.states import AcknowledgedRange
from penstock.share.window import Window

#: Changes of state in one portion, and in one write to the share coordinator: about 10 ms each.
PORTION = 1000


def portions(
    window: Window, ranges: Sequence[AcknowledgedRange], most: int = PORTION
) -> Iterator[list[AcknowledgedRange]]:
    """Splits the acknowledged ranges into short lists, and yields one list at a time.

    Each list causes at most `most` changes of state. The window is examined again for each list, because other requests
    may change it between two lists.
    """
    portion: list[AcknowledgedRange] = []
    left = most
    for each in ranges:
        position, single = each.first, len(each.types) == 1
        while position <= each.last:
            stop = min(window.reach(position, left), each.last + 1)
            if not single:
                stop = min(stop, position + left)
            left -= max(1, window.count(position, stop) if single else stop - position)
            types = each.types if single else each.types[position - each.first : stop - each.first]
            portion.append(AcknowledgedRange(position, stop - 1, types))
            position = stop
            if left <= 0:
                yield portion
                portion, left = [], most
    if portion:
        yield portion
