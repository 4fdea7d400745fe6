"""Replicas move between the log directories of a node: requests, progress, cancellation, restarts and failures."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.handlers.registry import load_handler
from penstock.broker.requests.context import RequestContext
from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.disk.real import RealDisk
from penstock.log.directories import MAX_RESOLVED_PATHS, LogDirectories
from penstock.log.future_log import FutureLog
from penstock.log.future_logs import FutureLogs, Retired
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.messages.api_19_create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from penstock.protocol.messages.api_20_delete_topics import DeleteTopicsRequest, DeleteTopicState
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
from penstock.replication.directory_move import MoveState

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
        """Returns whether the log is a future log, and its lag, by directory."""
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
    """Creates a topic with records in A and begins a move that a throttle holds in the middle."""
    await user.move(A)
    await user.create("t")
    await user.produce("t", 40)
    await user.throttle(1)
    assert await user.move(target) is ErrorCode.NONE
    while not user.moves.figures()[0].copied_bytes:  # noqa: ASYNC110 - a few turns of the event loop
        await asyncio.sleep(0)


def test_a_replica_is_moved_while_records_are_produced() -> None:
    async def scenario() -> None:
        user = await started(MemoryDisk())
        await user.move(A)
        await user.create("t")
        await user.produce("t", 40)
        assert await user.places() == {A: (False, 0)}
        assert await user.move(B) is ErrorCode.NONE
        assert (await user.places())[B] == (True, 40)
        await user.produce("t", 10)
        await user.moves.settle()
        assert await user.places() == {B: (False, 0)}
        assert user.directory() == B
        assert await user.produce("t") == 50
        [ended] = user.moves.ended
        assert (ended.state, ended.source, ended.target, ended.bytes_left) == (MoveState.DONE, A, B, 0)
        await user.node.stop(1.0)

    run(scenario)


def test_requests_get_kafkas_error_codes() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        user = await started(disk)
        await user.move(A)
        await user.create("t")
        assert await user.move("/elsewhere") is ErrorCode.LOG_DIR_NOT_FOUND
        assert await user.move("") is ErrorCode.LOG_DIR_NOT_FOUND
        assert await user.move(B, "unknown") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await user.move(B, "t", 7) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await user.move(B, "n" * 230) is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await user.move(A) is ErrorCode.NONE, "already there"
        assert not user.moves.figures()
        user.node.broker.logs.take_offline(user.node.broker.logs.dirs[1], OSError(errno.EIO, "broken"))
        assert await user.move(B) is ErrorCode.KAFKA_STORAGE_ERROR
        await user.node.abandon()

    run(scenario)


def test_a_path_may_have_dots_and_slashes() -> None:
    async def scenario() -> None:
        user = await started(MemoryDisk())
        await user.move(f"{A}/")
        await user.create("t")
        assert await user.places() == {A: (False, 0)}
        assert await user.move(f"{A}/../b//") is ErrorCode.NONE
        await user.moves.settle()
        assert await user.places() == {B: (False, 0)}
        await user.node.stop(1.0)

    run(scenario)


def test_a_path_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    directories = LogDirectories(RealDisk(), [str(tmp_path / "real")], None, frozenset())
    for path in ("link", "link/", "real/../link", "real"):
        found = directories.find(f"{tmp_path}/{path}")
        assert found is directories[0]
    for path in (f"{tmp_path}", f"{tmp_path}/other", "/" + "x" * 5000, "\0"):
        assert directories.find(path) is None


class ResolvingDisk(MemoryDisk):
    """Records which paths of the test's request are looked up in threads, and which on the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.in_threads: list[str] = []
        self.on_the_loop: list[str] = []
        self._in_thread = False

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def in_thread() -> Any:
            self._in_thread = True
            try:
                return function(*args, **kwargs)
            finally:
                self._in_thread = False

        return await super().run(in_thread)

    def _note(self, path: str) -> None:
        if path.startswith(("/nowhere", "/ä", "/x")):
            (self.in_threads if self._in_thread else self.on_the_loop).append(path)

    def real_path(self, path: str) -> str:
        self._note(path)
        return super().real_path(path)

    def exists(self, path: str) -> bool:
        self._note(path)
        return super().exists(path)


