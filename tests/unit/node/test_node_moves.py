"""Tests moves of replicas between log directories: requests, progress, cancellation and replacement."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from move_node import A, B, C, held, run, started

from penstock.broker.events.kinds import MoveChanged
from penstock.broker.replicas import replica_move
from penstock.disk.memory import MemoryDisk
from penstock.disk.real import RealDisk
from penstock.log.directories import MAX_RESOLVED_PATHS, LogDirectories
from penstock.log.future_log import FutureLog
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_34_alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from penstock.replication.directory_move import MoveState


def test_replica_moves_to_another_log_directory_while_records_are_produced() -> None:
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
        events = [each.event for each in user.node.broker.events.entries if isinstance(each.event, MoveChanged)]
        assert {(each.partition, each.source, each.target) for each in events} == {("t-0", A, B)}
        assert events[-1].state == "done"
        assert events[-1].copied_bytes > 0
        await user.node.stop(1.0)

    run(scenario)


def test_invalid_move_requests_get_kafkas_error_codes() -> None:
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


def test_target_path_of_a_move_may_contain_dots_and_extra_slashes() -> None:
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


def test_target_path_of_a_move_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    directories = LogDirectories(RealDisk(), [str(tmp_path / "real")], None, frozenset())
    for path in ("link", "link/", "real/../link", "real"):
        found = directories.find(f"{tmp_path}/{path}")
        assert found is directories[0]
    for path in (f"{tmp_path}", f"{tmp_path}/other", "/" + "x" * 5000, "\0"):
        assert directories.find(path) is None


class ResolvingDisk(MemoryDisk):
    """Imitates a disk: notes which paths of the request are looked up in threads and which on the event loop."""

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


def test_paths_of_a_move_request_are_resolved_once_and_never_on_the_event_loop() -> None:
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


def test_new_replica_is_created_in_the_directory_that_an_earlier_move_request_named() -> None:
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


def test_move_request_to_the_current_directory_cancels_a_running_move() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        user = await started(disk)
        await held(user)
        assert await user.move(B) is ErrorCode.NONE, "the same target again"
        assert len(user.moves.figures()) == 1
        assert await user.move(A) is ErrorCode.NONE
        assert not user.moves.figures()
        await user.moves.settle()
        assert await user.places() == {A: (False, 0)}
        assert user.moves.ended[-1].state is MoveState.CANCELLED
        await user.node.broker.logs.removal.run(all_of_them=True)
        assert not [name for name in disk.listdir(B) if name.startswith("t-0")]
        await user.produce("t")
        await user.node.stop(1.0)

    run(scenario)


def test_stop_of_a_node_waits_for_the_last_write_of_a_cancelled_move(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        user = await started(MemoryDisk())
        await user.move(A)
        await user.create("t")
        await user.produce("t", 40)
        writing, release = asyncio.Event(), asyncio.Event()
        append = FutureLog._append

        async def held_append(self: FutureLog, *args: Any) -> None:
            writing.set()
            await release.wait()
            await append(self, *args)

        monkeypatch.setattr(FutureLog, "_append", held_append)
        assert await user.move(B) is ErrorCode.NONE
        await writing.wait()
        assert await user.move(A) is ErrorCode.NONE
        stopping = asyncio.create_task(user.moves.close())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not stopping.done()
        release.set()
        await stopping
        assert user.moves.ended[-1].state is MoveState.CANCELLED
        await user.node.stop(1.0)

    run(scenario)


@pytest.mark.parametrize("busy", [False, True])
def test_directory_move_pauses_between_chunks_only_while_clients_send_requests(
    busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        user = await started(MemoryDisk())
        await user.move(A)
        await user.create("t")
        await user.produce("t", 40)
        passes = itertools.count(1)
        parts = replace(user.moves._parts, request_passes=lambda: next(passes) if busy else 0)
        monkeypatch.setattr(user.moves, "_parts", parts)
        chunks, pauses = [], []
        copy = FutureLog.copy

        async def small_copy(self: FutureLog, max_bytes: int) -> int:
            chunks.append(max_bytes)
            return await copy(self, 100_000)

        async def noted_sleep(seconds: float) -> None:
            if seconds:
                pauses.append(seconds)
            await asyncio.sleep(0)

        times = itertools.count(step=0.25)
        loop = SimpleNamespace(time=lambda: next(times))  # a chunk takes a quarter of a second or more
        monkeypatch.setattr(FutureLog, "copy", small_copy)
        monkeypatch.setattr(replica_move, "asyncio", SimpleNamespace(sleep=noted_sleep, get_running_loop=lambda: loop))
        assert await user.move(B) is ErrorCode.NONE
        await user.moves.settle()
        assert len(chunks) > 5
        assert (len(pauses) > 5) is busy
        assert all(0.25 <= each <= replica_move.MAX_SLEEP_SECONDS for each in pauses)
        await user.node.stop(1.0)

    run(scenario)


def test_move_request_to_another_directory_replaces_a_running_move() -> None:
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


def test_second_move_waits_if_only_one_thread_for_moves_is_configured() -> None:
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
