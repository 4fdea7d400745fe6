"""Holds the partitions of this node, and updates them when the metadata image changes.

A partition is added when the image lists this node as one of its replicas. The partition and its log are removed when
the topic is deleted or the replica is moved to another node. Logs are opened on first use, or by a background task in
small slices, whichever comes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.broker.replicas.partition import Partition
from penstock.broker.replicas.partition_host import OPEN_SLICE_SECONDS, PartitionHost
from penstock.metadata.controller.assignments import has_directories
from penstock.metadata.image import EMPTY_IMAGE, LOST_DIRECTORY, UNASSIGNED_DIRECTORY, is_reserved, topic_changes
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import ZERO_UUID, uuid_to_str
from penstock.protocol.vocabulary import ResourceType

if TYPE_CHECKING:
    from penstock.broker.replicas.directory_moves import DirectoryMoves
    from penstock.log.log import Log
    from penstock.log.manager import LogManager
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.configs.topic import LogConfig
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
        moves: DirectoryMoves,
    ) -> None:
        """Creates an empty list of partitions.

        `propose` sends a proposed ISR change to the controller; `placed` reports the directory of a replica.
        """
        self._node_id = node_id
        self._logs = logs
        self._settings = settings
        self._moves = moves
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

    def find(self, topic: str, index: int) -> Partition | None:
        return self._by_name.get((topic, index))

    def get_by_id(self, topic_id: bytes, index: int) -> Partition:
        partition = self._by_id.get((topic_id, index))
        if partition is None:
            topic = self._image.topics_by_id.get(topic_id) if self._image else None
            if topic is None:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_ID, "No topic has this id; it may be deleted: refresh the metadata."
                )
            raise self._missing(topic, index)
        return partition

    def all_replicas_have(self, log: Log) -> bool:
        """Returns True if all replicas of the log's partition are in sync, and so have all committed records."""
        partition = self._by_id.get((log.topic_id, log.partition))
        return partition is not None and {*partition.image.isr} == {*partition.image.replicas}

    @staticmethod
    def _missing(topic: TopicImage | None, index: int) -> KafkaError:
        if topic is not None and index in topic.partitions:
            return KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node has no replica of the partition: refresh the metadata."
            )
        return KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "This node's metadata has no such topic or partition: check the name, or create the topic.",
        )

    def apply(self, old: MetadataImage | None, new: MetadataImage) -> None:
        """Adds, changes and removes partitions so that they match the new image, and applies changed configs."""
        self._image = new
        self.host.brokers = new.brokers
        changes = topic_changes(old or EMPTY_IMAGE, new)
        for topic in changes.deleted:
            for index in topic.partitions:
                self._remove(topic, index)
        if old is not None and new.configs is not old.configs:
            self._apply_configs(old, new)  # first: a smaller in-sync set is checked against the new min.insync.replicas
        for topic in changes.created:
            self._host(topic, {}, started=old is not None)
        for before, topic in changes.changed:
            self._host(topic, before.partitions, started=old is not None)
        if old is not None and has_directories(new) and not has_directories(old):
            self._report_directories()
        if self._unopened and self._opener is None:
            self._opener = asyncio.get_running_loop().create_task(self._open_rest(), name="open-partitions")

    def _host(self, topic: TopicImage, before: Mapping[int, PartitionImage], *, started: bool) -> None:
        """Adds, updates and removes this node's partitions of one topic, so that they match the new image.

        `started` is True if the node has applied an earlier image. Then added partitions are marked as new on this
        node; the partitions of the first image are not.
        """
        for index, image in topic.partitions.items():
            if before.get(index) is image:
                continue
            known = self._by_name.get((topic.name, index))
            if self._node_id not in image.replicas:
                if known is not None:
                    self._remove(topic, index)  # the replica was moved to another node
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
        self._moves.removed(topic.name, index)
        self._logs.delete(topic.name, index)

    def _report_directories(self) -> None:
        """Reports the directory of every open log, after an upgrade to a metadata.version with directory ids."""
        for partition in self._by_name.values():
            if partition.is_open:
                self.host.placed(partition, self._logs.dirs.of(partition.log).directory_id)

    def put_strays_aside(self) -> None:
        """Renames log directories that belong to no partition of this node, so that the operator can inspect them.

        Called when the node starts.
        """
        for log in self._logs:
            if (log.topic, log.partition) not in self._by_name:
                logger.warning("%s belongs to no partition of this node and is renamed to a stray directory", log.path)
                self._logs.set_stray(log.topic, log.partition)
        for orphan in list(self._logs.futures.leftovers.orphans):
            if (orphan.topic, orphan.partition) not in self._by_name:
                self._logs.futures.leftovers.remove(orphan, "its partition is not on this node")

    def _apply_configs(self, old: MetadataImage, new: MetadataImage) -> None:
        if new.changes.base_version == old.version:
            changed = new.changes.configs
        else:
            changed = frozenset(new.configs.keys() | old.configs.keys())
        topics = {name for kind, name in changed if kind == ResourceType.TOPIC}
        everywhere = any(kind == ResourceType.BROKER for kind, _ in changed)
        for partition in self._by_name.values():
            if partition.is_open and (everywhere or partition.topic in topics):
                partition.log.update_config(self._settings.log_config(new, partition.topic))
                partition.follow_disk(partition.log)  # if acknowledgements promise fsync now, older records are synced
                partition.recheck()  # a lower min.insync.replicas may let the high watermark move

    def _open_log(self, partition: Partition) -> Log:
        assert self._image is not None
        config = self._settings.log_config(self._image, partition.topic)
        log = self._logs.claim(partition.topic, partition.index, partition.topic_id)
        if log is None:
            log = self._adopted(partition, config)
        if log is None:
            place = self._directory_of(partition)
            log = self._logs.create(partition.topic, partition.topic_id, partition.index, config, directory_id=place)
        else:
            for orphan in self._logs.futures.leftovers.of(partition.topic, partition.index):
                self._logs.futures.leftovers.remove(orphan, f"it does not belong to {log.path}")
            if log.topic_id == ZERO_UUID:
                log.assign_topic_id(partition.topic_id)
            log.update_config(config)
        self.host.placed(partition, self._logs.dirs.of(log).directory_id)
        self._moves.resume(partition, log)
        return log

    def _adopted(self, partition: Partition, config: LogConfig) -> Log | None:
        """Makes a future log the current log of a replica whose own log is missing. Returns None if this is impossible.

        A future log is used only if the controller has assigned the replica to the future log's directory. Other future
        logs are removed. But while a directory is offline, future logs of the current topic are kept: the log that they
        copy may be in the offline directory.
        """
        leftovers, ours = self._logs.futures.leftovers, None
        for orphan in leftovers.of(partition.topic, partition.index):
            named = partition.image.directory(self._node_id) == orphan.directory.directory_id
            if named and orphan.topic_id == partition.topic_id:
                ours = orphan
            elif orphan.topic_id not in (partition.topic_id, ZERO_UUID):
                leftovers.remove(orphan, "its topic was deleted")
            elif not any(each.offline for each in self._logs.dirs):
                leftovers.remove(orphan, "the log that it copied is gone")
        return None if ours is None else self._logs.adopt(ours, config)

    def _directory_of(self, partition: Partition) -> bytes | None:
        """Returns the id of the directory in which to open the replica's log; None if any directory can be used.

        Raises KafkaError if the log may be in an offline directory, so that no second log is created elsewhere. The id
        of an offline directory may be unknown, so each offline directory may hold any replica that was found in no
        other directory. If the metadata has no directory for such a replica, the replica is reported as lost, so that
        it can't become leader.
        """
        wanted = partition.image.directory(self._node_id)
        if any(each.directory_id == wanted for each in self._logs.dirs):
            return wanted
        unassigned = wanted == UNASSIGNED_DIRECTORY
        asked = self._moves.remembered(partition.topic, partition.index)
        offline = [each.path for each in self._logs.dirs if each.offline]
        if offline and not (unassigned and partition.is_new):
            if unassigned:
                self.host.placed(partition, LOST_DIRECTORY)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"The log of {partition} may be in {', '.join(offline)}, which is offline: repair or replace the disk.",
            )
        if not is_reserved(wanted):
            logger.warning(
                "%s was in directory %s, which is not in log.dirs: an empty log is created in another directory",
                partition,
                uuid_to_str(wanted),
            )
        return None if asked is None else asked.directory_id

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
        """Ends all waits at the partitions, because the node stops. Parked fetches respond at once."""
        for partition in self._by_name.values():
            partition.stop()

    async def close(self) -> None:
        if self._opener is not None:
            self._opener.cancel()
            await asyncio.gather(self._opener, return_exceptions=True)

    async def settle(self) -> None:
        """Waits until the background task has opened all logs."""
        while self._opener is not None:
            await asyncio.shield(self._opener)
