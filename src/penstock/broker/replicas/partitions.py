"""The partitions this node hosts, kept equal to the metadata image.

The image is the only source: a partition appears here when an applied record puts this node among its replicas, and
goes, with its log, when its topic does or when it was moved to other nodes. Logs are opened on first use or by a
background pass in small slices, whichever comes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.broker.replicas.partition import Partition
from penstock.broker.replicas.partition_host import OPEN_SLICE_SECONDS, PartitionHost
from penstock.metadata.configs.topic import effective_log_config
from penstock.metadata.controller.assignments import has_directories
from penstock.metadata.image import EMPTY_IMAGE, LOST_DIRECTORY, UNASSIGNED_DIRECTORY, is_reserved, topic_changes
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import ZERO_UUID, uuid_to_str
from penstock.protocol.vocabulary import ResourceType

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.log.manager import LogManager
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import MetadataImage, PartitionImage, TopicImage

logger = logging.getLogger(__name__)


class Partitions:
    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        settings: Settings,
        *,
        broker_epoch: Callable[[], int],
        propose: Callable[[Partition], None],
        placed: Callable[[Partition, bytes], None],
    ) -> None:
        """`propose` and `placed` report to the controller: see `PartitionHost`."""
        self._node_id = node_id
        self._logs = logs
        self._settings = settings
        self._image: MetadataImage | None = None
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._by_id: dict[tuple[bytes, int], Partition] = {}
        self._unopened: deque[Partition] = deque()
        self._opener: asyncio.Task[None] | None = None
        self.host = PartitionHost(
            node_id,
            self._open_log,
            max_lag_ms=settings.int("replica.lag.time.max.ms"),
            broker_epoch=broker_epoch,
            propose=propose,
            placed=placed,
        )

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, topic: str, index: int) -> Partition:
        partition = self._by_name.get((topic, index))
        if partition is None:
            raise self._missing(self._image.topics.get(topic) if self._image else None, index)
        return partition

    def get_by_id(self, topic_id: bytes, index: int) -> Partition:
        partition = self._by_id.get((topic_id, index))
        if partition is None:
            topic = self._image.topics_by_id.get(topic_id) if self._image else None
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "No topic has this id; it may have been deleted.")
            raise self._missing(topic, index)
        return partition

    @staticmethod
    def _missing(topic: TopicImage | None, index: int) -> KafkaError:
        if topic is not None and index in topic.partitions:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "Another node hosts this partition.")
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This node knows no such topic or partition.")

    def apply(self, old: MetadataImage | None, new: MetadataImage) -> None:
        """Follow the image: take on what appeared, drop what went, pass on changed configurations."""
        self._image = new
        self.host.brokers = new.brokers
        changes = topic_changes(old or EMPTY_IMAGE, new)
        for topic in changes.deleted:
            for index in topic.partitions:
                self._remove(topic, index)
        if old is not None and new.configs is not old.configs:
            self._apply_configs(old, new)  # first: a smaller in-sync set has to be enough by the newest rule
        for topic in changes.created:
            self._host(topic, {}, started=old is not None)
        for before, topic in changes.changed:
            self._host(topic, before.partitions, started=old is not None)
        if old is not None and has_directories(new) and not has_directories(old):
            self._tell_places()
        if self._unopened and self._opener is None:
            self._opener = asyncio.get_running_loop().create_task(self._open_rest(), name="open-partitions")

    def _host(self, topic: TopicImage, before: Mapping[int, PartitionImage], *, started: bool) -> None:
        """Partitions that appear once the node has `started`, with the image of its registration, are new here."""
        for index, image in topic.partitions.items():
            if before.get(index) is image:
                continue
            known = self._by_name.get((topic.name, index))
            if self._node_id not in image.replicas:
                if known is not None:
                    self._remove(topic, index)  # its replicas are elsewhere now
                continue
            if known is not None:
                known.follow_image(image)
                continue
            partition = Partition(topic.name, topic.topic_id, index, image, self.host, is_new=started)
            self._by_name[topic.name, index] = self._by_id[topic.topic_id, index] = partition
            self._unopened.append(partition)

    def _remove(self, topic: TopicImage, index: int) -> None:
        partition = self._by_name.get((topic.name, index))
        if partition is None or partition.topic_id != topic.topic_id:
            return
        del self._by_name[topic.name, index]
        del self._by_id[topic.topic_id, index]
        partition.stop()
        self._logs.delete(topic.name, index)

    def _tell_places(self) -> None:
        """The metadata.version was raised to one with directories: the controller hears where the replicas are."""
        for partition in self._by_name.values():
            if partition.is_open:
                self.host.placed(partition, self._logs.dirs.of(partition.log).directory_id)

    def put_strays_aside(self) -> None:
        """At start: logs of topics that the metadata no longer has are kept, renamed, for the operator to look at."""
        for log in self._logs:
            if (log.topic, log.partition) not in self._by_name:
                logger.warning("%s belongs to no partition of this node: kept as a stray directory", log.path)
                self._logs.set_stray(log.topic, log.partition)

    def _apply_configs(self, old: MetadataImage, new: MetadataImage) -> None:
        if new.changes.base_version == old.version:
            changed = new.changes.configs
        else:
            changed = frozenset(new.configs.keys() | old.configs.keys())
        topics = {name for kind, name in changed if kind == ResourceType.TOPIC}
        everywhere = any(kind == ResourceType.BROKER for kind, _ in changed)
        for partition in self._by_name.values():
            if partition.is_open and (everywhere or partition.topic in topics):
                partition.log.update_config(effective_log_config(new, partition.topic, self._settings))
                partition.follow_disk(partition.log)  # what counted before fsync was promised is synced now
                partition.recheck()  # fewer in-sync replicas may be enough now

    def _open_log(self, partition: Partition) -> Log:
        assert self._image is not None
        config = effective_log_config(self._image, partition.topic, self._settings)
        log = self._logs.get(partition.topic, partition.index)
        if log is not None and log.topic_id not in (partition.topic_id, ZERO_UUID):
            # The topic was deleted and made again while this directory was away.
            self._logs.set_stray(partition.topic, partition.index)
            log = None
        if log is None:
            place = self._directory_of(partition)
            log = self._logs.create(partition.topic, partition.topic_id, partition.index, config, directory_id=place)
        else:
            if log.topic_id == ZERO_UUID:
                log.assign_topic_id(partition.topic_id)
            log.update_config(config)
        self.host.placed(partition, self._logs.dirs.of(log).directory_id)
        return log

    def _directory_of(self, partition: Partition) -> bytes | None:
        """Where the controller has this replica; None if any directory will do.

        No other directory stands in for one that failed. The id of one that could not be read at start is unknown:
        while there is such a one, a replica that is in none of the others may be there. So may one whose directory the
        controller was not told before the node stopped: it is told now that the replica can't lead.
        """
        wanted = partition.image.directory(self._node_id)
        if any(each.directory_id == wanted for each in self._logs.dirs):
            return wanted
        unassigned = wanted == UNASSIGNED_DIRECTORY
        offline = [each.path for each in self._logs.dirs if each.offline]
        if offline and not (unassigned and partition.is_new):
            if unassigned:
                self.host.placed(partition, LOST_DIRECTORY)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"Its log may be in {', '.join(offline)}, which can't be used: repair or replace that disk.",
            )
        if not is_reserved(wanted):
            logger.warning(
                "%s was in directory %s, which is none of log.dirs: it begins with an empty log in another one",
                partition,
                uuid_to_str(wanted),
            )
        return None

    async def _open_rest(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._unopened:
                deadline = loop.time() + OPEN_SLICE_SECONDS
                while self._unopened and loop.time() < deadline:
                    self._open_one(self._unopened.popleft())
                await asyncio.sleep(0)
        finally:
            self._opener = None

    def _open_one(self, partition: Partition) -> None:
        if self._by_name.get((partition.topic, partition.index)) is not partition:
            return
        try:
            _ = partition.log
        except KafkaError as error:
            logger.error("%s is offline: %s", partition, error)

    def release_waiters(self) -> None:
        """The node stops: parked fetches are answered with what there is."""
        for partition in self._by_name.values():
            partition.stop()

    async def close(self) -> None:
        if self._opener is not None:
            self._opener.cancel()
            await asyncio.gather(self._opener, return_exceptions=True)

    async def settle(self) -> None:
        """Every hosted partition's log is open."""
        while self._opener is not None:
            await asyncio.shield(self._opener)