def test_paths_of_a_request_are_resolved_once_each_and_not_on_the_event_loop() -> None:
    async def scenario() -> None:
        disk = ResolvingDisk()
        user = await started(disk)
        await user.create("t")
        unknown = [f"/nowhere{number}" for number in range(MAX_RESOLVED_PATHS + 500)]
        paths = [*["/nowhere0"] * 5000, "/" + "ä" * 2500, "/" + "x" * 5000, *unknown, f"{A}/../b", B]
        topics = [AlterReplicaLogDirTopic(name="t", partitions=[7])]
        asked = [AlterReplicaLogDir(path=path, topics=topics) for path in paths]
        answer = await user.call(34, 2, AlterReplicaLogDirsRequest(dirs=asked))
        codes = [part.error_code for part in answer.results[0].partitions]
        assert codes == [ErrorCode.LOG_DIR_NOT_FOUND] * (len(paths) - 1) + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert disk.in_threads == unknown[:MAX_RESOLVED_PATHS]
        assert disk.on_the_loop == []
        await user.node.stop(1.0)

    run(scenario)


def test_a_directory_asked_for_before_the_replica_exists_is_used_when_it_is_created() -> None:
    async def scenario() -> None:
        user = await started(MemoryDisk())
        assert await user.move(C) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await user.move(B, "u") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await user.create("t")
        await user.create("u")
        assert await user.places("t") == {C: (False, 0)}
        assert await user.places("u") == {B: (False, 0)}
        await user.node.stop(1.0)

    run(scenario)


def test_a_throttled_move_shows_its_progress() -> None:
    async def scenario() -> None:
        user = await started(MemoryDisk())
        await held(user)
        [figures] = user.moves.figures()
        log = user.node.broker.partitions.get("t", 0).log
        assert figures.state is MoveState.COPYING
        assert 0 < figures.copied_bytes < log.size
        assert figures.copied_bytes + figures.bytes_left == log.size
        places = await user.places()
        assert places == {A: (False, 0), B: (True, figures.records_left)}
        assert 0 < figures.records_left < 40
        await user.throttle(None)
        await user.moves.settle()
        assert await user.places() == {B: (False, 0)}
        await user.node.stop(1.0)

    run(scenario)


def test_a_move_to_the_current_directory_cancels_a_move() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        user = await started(disk)
        await held(user)
        assert await user.move(B) is ErrorCode.NONE, "the same target again"
        assert len(user.moves.figures()) == 1
        assert await user.move(A) is ErrorCode.NONE
        assert not user.moves.figures()
        await asyncio.sleep(0.01)
        assert await user.places() == {A: (False, 0)}
        assert user.moves.ended[-1].state is MoveState.CANCELLED
        await user.node.broker.logs.removal.run(all_of_them=True)
        assert not [name for name in disk.listdir(B) if name.startswith("t-0")]
        await user.produce("t")
        await user.node.stop(1.0)

    run(scenario)


def test_another_target_replaces_a_move() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        user = await started(disk)
        await held(user)
        assert await user.move(C) is ErrorCode.NONE
        assert (await user.places()).keys() == {A, C}
        await user.throttle(None)
        await user.moves.settle()
        assert await user.places() == {C: (False, 0)}
        assert [each.state for each in user.moves.ended] == [MoveState.CANCELLED, MoveState.DONE]
        await user.node.stop(1.0)

    run(scenario)


def test_moves_beyond_the_number_of_copiers_wait() -> None:
    async def scenario() -> None:
        user = await started(MemoryDisk(), num_replica_alter_log_dirs_threads="1")
        await user.move(A)
        await user.move(A, "u")
        await user.create("u")
        await user.produce("u", 10)
        await held(user)
        assert await user.move(B, "u") is ErrorCode.NONE
        assert [each.state for each in user.moves.figures()] == [MoveState.COPYING, MoveState.REQUESTED]
        await user.throttle(None)
        await user.moves.settle()
        assert [each.topic for each in user.moves.ended] == ["t", "u"]
        await user.node.stop(1.0)

    run(scenario)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_move_goes_on_after_a_restart(end: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        user = await started(disk)
        await held(user)
        await (user.node.stop(1.0) if end == "stop" else user.node.abandon())
        again = await started(disk, seed=8)
        await again.node.broker.partitions.settle()
        [figures] = again.moves.figures()
        assert (figures.source, figures.target) == (A, B)
        await again.throttle(None)
        await again.moves.settle()
        assert await again.places() == {B: (False, 0)}
        assert again.directory() == B
        assert again.offsets() == 40
        await again.node.stop(1.0)

    with caplog.at_level("INFO"):
        run(scenario)
    assert "resuming the move" in caplog.text


def test_the_move_of_a_compacted_log_starts_over_after_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        user = await started(disk)
        await user.move(A)
        await user.create("t", cleanup_policy="compact")
        await user.produce("t", 40)
        await user.throttle(1)
        assert await user.move(B) is ErrorCode.NONE
        await user.node.stop(1.0)
        again = await started(disk, seed=8)
        await again.node.broker.partitions.settle()
        await again.throttle(None)
        await again.moves.settle()
        assert await again.places() == {B: (False, 0)}
        await again.node.stop(1.0)

    with caplog.at_level("INFO"):
        run(scenario)
    assert "starts over, because the log is compacted" in caplog.text


def test_a_deleted_topic_ends_its_move() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        user = await started(disk)
        await held(user)
        await user.call(20, 6, DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000))
        assert not user.moves.figures()
        await asyncio.sleep(0.01)
        await user.node.broker.logs.removal.run(all_of_them=True)
        for directory in (A, B):
            assert not [name for name in disk.listdir(directory) if name.startswith("t-0")]
        await user.node.stop(1.0)

    run(scenario)


