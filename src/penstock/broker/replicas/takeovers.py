"""Measures how long clients could not write to the partitions of a failed broker that this node took over.

A takeover begins when an image fences a broker and makes this node the leader of some of its partitions. It ends when
the first write to one of these partitions is committed. The takeover waits for the high watermark like a Produce with
acks=all, so that the measurement adds no work to a write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.controlplane.failovers import FAILOVER_BOUNDS_MS
from penstock.broker.events.kinds import FirstWriteAfterFailover
from penstock.broker.replicas.partition_host import now_ms
from penstock.histogram import Histogram
from penstock.metadata.image import topic_changes

if TYPE_CHECKING:
    from penstock.broker.events import Observer
    from penstock.broker.replicas.partition import Partition
    from penstock.broker.replicas.partitions import Partitions
    from penstock.metadata.image import Fencing, MetadataImage

#: Partitions of one takeover that are watched; the first write to any of them ends the takeover.
WATCHED_MAX = 100


@dataclass(slots=True)
class _Takeover:
    fencing: Fencing
    began_ms: int
    waits: list[asyncio.Future[None]] = field(default_factory=list)
    over: bool = False


class Takeovers:
    def __init__(self, node_id: int, partitions: Partitions, observer: Observer) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._observer = observer
        self.until_first_write = Histogram(FAILOVER_BOUNDS_MS)

    def apply(self, old: MetadataImage, new: MetadataImage) -> None:
        for fencing in new.changes.fencings:
            takeover = _Takeover(fencing, now_ms())
            for partition in self._taken(fencing.broker_id, old, new):
                wait = partition.waiters.commit(partition.log.log_end_offset + 1)
                wait.add_done_callback(partial(self._written, takeover, partition))
                takeover.waits.append(wait)
                if len(takeover.waits) >= WATCHED_MAX:
                    break

    def _taken(self, broker_id: int, old: MetadataImage, new: MetadataImage) -> Iterator[Partition]:
        """Yields the partitions that this node took over from the broker.

        Leaves out internal topics, and partitions whose log is not open.
        """
        for before, after in topic_changes(old, new).changed:
            if after.name.startswith("__"):
                continue
            for index, image in after.partitions.items():
                was = before.partitions.get(index)
                if image.leader == self._node_id and was is not None and was.leader == broker_id:
                    partition = self._partitions.get_by_id(after.topic_id, index)
                    if partition.is_open:
                        yield partition

    def _written(self, takeover: _Takeover, partition: Partition, wait: asyncio.Future[None]) -> None:
        if wait.cancelled() or wait.exception() is not None or takeover.over:
            return  # another partition was first, or this node no longer leads the partition
        takeover.over = True
        for other in takeover.waits:
            other.cancel()
        took_ms, fencing = now_ms() - takeover.began_ms, takeover.fencing
        self.until_first_write.add(took_ms)
        self._observer(
            FirstWriteAfterFailover(
                f"{partition.topic}-{partition.index}",
                fencing.broker_id,
                fencing.broker_epoch,
                fencing.timestamp_ms,
                took_ms,
            )
        )
