"""Compares this node's replicas with the other in-sync replicas, in the background, one pass after the other.

One pass visits every partition of this node from its log start to its high watermark. The scrubber reads a sample of
each replica and then pauses, so that the node reads at most `penstock.guard.scrub.bytes.per.second`. Only partitions in
which this node is in sync are compared: below the high watermark, all in-sync replicas have the same bytes. Replicas of
a compacted topic differ, so only the checksums of this node's replica are verified there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.protocol.errors import KafkaError

if TYPE_CHECKING:
    from penstock.broker.guard.examiner import Examination, Examiner, Key
    from penstock.broker.replicas.partition import Partition
    from penstock.broker.replicas.partitions import Partitions
    from penstock.log.log import Log
    from penstock.metadata.configs.settings import Settings

logger = logging.getLogger(__name__)

#: The least time between two passes, so that a node without partitions does not spin.
LEAST_PAUSE_S = 1.0
#: Partitions that wait for an early visit, because a reader met a damaged batch in them.
MAX_URGENT = 1000


@dataclass(slots=True)
class ScrubCounts:
    bytes_read: int = 0
    partitions: int = 0
    passes: int = 0
    incomparable: int = 0


class Scrubber:
    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        examiner: Examiner,
        settings: Settings,
        found: Callable[[Key, Examination], Awaitable[None]],
    ) -> None:
        """Creates the scrubber. It calls `found` with each examination that has findings."""
        self._node_id = node_id
        self._partitions = partitions
        self._examiner = examiner
        self._settings = settings
        self._found = found
        self._urgent: deque[Key] = deque(maxlen=MAX_URGENT)
        self._wake = asyncio.Event()
        self.counts = ScrubCounts()

    def visit_soon(self, key: Key) -> None:
        """Schedules the partition before all others, because a damaged batch was read from this node's replica."""
        if key not in self._urgent:
            self._urgent.append(key)
            self._wake.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            for partition in sorted(self._partitions, key=lambda each: (each.topic, each.index)):
                await self._visit_urgent()
                await self._visit((partition.topic_id, partition.index))
            self.counts.passes += 1
            interval_s = self._settings.int("penstock.guard.scrub.interval.ms") / 1000
            await self._rest_until(max(began + interval_s, loop.time() + LEAST_PAUSE_S))

    async def _rest_until(self, when: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            await self._visit_urgent()
            try:
                async with asyncio.timeout_at(when):
                    await self._wake.wait()
            except TimeoutError:
                return
            if loop.time() >= when:
                return

    async def _visit_urgent(self) -> None:
        while self._urgent:
            await self._visit(self._urgent.popleft())

    async def _visit(self, key: Key) -> None:
        try:
            await self._scrub(key)
        except KafkaError as error:
            logger.debug("partition %d of topic %s can't be compared now: %s", key[1], key[0].hex(), error)

    async def _scrub(self, key: Key) -> None:
        """Compares the replicas of one partition, from the log start to this node's current high watermark."""
        partition = self._own(key)
        if partition is None:
            return
        self.counts.partitions += 1
        at, end = partition.log.log_start_offset, self._last(partition.log)
        while at < end and (partition := self._own(key)) is not None:
            at = max(at, partition.log.log_start_offset)
            nodes = (self._node_id,) if self._examiner.is_compacted(partition.topic) else ()
            examination = await self._examiner.confirmed(key, at, nodes)
            if examination is None:
                return
            self.counts.bytes_read += examination.bytes_read
            self.counts.incomparable += examination.comparison.incomparable
            if examination.findings:
                await self._found(key, examination)
            await self._pace(examination.bytes_read)
            if examination.comparison.end <= at:
                return  # no replica serves more records: all are damaged here, or the log was truncated
            at = examination.comparison.end

    @staticmethod
    def _last(log: Log) -> int:
        """Returns the offset up to which replicas are compared: later records may not be on all replicas yet."""
        return log.high_watermark

    def _own(self, key: Key) -> Partition | None:
        """Returns this node's replica if it is in sync and open; None otherwise."""
        try:
            partition = self._partitions.get_by_id(*key)
        except KafkaError:
            return None
        in_sync = self._node_id in partition.image.isr and partition.image.leader >= 0
        return partition if in_sync and partition.is_open and not partition.log.offline else None

    async def _pace(self, size: int) -> None:
        await asyncio.sleep(size / self._settings.int("penstock.guard.scrub.bytes.per.second"))
