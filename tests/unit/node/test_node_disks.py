"""Tests disks of a node that fail or fill up: which requests are still served, and the reported reasons."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.events.kinds import DirectoryFailed
from penstock.broker.handlers.registry import load_handler
from penstock.broker.requests.context import RequestContext
from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.http.node_metrics import directory_families
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.node.storage import StorageError
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.messages.api_19_create_topics import CreatableTopic, CreateTopicsRequest
from penstock.protocol.messages.api_21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from penstock.protocol.messages.api_44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.records.build import build_batch
from penstock.replication.directory_move import MoveState

META, A, B = "/meta", "/data/a", "/data/b"


class SmallDisk(MemoryDisk):
    """Imitates a disk: the test sets how many bytes are free in each directory."""

    def __init__(self) -> None:
        super().__init__()
        self.free = {META: 1 << 30, A: 1 << 30, B: 1 << 30}

    def free_bytes(self, path: str) -> tuple[int, int]:
        return 1 << 31, self.free[path]


class Disks:
    """Runs a node on a disk in memory, and keeps the errors that it reports as fatal."""

    def __init__(self, **properties: str) -> None:
        self.disk = SmallDisk()
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
        """Creates topics until one of them has its log in the directory. Returns the name of this topic."""
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


def test_node_with_two_log_directories_keeps_running_after_one_of_them_has_failed() -> None:
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
        (failed,) = [each.event for each in user.node.broker.events.entries if isinstance(each.event, DirectoryFailed)]
        assert failed.path == B
        assert str(failed).startswith(f"log directory {B} is offline until the node restarts")
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


def test_write_error_of_a_partition_in_the_directory_of_the_metadata_log_stops_the_node() -> None:
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


# --- disks that fill up ---------------------------------------------------------------------------------------------


async def looked(node: Node) -> None:
    """Makes the node read the free space of its directories, as its timer does."""
    await node._maintenance.space()


def test_produce_is_refused_before_the_disk_is_full_and_other_requests_continue() -> None:
    async def scenario() -> None:
        user = Disks(penstock_log_dirs_min_free_bytes="1000000")
        disk = user.disk
        await user.node.start()
        first, second = await user.create_in(A), await user.create_in(B)
        assert await user.produce(second) == (ErrorCode.NONE, None)
        disk.free[B] = 999_999
        await looked(user.node)
        code, message = await user.produce(second)
        assert code is ErrorCode.KAFKA_STORAGE_ERROR
        assert message == (
            f"Log directory {B} is nearly full: it has 999,999 bytes left, the limit is "
            "penstock.log.dirs.min.free.bytes=1000000: delete records or topics, or move replicas to another directory "
            "(`penstock logdir`)."
        )
        assert await user.produce(first) == (ErrorCode.NONE, None)
        figures = {family.name: dict(family.samples) for family in directory_families(user.node.broker)}
        assert figures["penstock_log_directory_free_bytes"][("directory", B),] == 999_999
        assert figures["penstock_log_directory_short_of_space"] == {(("directory", A),): 0, (("directory", B),): 1}
        assert not any(each.offline for each in user.node.broker.logs.dirs)

        log = user.node.broker.partitions.get(second, 0).log
        assert log.log_end_offset == 1
        assert len(log.read(0, 1000, upper_bound=1)) > 0
        deleted = DeleteRecordsTopic(name=second, partitions=[DeleteRecordsPartition(partition_index=0, offset=1)])
        answer = await user.call(21, 2, DeleteRecordsRequest(topics=[deleted], timeout_ms=1000))
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        assert await user.create("made-while-full") in (A, B)

        disk.free[B] = 1_001_000
        await looked(user.node)
        assert await user.produce(second) == (ErrorCode.NONE, None)
        await user.node.stop()

    run(scenario)


def test_the_minimum_free_space_can_be_lowered_on_a_running_node() -> None:
    async def scenario() -> None:
        user = Disks(penstock_log_dirs_min_free_bytes="1000000")
        disk = user.disk
        await user.node.start()
        topic = await user.create_in(B)
        disk.free[B] = 500_000
        await looked(user.node)
        assert (await user.produce(topic))[0] is ErrorCode.KAFKA_STORAGE_ERROR
        change = AlterableConfig(name="penstock.log.dirs.min.free.bytes", config_operation=0, value="400000")
        resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[change])
        answer = await user.call(44, 1, IncrementalAlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == ErrorCode.NONE
        await looked(user.node)
        assert await user.produce(topic) == (ErrorCode.NONE, None)
        await user.node.stop()

    run(scenario)


def test_free_disk_space_is_not_checked_if_the_limit_is_zero() -> None:
    async def scenario() -> None:
        user = Disks(penstock_log_dirs_min_free_bytes="0")
        disk = user.disk
        disk.free[A] = disk.free[B] = 0
        await user.node.start()
        assert await user.produce(await user.create_in(A)) == (ErrorCode.NONE, None)
        assert not any("free space" in task.get_name() for task in asyncio.all_tasks())
        await user.node.stop()

    run(scenario)


def test_move_into_a_nearly_full_directory_fails_and_the_replica_stays_in_its_directory() -> None:
    async def scenario() -> None:
        user = Disks(penstock_log_dirs_min_free_bytes="1000000")
        await user.node.start()
        topic = await user.create_in(A)
        for _ in range(60):  # more than the tail that a swap copies
            assert await user.produce(topic) == (ErrorCode.NONE, None)
        user.disk.free[B] = 1_000_010
        await looked(user.node)
        broker = user.node.broker
        partition = broker.partitions.get(topic, 0)
        assert broker.moves.request(topic, 0, broker.logs.dirs.find(B), partition) is ErrorCode.NONE
        await broker.moves.settle()
        (ended,) = broker.moves.ended
        assert ended.state is MoveState.FAILED
        assert f"Log directory {B} is nearly full" in ended.reason
        assert partition.log.log_dir == A
        assert await user.produce(topic) == (ErrorCode.NONE, None)
        assert broker.logs.dirs.free_space.short() == {}
        await user.node.stop()

    run(scenario)
