"""Disks of a node that fail or fill up: what goes on, what stops, and with which reason."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.handlers.registry import load_handler
from penstock.broker.requests.context import RequestContext
from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.node.storage import StorageError
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.messages.api_19_create_topics import CreatableTopic, CreateTopicsRequest
from penstock.records.build import build_batch

META, A, B = "/meta", "/data/a", "/data/b"


class Disks:
    """A node on a disk in memory, with the errors that it reported as fatal."""

    def __init__(self, **properties: str) -> None:
        self.disk = MemoryDisk()
        self.fatal: list[Exception] = []
        settings = local_settings(f"{A},{B}", port=0)
        settings.static.update({name.replace("_", "."): value for name, value in properties.items()})
        self.node: Node = make_node(settings, self.disk, seed=3, on_fatal=self.fatal.append)
        format_if_new(self.node)

    def break_directory(self, *paths: str) -> None:
        def fail(operation: str, path: str) -> None:
            if path.startswith(paths):
                raise DiskError(errno.EIO, "Input/output error", path)

        self.disk.on_write = fail

    async def call(self, api_key: int, version: int, request: Any) -> Any:
        context = RequestContext(api_key, version, 1, "test", None, self.node.clock.wall_ms())  # type: ignore[arg-type]
        answer = load_handler(api_key)(self.node.broker, context, request)
        return await answer if isinstance(answer, Awaitable) else answer

    async def create(self, topic: str) -> str:
        """Creates a topic with one partition. Returns the directory of its log."""
        wanted = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
        answer = await self.call(19, 2, CreateTopicsRequest(topics=[wanted]))
        assert answer.topics[0].error_code == ErrorCode.NONE
        return self.node.broker.partitions.get(topic, 0).log.log_dir

    async def create_in(self, path: str) -> str:
        """Creates topics until one has its log in the directory. Returns its name."""
        for name in ("t1", "t2", "t3", "t4"):
            if name not in self.node.broker.metadata.image.topics and await self.create(name) == path:
                return name
        raise AssertionError(f"no topic was placed in {path}")

    async def produce(self, topic: str) -> tuple[ErrorCode, str | None]:
        batch = bytearray(build_batch([(self.node.clock.wall_ms(), b"k", b"v", ())]))
        data = PartitionProduceData(index=0, records=memoryview(batch))
        request = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name=topic, partition_data=[data])])
        answer = (await self.call(0, 9, request)).responses[0].partition_responses[0]
        return ErrorCode(answer.error_code), answer.error_message


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


# --- failing directories --------------------------------------------------------------------------------------------


def test_one_failed_directory_of_two_leaves_the_node_running() -> None:
    async def scenario() -> None:
        user = Disks(metadata_log_dir=META)
        await user.node.start()
        first, second = await user.create_in(A), await user.create_in(B)
        user.break_directory(B)
        code, message = await user.produce(second)
        assert code is ErrorCode.KAFKA_STORAGE_ERROR
        assert message is not None
        assert B in message
        assert await user.produce(first) == (ErrorCode.NONE, None)
        assert user.fatal == []
        await user.node.abandon()

    run(scenario)


def test_a_node_whose_log_directories_have_all_failed_stops_with_the_reason() -> None:
    async def scenario() -> None:
        user = Disks(metadata_log_dir=META)
        await user.node.start()
        first, second = await user.create_in(A), await user.create_in(B)
        user.break_directory(A, B)
        await user.produce(first)
        assert user.fatal == []
        await user.produce(second)
        (error,) = user.fatal
        assert isinstance(error, StorageError)
        assert "without all its log directories" in str(error)
        assert "replace the disk" in str(error)
        await user.node.abandon()

    run(scenario)


def test_a_partition_that_fails_beside_the_metadata_log_stops_the_node() -> None:
    """The metadata log of this node is in directory A, and has not failed itself yet."""

    async def scenario() -> None:
        user = Disks()
        await user.node.start()
        first = await user.create_in(A)
        user.break_directory(f"{A}/{first}-0/")
        await user.produce(first)
        (error,) = user.fatal
        assert isinstance(error, StorageError)
        assert f"the directory of its metadata log, {A}" in str(error)
        await user.node.abandon()

    run(scenario)


def test_a_node_does_not_start_without_the_directory_of_its_metadata_log() -> None:
    async def scenario() -> None:
        user = Disks()
        user.break_directory(A)
        with pytest.raises(StorageError, match="holds the metadata log"):
            await user.node.start()

    run(scenario)
