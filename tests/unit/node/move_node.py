"""Runs a node with three log directories and calls its handlers, for tests of moves between directories."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.broker.handlers.registry import load_handler
from penstock.broker.requests.context import RequestContext
from penstock.disk.memory import MemoryDisk
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.messages.api_19_create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from penstock.protocol.messages.api_34_alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from penstock.protocol.messages.api_35_describe_log_dirs import DescribeLogDirsRequest
from penstock.protocol.messages.api_44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.records.build import build_batch

A, B, C = "/data/a", "/data/b", "/data/c"
THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"


class User:
    """Calls the node's handlers as the dispatcher does, without sockets."""

    def __init__(self, node: Node) -> None:
        self.node = node

    @property
    def moves(self) -> Any:
        return self.node.broker.moves

    async def call(self, api_key: int, version: int, request: Any) -> Any:
        context = RequestContext(api_key, version, 1, "test", None, self.node.clock.wall_ms())  # type: ignore[arg-type]
        answer = load_handler(api_key)(self.node.broker, context, request)
        return await answer if isinstance(answer, Awaitable) else answer

    async def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        named = [CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()]
        wanted = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1, configs=named)
        answer = await self.call(19, 2, CreateTopicsRequest(topics=[wanted]))
        assert answer.topics[0].error_code == ErrorCode.NONE
        for index in range(partitions):
            _ = self.node.broker.partitions.get(topic, index).log

    async def produce(self, topic: str, count: int = 1, value: bytes = bytes(30_000)) -> int:
        """Appends batches of one record. Returns the last offset."""
        for _ in range(count):
            batch = bytearray(build_batch([(self.node.clock.wall_ms(), b"k", value, ())]))
            data = PartitionProduceData(index=0, records=memoryview(batch))
            request = ProduceRequest(
                acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
            )
            answer = (await self.call(0, 9, request)).responses[0].partition_responses[0]
            assert answer.error_code == ErrorCode.NONE
        return int(answer.base_offset)

    async def move(self, path: str, topic: str = "t", index: int = 0) -> ErrorCode:
        asked = AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=[index])])
        answer = await self.call(34, 2, AlterReplicaLogDirsRequest(dirs=[asked]))
        assert answer.results[0].topic_name == topic
        return ErrorCode(answer.results[0].partitions[0].error_code)

    async def places(self, topic: str = "t") -> dict[str, tuple[bool, int]]:
        """Returns a pair for each directory: True if its log is a future log, and the lag of its log."""
        answer = await self.call(35, 4, DescribeLogDirsRequest(topics=None))
        return {
            result.log_dir: (part.is_future_key, part.offset_lag)
            for result in answer.results
            for each in result.topics
            for part in each.partitions
            if each.name == topic
        }

    async def throttle(self, rate: int | None) -> None:
        value = None if rate is None else str(rate)
        operation = AlterableConfig(name=THROTTLE, config_operation=int(rate is None), value=value)
        resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[operation])
        answer = await self.call(44, 1, IncrementalAlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == ErrorCode.NONE

    def directory(self, topic: str = "t") -> str:
        """Returns the directory that the metadata has for the replica."""
        image = self.node.broker.metadata.image
        wanted = image.topics[topic].partitions[0].directory(self.node.settings.node_id)
        return next(each.path for each in self.node.broker.logs.dirs if each.directory_id == wanted)

    def offsets(self, topic: str = "t") -> int:
        return self.node.broker.partitions.get(topic, 0).log.log_end_offset


def node_on(disk: MemoryDisk, seed: int = 7, dirs: str = f"{A},{B},{C}", **properties: str) -> Node:
    settings = local_settings(dirs, port=0)
    settings.static.update({name.replace("_", "."): value for name, value in properties.items()})
    node = make_node(settings, disk, seed=seed)
    format_if_new(node)
    return node


async def started(disk: MemoryDisk, **options: Any) -> User:
    node = node_on(disk, **options)
    await node.start()
    return User(node)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await scenario()

    asyncio.run(bounded())


async def held(user: User, target: str = B) -> None:
    """Creates a topic with records in A, and starts a move. A throttle makes the move so slow that it does not end."""
    await user.move(A)
    await user.create("t")
    await user.produce("t", 40)
    await user.throttle(1)
    assert await user.move(target) is ErrorCode.NONE
    while not user.moves.figures()[0].copied_bytes:  # noqa: ASYNC110 - a few turns of the event loop
        await asyncio.sleep(0)
