"""Holds the share coordinators of this node: one for each partition of `__share_group_state` that it leads.

`penstock.share.state_requests` makes the decisions. The log is not compacted. Instead, the log before the oldest needed
snapshot is deleted at an interval. First, old snapshots of unchanged share partitions are copied to the end of the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from penstock.broker.coordinators.partition_coordinators import Coordinators
from penstock.broker.coordinators.runtime import Coordinator, Phase, committed
from penstock.broker.tasks import Tasks
from penstock.metadata.image import topic_changes
from penstock.protocol.errors import KafkaError
from penstock.protocol.vocabulary import SHARE_GROUP_STATE
from penstock.share.state_shard import ShareStateShard, Turn

if TYPE_CHECKING:
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.replicas.partitions import Partitions
    from penstock.clock import Clock
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import MetadataImage
    from penstock.share.state_journal import ShareKey

logger = logging.getLogger(__name__)

ShareCoordinator = Coordinator[ShareStateShard]
R = TypeVar("R")

PRUNE_WAIT_SECONDS = 5.0  # maximum wait of the pruning of one log for its followers


class ShareStates:
    def __init__(
        self, *, node_id: int, settings: Settings, clock: Clock, partitions: Partitions, metadata: MetadataLog
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self.coordinators: Coordinators[ShareStateShard] = Coordinators(
            SHARE_GROUP_STATE,
            node_id=node_id,
            partitions=partitions,
            metadata=metadata,
            clock=clock,
            make=self._make_shard,
            compression=settings.int("share.coordinator.state.topic.compression.codec"),
            commit_timeout_s=settings.int("share.coordinator.write.timeout.ms") / 1000,
        )
        self._tasks = Tasks()

    def _make_shard(self) -> ShareStateShard:
        shard = ShareStateShard(self._settings.int("share.coordinator.snapshot.update.records.per.snapshot"))
        shard.see(self._metadata.image)
        return shard

    # --- start and stop

    def start(self) -> None:
        """Starts the coordinators. Call this after `partitions` has applied the loaded image."""
        self.apply(None, self._metadata.image)
        self._tasks.start(self._prune_forever())

    async def close(self) -> None:
        self.coordinators.close()
        await self._tasks.close()

    def apply(self, old: MetadataImage | None, new: MetadataImage) -> None:
        if self.coordinators.apply(new):
            self._tasks.start(self.coordinators.load())
        if old is None:
            return
        deleted = bool(topic_changes(old, new).deleted)
        for coordinator in self.coordinators:
            coordinator.machine.see(new, coordinator.now_ms if deleted else None)
            if coordinator.phase is Phase.ACTIVE:
                coordinator.arm()

    # --- requests

    def run(self, key: ShareKey, decide: Callable[[ShareStateShard, Turn], R]) -> R | asyncio.Future[R]:
        """Runs a decision on the state of one share partition. Returns its result, or a future of the result.

        Raises KafkaError(NOT_COORDINATOR) if another node coordinates this share partition.
        """
        return self.coordinators.of(key.coordinator_key).run(decide)

    # --- background work

    async def _prune_forever(self) -> None:
        interval = self._settings.int("share.coordinator.state.topic.prune.interval.ms") / 1000
        while True:
            await asyncio.sleep(interval)
            for coordinator in self.coordinators:
                await prune(coordinator)


async def prune(coordinator: ShareCoordinator) -> None:
    """Deletes the beginning of a coordinator's log, up to the oldest snapshot that is still needed."""
    if coordinator.phase is not Phase.ACTIVE:
        return
    try:
        await committed(coordinator.run(lambda shard, turn: shard.copy_cold(turn)))
        log = coordinator.partition.leader_log(coordinator.epoch)
        offset = min(coordinator.machine.redundant_before(), log.high_watermark)
        if offset > log.log_start_offset:
            deletion = coordinator.partition.delete_before(offset)
            if deletion is not None:
                async with asyncio.timeout(PRUNE_WAIT_SECONDS):
                    await deletion
    except TimeoutError:
        pass  # the followers delete these records later
    except KafkaError as error:
        logger.info("%s: the log can't be pruned now: %s", coordinator.partition, error)
