"""Group coordinators of this node: one per partition of `__consumer_offsets` that it leads.

Follows the metadata image: a partition gained is loaded in the background (or at once by the first request, if it is
small), a partition lost answers NOT_COORDINATOR to all who wait. Decisions are `penstock.groups`'; this only finds
the coordinator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.broker.auto_topics import CONSUMER_OFFSETS
from penstock.broker.coordinator import Coordinator, Phase
from penstock.groups import offset_requests
from penstock.groups.config import GroupConfig
from penstock.groups.partitioner import coordinator_partition
from penstock.groups.shard import GroupShard
from penstock.metadata.image import topic_changes
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from random import Random

    from penstock.broker.metadata_log import MetadataLog
    from penstock.broker.partitions import Partitions
    from penstock.clock import Clock
    from penstock.groups.turn import Turn
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import MetadataImage

logger = logging.getLogger(__name__)

SLICE_SECONDS = 0.005  # how long background work may hold the loop

GroupCoordinator = Coordinator[GroupShard]


class Groups:
    def __init__(
        self,
        *,
        node_id: int,
        settings: Settings,
        clock: Clock,
        random: Random,
        partitions: Partitions,
        metadata: MetadataLog,
    ) -> None:
        self._node_id = node_id
        self._settings = settings
        self._clock = clock
        self._random = random
        self._partitions = partitions
        self._metadata = metadata
        self._config = GroupConfig.from_settings(settings)
        self._coordinators: dict[int, GroupCoordinator] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- life

    def start(self) -> None:
        """Call when the image is loaded and `partitions` follows it: this listens after them."""
        self._metadata.subscribe(self.apply)
        self.apply(None, self._metadata.image)
        self._spawn(self._expire_forever())

    async def close(self) -> None:
        for coordinator in self._coordinators.values():
            coordinator.close()
        self._coordinators.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def apply(self, old: MetadataImage | None, new: MetadataImage) -> None:
        for coordinator in self._coordinators.values():
            coordinator.machine.see(new)
        topic = new.topics.get(CONSUMER_OFFSETS)
        led = {index for index, part in topic.partitions.items() if part.leader == self._node_id} if topic else set()
        for index in [index for index in self._coordinators if index not in led]:
            self._coordinators.pop(index).close()
        gained = sorted(led - self._coordinators.keys())
        for index in gained:
            self._open(index)
        if gained:
            self._spawn(self._load_all())
        if old is not None:
            deleted = topic_changes(old, new).deleted
            if deleted:
                self._forget_topics(frozenset(topic.name for topic in deleted))

    def _open(self, index: int) -> GroupCoordinator:
        shard = GroupShard(self._config, self._random)
        shard.see(self._metadata.image)
        coordinator = self._coordinators[index] = Coordinator(
            shard,
            self._partitions.get(CONSUMER_OFFSETS, index),
            self._clock,
            compression=self._settings.int("offsets.topic.compression.codec"),
        )
        return coordinator

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load_all(self) -> None:
        for coordinator in list(self._coordinators.values()):
            try:
                await coordinator.load()
            except KafkaError as error:
                logger.warning("%s: no coordinator: %s", coordinator.partition, error)
            await asyncio.sleep(0)

    # --- finding

    def partition_of(self, group_id: str) -> int:
        topic = self._metadata.image.topics.get(CONSUMER_OFFSETS)
        count = len(topic.partitions) if topic else self._settings.int("offsets.topic.num.partitions")
        return coordinator_partition(group_id, count)

    def coordinator(self, group_id: str) -> GroupCoordinator:
        """The coordinator of a group, if it is here: NOT_COORDINATOR if not."""
        return self._usable(self.partition_of(group_id))

    def at(self, index: int) -> GroupCoordinator:
        """The coordinator of a partition of `__consumer_offsets`."""
        return self._usable(index)

    def coordinators(self) -> Iterator[GroupCoordinator]:
        for index in list(self._coordinators):
            yield self._usable(index)

    def _usable(self, index: int) -> GroupCoordinator:
        coordinator = self._coordinators.get(index)
        if coordinator is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, "This node does not coordinate the group: look it up again.")
        if coordinator.phase is Phase.CLOSED:  # its log refused a write; if it is well again, so are we
            coordinator = self._open(index)
        return coordinator

    # --- background work

    def _forget_topics(self, topics: frozenset[str]) -> None:
        for coordinator in self._coordinators.values():
            if coordinator.phase is Phase.ACTIVE:
                coordinator.post(partial(_forget, topics))

    async def _expire_forever(self) -> None:
        interval = self._settings.int("offsets.retention.check.interval.ms") / 1000
        while True:
            await asyncio.sleep(interval)
            for coordinator in list(self._coordinators.values()):
                await self._expire(coordinator)

    async def _expire(self, coordinator: GroupCoordinator) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SLICE_SECONDS
        for group_id in list(coordinator.machine.groups):
            if coordinator.phase is not Phase.ACTIVE:
                return
            coordinator.post(partial(_expire, group_id))
            if loop.time() > deadline:
                await asyncio.sleep(0)
                deadline = loop.time() + SLICE_SECONDS


def _forget(topics: frozenset[str], shard: GroupShard, turn: Turn) -> None:
    offset_requests.forget_topics(shard, turn, topics)


def _expire(group_id: str, shard: GroupShard, turn: Turn) -> None:
    offset_requests.expire(shard, turn, group_id)
