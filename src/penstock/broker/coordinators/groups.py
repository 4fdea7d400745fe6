"""Holds the group coordinators of this node: one for each partition of `__consumer_offsets` that it leads.

`Groups` starts and stops coordinators as the metadata image changes, finds the coordinator of a group, and expires
offsets. `penstock.groups` makes the decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from penstock.allowance import Allowance
from penstock.broker.coordinators.internal_topics import InternalTopics
from penstock.broker.coordinators.partition_coordinators import Coordinators
from penstock.broker.coordinators.runtime import Coordinator, Phase
from penstock.broker.coordinators.share_initializing import ShareInitializing
from penstock.broker.tasks import Tasks
from penstock.groups import offset_requests
from penstock.groups.config import GroupConfig
from penstock.groups.shard import GroupShard
from penstock.metadata.image import topic_changes
from penstock.protocol.vocabulary import CONSUMER_OFFSETS

if TYPE_CHECKING:
    from random import Random

    from penstock.broker.controlplane.auto_topics import TopicCreator
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.coordinators.share_persister import SharePersister
    from penstock.broker.replicas.partitions import Partitions
    from penstock.clock import Clock
    from penstock.groups.share.states import InitializeStates
    from penstock.groups.turn import Turn
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import MetadataImage

SLICE_SECONDS = 0.005  # maximum time that background work keeps the event loop busy

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
        topics: TopicCreator,
        allowance: Allowance | None = None,
        persister: SharePersister | None = None,
    ) -> None:
        """Creates the coordinators. `persister` sends requests to the share coordinators; it is None in tests without
        share groups.
        """
        self._allowance = allowance or Allowance()
        self._allowance.counted_by(lambda: sum(each.machine.held_bytes() for each in self._coordinators))
        self._settings = settings
        self._random = random
        self._metadata = metadata
        self._config = GroupConfig.from_settings(settings)
        self._coordinators: Coordinators[GroupShard] = Coordinators(
            CONSUMER_OFFSETS,
            node_id=node_id,
            partitions=partitions,
            metadata=metadata,
            clock=clock,
            make=self._make_shard,
            compression=settings.int("offsets.topic.compression.codec"),
            perform=self._initialize_states,
            commit_timeout_s=settings.int("offsets.commit.timeout.ms") / 1000,
        )
        self._persister = persister
        self._tasks = Tasks()
        self.internal_topics = InternalTopics(topics, self._tasks)

    def _make_shard(self) -> GroupShard:
        shard = GroupShard(self._config, self._random, self._allowance)
        shard.see(self._metadata.image)
        return shard

    # --- start and stop

    def start(self) -> None:
        """Starts the coordinators. Call this after `partitions` has applied the loaded image."""
        self.apply(None, self._metadata.image)
        self._tasks.start(self._expire_forever())

    async def close(self) -> None:
        self._coordinators.close()
        await self._tasks.close()

    def apply(self, old: MetadataImage | None, new: MetadataImage) -> None:
        if self._coordinators.apply(new):
            self._tasks.start(self._coordinators.load())
        if old is None:
            return
        changes = topic_changes(old, new)
        for coordinator in self._coordinators:
            coordinator.machine.see(new, changes)
            if coordinator.phase is Phase.ACTIVE:
                coordinator.arm()

    # --- lookup

    def partition_of(self, group_id: str) -> int:
        return self._coordinators.partition_of(group_id)

    def coordinator(self, group_id: str) -> GroupCoordinator:
        """Returns the group's coordinator. Raises KafkaError(NOT_COORDINATOR) if another node coordinates the group."""
        return self._coordinators.of(group_id)

    def at(self, index: int) -> GroupCoordinator:
        """Returns the coordinator for partition `index` of `__consumer_offsets`."""
        return self._coordinators.at(index)

    def coordinators(self) -> Iterator[GroupCoordinator]:
        return iter(self._coordinators)

    # --- share groups

    def _initialize_states(self, coordinator: GroupCoordinator, wanted: InitializeStates) -> None:
        """Initializes the states of a share group's partitions at the share coordinators.

        Called after the heartbeat that needs the states is committed.
        """
        if self._persister is not None:
            work = ShareInitializing(wanted, self._persister, coordinator, self._tasks.start)
            self._tasks.start(work.run())

    # --- background work

    async def _expire_forever(self) -> None:
        interval = self._settings.int("offsets.retention.check.interval.ms") / 1000
        while True:
            await asyncio.sleep(interval)
            for coordinator in self._coordinators:
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


def _expire(group_id: str, shard: GroupShard, turn: Turn) -> None:
    offset_requests.forget_missing(shard, turn, group_id)
    offset_requests.expire(shard, turn, group_id)
