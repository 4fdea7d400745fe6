"""Tests interrupted moves between log directories: restarts, deleted topics, failing disks and lost source logs."""

from __future__ import annotations

import errno

import pytest
from move_node import A, B, held, run, started

from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.log.future_log import FutureLog
from penstock.log.future_logs import FutureLogs, Retired
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.records.build import build_batch
from penstock.replication.directory_move import MoveState


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_move_between_log_directories_continues_after_a_restart(end: str, caplog: pytest.LogCaptureFixture) -> None:
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


def test_move_of_a_compacted_log_between_directories_starts_again_after_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
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


def test_deletion_of_a_topic_ends_the_move_of_its_replica_between_log_directories() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        user = await started(disk)
        await held(user)
        await user.call(20, 6, DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000))
        assert not user.moves.figures()
        await user.moves.settle()
        await user.node.broker.logs.removal.run(all_of_them=True)
        for directory in (A, B):
            assert not [name for name in disk.listdir(directory) if name.startswith("t-0")]
        await user.node.stop(1.0)

    run(scenario)


def test_failing_target_directory_ends_the_move_and_the_source_log_stays_in_use() -> None:
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


def test_full_target_directory_ends_the_move_and_stays_online() -> None:
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


def test_lost_source_log_is_replaced_by_its_copy_if_the_controller_assigned_the_target_directory() -> None:
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


def test_unfinished_copy_is_removed_if_its_source_log_is_lost_and_the_replica_is_assigned_to_the_source() -> None:
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


def test_record_appended_just_before_a_directory_move_swaps_the_logs_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record is appended just before the swap. Only the swap's fsync covers it and moves the high watermark."""

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
