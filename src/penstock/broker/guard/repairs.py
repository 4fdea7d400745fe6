"""Repairs damaged segments of this node's replicas with batches that undamaged replicas serve.

A segment is replaced only if another in-sync replica serves intact batches for all of it. Batches that fail their
checksum are never used. If several replicas are undamaged, all of them have to serve the same batches for the whole
segment: otherwise one forged replica could replace records that are intact on this node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.broker.events.kinds import ReplicaRefilled
from penstock.guard.comparison import DAMAGE
from penstock.guard.samples import batches_of
from penstock.log.refill import refill, segment_to_refill
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.broker.events import Observer
    from penstock.broker.guard.examiner import Examination, Examiner, Key
    from penstock.broker.guard.probe import Place
    from penstock.broker.replicas.partitions import Partitions
    from penstock.log.log import Log
    from penstock.log.manager import LogManager
    from penstock.log.segment import Segment
    from penstock.metadata.configs.settings import Settings

logger = logging.getLogger(__name__)

#: A segment with uncommitted records is refilled once they are committed; after these tries, by the next pass.
TRIES, POLL_S = 60, 0.5


class Repairs:
    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        examiner: Examiner,
        settings: Settings,
        *,
        logs: LogManager,
        observer: Observer,
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._examiner = examiner
        self._settings = settings
        self._logs = logs
        self._observer = observer
        self.refilled = 0
        self.failed = 0

    async def repair(self, key: Key, examination: Examination) -> None:
        """Repairs the first damaged segment that the examination found in this node's replica.

        No-op if this node's replica is not damaged, or if `penstock.guard.repair.enable` is false.
        """
        comparison = examination.comparison
        if self._node_id not in comparison.damaged or not self._settings.bool("penstock.guard.repair.enable"):
            return
        sources = [node for node in comparison.good if node != self._node_id]
        damages = [each for each in comparison.findings if each.kind in DAMAGE and each.accused == self._node_id]
        offset = damages[0].offset
        try:
            await self._refill(key, offset, sources)
        except KafkaError as error:
            self.failed += 1
            logger.warning(
                "partition %d of topic %s can't be repaired at offset %d from nodes %s: %s",
                key[1],
                key[0].hex(),
                offset,
                sources,
                error,
            )

    async def _refill(self, key: Key, offset: int, sources: Sequence[int]) -> None:
        found = self._examiner.find(key)
        if found is None:
            return
        place, _ = found
        log = self._partitions.get_by_id(*key).log
        segment = await self._sealed(log, offset)
        if segment is None:
            return
        old, end = segment
        await self._logs.save_checkpoints([self._logs.dirs.of(log)])
        used: set[int] = set()
        if not await refill(log, old, end, lambda at: self._fetch(sources, place, at, used), place.leader_epoch):
            return
        self.refilled += 1
        self._logs.corruptions.pop((log.topic, log.partition), None)
        self._observer(ReplicaRefilled(str(place), old.base_offset, end, tuple(sorted(used))))

    async def _sealed(self, log: Log, offset: int) -> tuple[Segment, int] | None:
        """Waits until the segment at `offset` can be replaced, and returns the segment with its end offset.

        Returns None if the wait takes too long, for example because records of the segment are not committed.
        """
        for _ in range(TRIES):
            found = segment_to_refill(log, offset)
            if found is not None:
                return found
            await asyncio.sleep(POLL_S)
        return None

    async def _fetch(self, sources: Sequence[int], place: Place, at: int, used: set[int]) -> Buffer:
        """Fetches batches from offset `at` on from all source nodes, and returns the batches that all of them serve.

        Ignores nodes whose batches are damaged, and adds the other nodes to `used`. Raises KafkaError if two nodes
        serve different batches, or if no node has intact batches.
        """
        agreed: memoryview | None = None
        for source in sources:
            sample = await self._examiner.probe.sample(source, place, at)
            served = memoryview(sample.records)
            await asyncio.sleep(len(served) / self._settings.int("penstock.guard.scrub.bytes.per.second"))
            if sample.has_records and all(each.intact for each in batches_of(served, sample.high_watermark)):
                agreed = served if agreed is None else _common(agreed, served, at)
                used.add(source)
        if agreed is None:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"None of the nodes {sources} serves intact records at offset {at}: repair or restart one of them.",
            )
        return agreed


def _common(first: memoryview, second: memoryview, at: int) -> memoryview:
    """Returns the bytes with which both responses begin, up to the end of the shorter response.

    Raises KafkaError if the responses differ before this end.
    """
    size = min(len(first), len(second))
    if first[:size] != second[:size]:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"The other replicas serve different records from offset {at} on: remove the replica with wrong records.",
        )
    return first[:size]
