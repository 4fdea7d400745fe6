"""Holds the coordinators of one internal topic: one coordinator for each partition that this node leads.

The coordinators follow the metadata image. When this node becomes leader, the coordinator loads in the background, or
within the first request if the log is small. When the node stops leading, the coordinator closes and answers waiting
requests with NOT_COORDINATOR. A new leader epoch closes and reloads the coordinator: another leader may have written
records in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic

from penstock.broker.coordinators.commits import COMMIT_TIMEOUT_SECONDS
from penstock.broker.coordinators.runtime import Coordinator, Phase
from penstock.broker.coordinators.state_machine import M
from penstock.groups.partitioner import coordinator_partition
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.replicas.partitions import Partitions
    from penstock.clock import Clock
    from penstock.metadata.image import MetadataImage, TopicImage

logger = logging.getLogger(__name__)


class Coordinators(Generic[M]):
    def __init__(
        self,
        topic: str,
        *,
        node_id: int,
        partitions: Partitions,
        metadata: MetadataLog,
        clock: Clock,
        make: Callable[[], M],
        compression: int = 0,
        perform: Callable[[Coordinator[M], Any], None] | None = None,
        commit_timeout_s: float = COMMIT_TIMEOUT_SECONDS,
    ) -> None:
        self._topic = topic
        self._node_id = node_id
        self._partitions = partitions
        self._metadata = metadata
        self._clock = clock
        self._make = make
        self._compression = compression
        self._perform = perform
        self._commit_timeout_s = commit_timeout_s
        self._topic_seen: TopicImage | None = None
        self._by_partition: dict[int, Coordinator[M]] = {}

    def __iter__(self) -> Iterator[Coordinator[M]]:
        """Iterates over the coordinators. Skips a coordinator that closes during the iteration."""
        for index in list(self._by_partition):
            try:
                coordinator = self.at(index)
            except KafkaError:
                continue
            yield coordinator

    # --- leadership

    def apply(self, image: MetadataImage) -> bool:
        """Closes and opens coordinators after a change of the image. Returns True if the caller has to call `load`."""
        topic = image.topics.get(self._topic)
        led: dict[int, int] = {}
        if topic is not None and topic is not self._topic_seen:
            led = {i: part.leader_epoch for i, part in topic.partitions.items() if part.leader == self._node_id}
        elif topic is not None:
            return False
        self._topic_seen = topic
        for index, coordinator in list(self._by_partition.items()):
            if led.get(index) != coordinator.epoch or not self._has_current_partition(coordinator, index):
                self._by_partition.pop(index).close()
        gained = sorted(led.keys() - self._by_partition.keys())
        for index in gained:
            try:
                self._open(index)
            except KafkaError as error:
                logger.error("%s-%d: the coordinator can't be opened: %s", self._topic, index, error)
        return bool(gained)

    def _has_current_partition(self, coordinator: Coordinator[M], index: int) -> bool:
        """Returns True if the coordinator's partition object is still in use.

        If a topic is deleted and created again, its partitions get new objects, but may have the same leader epochs.
        """
        try:
            return self._partitions.get(self._topic, index) is coordinator.partition
        except KafkaError:
            return False

    def _open(self, index: int) -> Coordinator[M]:
        partition = self._partitions.get(self._topic, index)
        coordinator = Coordinator(
            self._make(),
            partition,
            self._clock,
            compression=self._compression,
            perform=self._perform,
            commit_timeout_s=self._commit_timeout_s,
        )
        self._by_partition[index] = coordinator
        return coordinator

    async def load(self) -> None:
        for coordinator in list(self._by_partition.values()):
            try:
                await coordinator.load()
            except KafkaError as error:
                logger.warning("%s: the coordinator can't be loaded: %s", coordinator.partition, error)
            await asyncio.sleep(0)

    def close(self) -> None:
        for coordinator in self._by_partition.values():
            coordinator.close()
        self._by_partition.clear()

    # --- lookup

    def partition_of(self, key: str) -> int:
        topic = self._metadata.image.topics.get(self._topic)
        if topic is None:
            raise _not_coordinator()
        return coordinator_partition(key, len(topic.partitions))

    def of(self, key: str) -> Coordinator[M]:
        return self.at(self.partition_of(key))

    def at(self, index: int) -> Coordinator[M]:
        coordinator = self._by_partition.get(index)
        if coordinator is None:
            raise _not_coordinator()
        if coordinator.phase is Phase.CLOSED and coordinator.failure is None:
            coordinator = self._open(index)  # its log refused a write before; the log may accept writes again
        return coordinator


def _not_coordinator() -> KafkaError:
    return KafkaError(
        ErrorCode.NOT_COORDINATOR, "This node is not the coordinator: send FindCoordinator again, then retry there."
    )
