"""Runs the partitions of one broker with three log directories in memory, in virtual time.

The test plays the controller: it publishes images, and it answers the reports about directories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from penstock.broker.events import NodeEvent
from penstock.broker.events.kinds import MoveChanged
from penstock.broker.replicas.directory_moves import DirectoryMoves
from penstock.broker.replicas.partition import Partition
from penstock.broker.replicas.partitions import Partitions
from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.log import Log
from penstock.log.manager import LogDir, LogManager
from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import EMPTY_IMAGE, ImageChanges, MetadataImage, PartitionImage, TopicImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import ResourceType
from penstock.records.batches import split_batches
from penstock.records.build import build_batch

A, B, C = "/a", "/b", "/c"
NODE_ID = 1
NOW_MS = 1_700_000_000_000


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"\1")


def contents(log: Log) -> bytes:
    """Returns all batches of a log as bytes."""
    found = bytearray()
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 22, upper_bound=log.log_end_offset).read_now()
        for header, view in split_batches(data, allow_partial=True):
            found += view
            offset = header.next_offset
    return bytes(found)


class DiskNode:
    def __init__(self, disk: MemoryDisk | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.disk = MemoryDisk() if disk is None else disk
        self.settings = Settings({"node.id": str(NODE_ID), **(settings or {})})
        self.logs = LogManager(self.disk, (A, B, C), ManualClock())
        self.events: list[NodeEvent] = []
        #: Directories that moves reported before their swap, and directories that they reported as kept.
        self.assigned: list[tuple[str, int, str]] = []
        self.reverted: list[tuple[str, int, str]] = []
        #: Directories that opened logs reported, by id.
        self.placed: list[tuple[str, int, bytes]] = []
        self.answer_assignment: Callable[[], Any] = asyncio.Event().set
        self.passes = 0
        self.moves = DirectoryMoves(
            self.logs,
            self.settings,
            assign=self._assign,
            revert=lambda partition, to: self.reverted.append((partition.topic, partition.index, self.path_of(to))),
            observer=self.events.append,
            request_passes=lambda: self.passes,
        )
        self.partitions = Partitions(
            NODE_ID,
            self.logs,
            self.settings,
            broker_epoch=lambda: 7,
            propose=lambda partition: None,
            placed=lambda partition, to: self.placed.append((partition.topic, partition.index, to)),
            moves=self.moves,
        )
        self.image: MetadataImage | None = None

    async def start(self, *images: MetadataImage) -> DiskNode:
        await self.logs.open(node_id=NODE_ID, cluster_id="c")
        for image in images or (EMPTY_IMAGE,):
            self.apply(image)
        return self

    async def stop(self) -> None:
        await self.moves.close()
        self.partitions.release_waiters()
        await self.partitions.close()
        await self.logs.close()

    async def crash(self) -> MemoryDisk:
        """Ends the node without a clean shutdown, and returns its disk."""
        await self.moves.close()
        await self.partitions.close()
        self.logs.abandon()
        return self.disk

    async def _assign(self, partition: Partition, directory_id: bytes) -> None:
        self.assigned.append((partition.topic, partition.index, self.path_of(directory_id)))
        answer = self.answer_assignment()
        if answer is not None:
            await answer

    # Metadata.

    def apply(self, image: MetadataImage) -> None:
        old, self.image = self.image, image
        self.settings.apply_image(image)
        self.partitions.apply(old, image)

    def create(self, *names: str, partitions: int = 1, **configs: str) -> None:
        """Creates topics whose partitions are on this node alone."""
        assert self.image is not None
        named = {name.replace("_", "."): value for name, value in configs.items()}
        self.apply(with_topics(self.image, names, partitions, configs=named))

    def delete(self, name: str) -> None:
        assert self.image is not None
        topics = {each: topic for each, topic in self.image.topics.items() if each != name}
        self.apply(_changed(self.image, topics, {name}))

    # Directories.

    def directory(self, path: str) -> LogDir:
        return next(each for each in self.logs.dirs if each.path == path)

    def path_of(self, directory_id: bytes) -> str:
        return next(each.path for each in self.logs.dirs if each.directory_id == directory_id)

    def names(self, path: str) -> list[str]:
        """Returns the names of the logs in a directory, without the random part of the names of future and deleted
        logs."""
        names = sorted(each for each in self.disk.listdir(path) if self.disk.is_dir(f"{path}/{each}"))
        return [f"{name.partition('.')[0]}-{name.rpartition('-')[2]}" if "." in name else name for name in names]

    # Records and moves.

    def log(self, topic: str = "t", index: int = 0) -> Log:
        return self.partitions.get(topic, index).log

    def write(self, count: int, size: int = 100, topic: str = "t", index: int = 0) -> None:
        for _ in range(count):
            batch = build_batch([(NOW_MS, b"k", bytes(size), ())])
            self.partitions.get(topic, index).append(batch, now_ms=NOW_MS)

    def move(self, target: str, topic: str = "t", index: int = 0) -> ErrorCode:
        partition = self.partitions.find(topic, index)
        return self.moves.request(topic, index, self.directory(target), partition, exists=partition is not None)

    def states(self, topic: str = "t", index: int = 0) -> list[str]:
        """Returns the states of the partition's moves that the node reported."""
        return [
            each.state for each in self.events if isinstance(each, MoveChanged) and each.partition == f"{topic}-{index}"
        ]


async def passes(count: int) -> None:
    """Lets the event loop run that many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def soon(condition: Callable[[], bool], count: int = 3000) -> None:
    """Lets the event loop run until the condition is true."""
    for _ in range(count):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition did not become true")


async def refuse() -> None:
    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The controller refuses the directory.")


def _changed(old: MetadataImage, topics: Mapping[str, TopicImage], names: set[str]) -> MetadataImage:
    return replace(
        old,
        version=old.version + 1,
        topics=topics,
        topics_by_id={each.topic_id: each for each in topics.values()},
        changes=ImageChanges(old.version, frozenset(names), frozenset((int(ResourceType.TOPIC), n) for n in names)),
    )


def with_topics(
    old: MetadataImage,
    names: tuple[str, ...],
    partitions: int = 1,
    *,
    directory: bytes = bytes(16),
    configs: Mapping[str, str] | None = None,
) -> MetadataImage:
    """Returns an image with more topics, whose replicas are in the given directory of this node."""
    one = PartitionImage((NODE_ID,), (NODE_ID,), NODE_ID, 1, directories=(directory,))
    topics = {name: TopicImage(name, topic_id(name), dict.fromkeys(range(partitions), one)) for name in names}
    image = _changed(old, {**old.topics, **topics}, set(names))
    return replace(image, configs={**old.configs, **{(int(ResourceType.TOPIC), n): configs or {} for n in names}})