def test_a_failing_target_ends_the_move_and_the_source_goes_on() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        user = await started(disk)
        await user.move(A)
        await user.create("t")
        await user.produce("t", 40)

        def fail(kind: str, path: str) -> None:
            if path.startswith(B) and path.endswith(".log") and kind == "append":
                raise DiskError(errno.EIO, "input/output error", path)

        disk.on_write = fail
        assert await user.move(B) is ErrorCode.NONE
        await user.moves.settle()
        disk.on_write = None
        [ended] = user.moves.ended
        assert ended.state is MoveState.FAILED
        assert "input/output error" in ended.reason
        assert user.node.broker.logs.dirs[1].offline
        await user.produce("t")
        assert (await user.places()).keys() == {A}
        assert user.directory() == A
        await user.node.abandon()

    run(scenario)


def test_a_full_target_ends_the_move_and_stays_online() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        user = await started(disk)
        await user.move(A)
        await user.create("t")
        await user.produce("t", 40)

        def fill_up(kind: str, path: str) -> None:
            if path.startswith(B) and path.endswith(".log") and kind == "append":
                raise DiskError(errno.ENOSPC, "no space left on device", path)

        disk.on_write = fill_up
        assert await user.move(B) is ErrorCode.NONE
        await user.moves.settle()
        disk.on_write = None
        assert "no space left" in user.moves.ended[-1].reason
        assert not user.node.broker.logs.dirs[1].offline
        assert await user.move(B) is ErrorCode.NONE
        await user.moves.settle()
        assert await user.places() == {B: (False, 0)}
        await user.node.stop(1.0)

    run(scenario)


def test_a_copy_becomes_the_log_if_its_source_is_lost_after_the_controller_has_its_directory() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        user = await started(disk)
        await held(user)
        assignments = user.node.broker.replicas._assignments
        await assignments.assigned(user.node.broker.partitions.get("t", 0), user.node.broker.logs.dirs[1].directory_id)
        copied = 40 - user.moves.figures()[0].records_left
        await user.node.stop(1.0)
        disk.remove_tree(f"{A}/t-0")
        again = await started(disk, seed=8)
        await again.node.broker.partitions.settle()
        assert await again.places() == {B: (False, 0)}
        assert again.offsets() == copied
        await again.produce("t")
        await again.node.stop(1.0)

    run(scenario)


def test_a_copy_whose_source_is_lost_is_removed_if_the_controller_assigned_another_directory() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        user = await started(disk)
        await held(user)
        await user.node.stop(1.0)
        disk.remove_tree(f"{A}/t-0")
        again = await started(disk, seed=8)
        await again.node.broker.partitions.settle()
        assert (await again.places()).keys() == {A}
        assert again.offsets() == 0
        await again.node.broker.logs.removal.run(all_of_them=True)
        assert not [name for name in disk.listdir(B) if name.startswith("t-0")]
        await again.node.stop(1.0)

    run(scenario)


def test_a_record_that_the_swap_syncs_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is appended just before the swap, whose fsync covers it: no other fsync moves the high watermark."""

    async def scenario() -> None:
        user = await started(MemoryDisk())
        await user.move(A)
        await user.create("t", flush_messages="1")
        await user.produce("t", 3, b"v")
        partition = user.node.broker.partitions.get("t", 0)
        swap = FutureLogs.swap

        def append_and_swap(self: FutureLogs, future: FutureLog, tail_bytes: int) -> Retired | None:
            batch = bytearray(build_batch([(user.node.clock.wall_ms(), b"k", b"last", ())]))
            partition.append(batch, now_ms=user.node.clock.wall_ms())
            assert partition.log.high_watermark == 3
            return swap(self, future, tail_bytes)

        monkeypatch.setattr(FutureLogs, "swap", append_and_swap)
        assert await user.move(B) is ErrorCode.NONE
        await user.moves.settle()
        assert partition.log.log_end_offset == 4
        assert partition.log.high_watermark == 4
        await user.node.stop(1.0)

    run(scenario)
