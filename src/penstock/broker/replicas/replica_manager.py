"""Runs replication on this node: fetchers for partitions that it follows, lag checks for partitions that it leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from zlib import crc32

from penstock.broker.events import Observer, log_event
from penstock.broker.replicas.followed_partition import Counts, FollowerLag
from penstock.broker.replicas.replica_fetcher import ReplicaFetcher
from penstock.broker.replicas.replica_figures import figures_of
from penstock.broker.replicas.takeovers import Takeovers
from penstock.broker.replicas.throttle import FOLLOWER_RATE, Throttle
from penstock.broker.tasks import Tasks
from penstock.metadata.image import EMPTY_IMAGE, topic_changes
from penstock.protocol.errors import KafkaError
from penstock.protocol.vocabulary import NO_LEADER

if TYPE_CHECKING:
    from penstock.broker.peers.peers import Peers
    from penstock.broker.replicas.directory_assignments import DirectoryAssignments
    from penstock.broker.replicas.isr_changes import IsrChanges
    from penstock.broker.replicas.partition import Partition
    from penstock.broker.replicas.partitions import Partitions
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import MetadataImage, TopicImage
    from penstock.replication.leader import Figures

logger = logging.getLogger(__name__)

Key = tuple[bytes, int]  # topic id, partition


class ReplicaManager:
    """Owns the fetchers and lag checks. Call `apply` after `Partitions.apply`, and `start` on the event loop."""

    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        peers: Peers,
        settings: Settings,
        *,
        isr_changes: IsrChanges,
        assignments: DirectoryAssignments,
        broker_epoch: Callable[[], int],
        observer: Observer = log_event,
    ) -> None:
        """Creates the manager. `isr_changes` and `assignments` send the reports of `partitions` to the controller.

        `close` closes both of them.
        """
        self._node_id = node_id
        self._partitions = partitions
        self._peers = peers
        self._settings = settings
        self._broker_epoch = broker_epoch
        self._observer = observer
        self.isr_changes = isr_changes
        self._assignments = assignments
        self.counts = Counts()
        self.takeovers = Takeovers(node_id, partitions, observer)
        self.throttle = Throttle(FOLLOWER_RATE, node_id, settings)
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._followed: dict[Key, tuple[Partition, ReplicaFetcher]] = {}
        self._retired = Tasks()
        self._timer: asyncio.Task[None] | None = None
        self._fetchers_per_leader = settings.int("num.replica.fetchers")

    # --- start and stop

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().create_task(self._watch_laggards(), name="lagging replicas")

    async def close(self) -> None:
        """Stops all fetchers and the reports to the controller."""
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        self._followed.clear()
        await asyncio.gather(*(fetcher.close() for fetcher in fetchers), self._retired.ended())
        await self.isr_changes.close()
        await self._assignments.close()

    async def _watch_laggards(self) -> None:
        """Checks for lagging followers twice per `replica.lag.time.max.ms`.

        So a follower leaves the ISR at most 1.5 times `replica.lag.time.max.ms` after it was last caught up.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._partitions.host.max_lag_ms / 2000)
            self.check_laggards(int(loop.time() * 1000))

    def check_laggards(self, now_ms: int) -> int:
        """Checks all partitions for lagging followers and returns the number of partitions with lagging followers."""
        return sum(partition.check_laggards(now_ms) for partition in self._partitions)

    # --- the image

    def apply(self, old: MetadataImage | None, new: MetadataImage) -> None:
        old = old or EMPTY_IMAGE
        changes = topic_changes(old, new)
        if self._fetchers_per_leader != self._settings.int("num.replica.fetchers"):
            self._fetchers_per_leader = self._settings.int("num.replica.fetchers")
            self._assign_all()
        for topic in changes.deleted:
            for index in topic.partitions:
                self._unfollow((topic.topic_id, index))
        for topic in changes.created:
            self._assign(topic, None)
        for before, topic in changes.changed:
            self._assign(topic, before)
        if old.brokers is not new.brokers:
            self._brokers_changed(old, new)
        self._retire_idle()
        self.takeovers.apply(old, new)

    def _brokers_changed(self, old: MetadataImage, new: MetadataImage) -> None:
        """Rechecks the led partitions: a fenced broker no longer holds back the high watermark or the low watermark."""
        if all(old.brokers.get(each) is broker for each, broker in new.brokers.items()):
            return
        for partition in self._partitions:
            if partition.leading is not None:
                partition.recheck()

    def _assign_all(self) -> None:
        followed, self._followed = self._followed, {}
        for partition, fetcher in followed.values():
            fetcher.remove(partition)
            self._follow(partition)

    def _assign(self, topic: TopicImage, before: TopicImage | None) -> None:
        for index, image in topic.partitions.items():
            earlier = None if before is None else before.partitions.get(index)
            if earlier is image:
                continue
            if earlier is not None:
                self.isr_changes.count(earlier, image)
            if earlier is None and image.leader in (self._node_id, NO_LEADER):
                continue  # a new partition that has no other leader to follow
            if self._node_id in image.replicas:
                self._follow(self._partitions.get_by_id(topic.topic_id, index))
            else:
                self._unfollow((topic.topic_id, index))

    def _follow(self, partition: Partition) -> None:
        """Assigns the partition to its leader's fetcher. If no other node leads it, removes it from its fetcher."""
        key, leader = (partition.topic_id, partition.index), partition.image.leader
        wanted = None
        if leader not in (self._node_id, NO_LEADER):
            wanted = self._fetcher(leader, self._number_of(partition))
        known = self._followed.get(key)
        if known is not None and (known[1] is not wanted or known[0] is not partition):
            self._unfollow(key)
        if wanted is not None:
            self._followed[key] = (partition, wanted)
            wanted.add(partition)

    def _unfollow(self, key: Key) -> None:
        known = self._followed.pop(key, None)
        if known is not None:
            known[1].remove(known[0])

    def _number_of(self, partition: Partition) -> int:
        return (crc32(partition.topic.encode()) + partition.index) % self._fetchers_per_leader

    def _fetcher(self, leader: int, number: int) -> ReplicaFetcher:
        fetcher = self._fetchers.get((leader, number))
        if fetcher is None:
            fetcher = self._fetchers[leader, number] = ReplicaFetcher(
                self._node_id,
                leader,
                number,
                peers=self._peers,
                settings=self._settings,
                broker_epoch=self._broker_epoch,
                throttle=self.throttle,
                counts=self.counts,
                observer=self._observer,
            )
        return fetcher

    def _retire_idle(self) -> None:
        for key in [key for key, fetcher in self._fetchers.items() if not len(fetcher)]:
            self._retired.start(self._fetchers.pop(key).close())

    # --- figures

    def lags(self) -> dict[int, FollowerLag]:
        """Returns the lag of this node's replicas behind their leaders, by leader."""
        found: dict[int, FollowerLag] = {}
        for (leader, _), fetcher in self._fetchers.items():
            found.setdefault(leader, FollowerLag()).merge(fetcher.lag())
        return found

    def figures(self) -> Iterator[Figures]:
        """Yields the figures of every partition that this node leads and can read."""
        for partition in self._partitions:
            if partition.is_leader and partition.is_open:
                try:
                    yield figures_of(partition)
                except KafkaError as error:
                    logger.debug("%s: %s", partition, error)
