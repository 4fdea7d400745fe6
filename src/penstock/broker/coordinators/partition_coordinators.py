"""The coordinators of one internal topic: one machine for each of its partitions that this node leads.

Follows the metadata image. A partition gained is loaded in the background, or at once by the first request if its log
is small; a partition lost answers NOT_COORDINATOR to all who wait. One that is led in a new epoch was lost and gained:
somebody else may have written to it in between.
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
        """Those that are still here when their turn comes: whoever goes through them may wait in between."""
        for index in list(self._by_partition):
            try:
                coordinator = self.at(index)
            except KafkaError:
                continue
            yield coordinator

    # --- coming and going

    def apply(self, image: MetadataImage) -> bool:
        """Whether partitions were gained, which are then to be loaded."""
        topic = image.topics.get(self._topic)
        led: dict[int, int] = {}
        if topic is not None and topic is not self._topic_seen:
            led = {i: part.leader_epoch for i, part in topic.partitions.items() if part.leader == self._node_id}
        elif topic is not None:
            return False
        self._topic_seen = topic
        for index, coordinator in list(self._by_partition.items()):
            if led.get(index) != coordinator.epoch or not self._is_of(coordinator, index):
                self._by_partition.pop(index).close()
        gained = sorted(led.keys() - self._by_partition.keys())
        for index in gained:
            try:
                self._open(index)
            except KafkaError as error:
                logger.error("%s-%d: no coordinator: %s", self._topic, index, error)
        return bool(gained)

    def _is_of(self, coordinator: Coordinator[M], index: int) -> bool:
        """Of this very partition: a topic that was deleted and made again begins with the same epoch."""
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
                logger.warning("%s: no coordinator: %s", coordinator.partition, error)
            await asyncio.sleep(0)

    def close(self) -> None:
        for coordinator in self._by_partition.values():
            coordinator.close()
        self._by_partition.clear()

    # --- finding

    def partition_of(self, key: str) -> int:
        topic = self._metadata.image.topics.get(self._topic)
        if topic is None:
            raise _not_here()
        return coordinator_partition(key, len(topic.partitions))

    def of(self, key: str) -> Coordinator[M]:
        return self.at(self.partition_of(key))

    def at(self, index: int) -> Coordinator[M]:
        coordinator = self._by_partition.get(index)
        if coordinator is None:
            raise _not_here()
        if (
            coordinator.phase is Phase.CLOSED and coordinator.failure is None
        ):  # its log refused a write; if it is well again, so are we
            coordinator = self._open(index)
        return coordinator


def _not_here() -> KafkaError:
    return KafkaError(ErrorCode.NOT_COORDINATOR, "This node does not coordinate it: look the coordinator up again.")
