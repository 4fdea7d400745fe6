"""Reads the committed offsets of the groups that this node coordinates, in slices."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.coordinators.runtime import Phase
from penstock.net.yielding import yield_between_slices

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.protocol.vocabulary import TopicPartition


class Committed(NamedTuple):
    group: str
    partition: TopicPartition
    offset: int


async def committed_here(broker: Broker, limit: int = sys.maxsize) -> AsyncIterator[Committed]:
    """Yields at most `limit` committed offsets of the groups that this node coordinates, group by group.

    Leaves out negative offsets, which a client may commit: they say nothing about the lag.
    """
    number = 0
    for coordinator in broker.groups.coordinators():
        if coordinator.phase is not Phase.ACTIVE:
            continue
        offsets = coordinator.machine.offsets
        for group in list(offsets.committed):
            for partition in list(offsets.committed.get(group, ())):
                await yield_between_slices(number)
                number += 1
                committed = offsets.get(group, partition)
                if number > limit:
                    return
                if committed is not None and committed.offset >= 0:  # None: it was deleted meanwhile
                    yield Committed(group, partition, committed.offset)
