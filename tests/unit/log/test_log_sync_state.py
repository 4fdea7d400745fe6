"""Tests the sync state of a log: concurrent flushes, truncations, moves and errors, with several waiters."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from log_harness import TOPIC_ID, finish, manager, new_log, produce, run
from move_harness import TAIL, A, B, copied, directories, log_in_a

from penstock.clock import ManualClock
from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk, MemoryFile
from penstock.log import synced_mark
from penstock.log.flush import Durability, TruncatedError
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.log.synced_mark import Mark
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import ZERO_UUID

TWO_SEGMENTS = LogConfig(segment_bytes=200)


class HeldSyncs:
    """Holds each fsync of a record file below a directory until the test lets it end, oldest first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, below: str) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        original = MemoryFile.sync

        async def sync(file: MemoryFile) -> None:
            if file.path.startswith(f"{below}/"):
                held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self.waiting.append(held)
                await held
            await original(file)

        monkeypatch.setattr(MemoryFile, "sync", sync)

    async def end(self, number: int = 0) -> None:
        self.waiting.pop(number).set_result(None)
        await turns()


async def turns() -> None:
    """Lets all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


async def started(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.ensure_future(work)
    await turns()
    return task


def kinds(disk: MemoryDisk, work: Callable[[], object]) -> list[tuple[str, str]]:
    """Returns the syncs that the work makes, with their paths."""
    seen: list[tuple[str, str]] = []
    disk.on_write = lambda kind, path: seen.append((kind, path)) if kind in ("sync", "sync_dir") else None
    work()
    disk.on_write = None
    return seen


# Flushes.


@pytest.mark.parametrize("first_ends_first", [False, True])
def test_flush_that_began_earlier_never_lowers_the_state_of_a_later_flush(
    monkeypatch: pytest.MonkeyPatch, first_ends_first: bool
) -> None:
    async def story() -> None:
        log = new_log()
        durability = log.durability
        syncs = HeldSyncs(monkeypatch, "/logs")
        produce(log)
        first = await started(log.flush())
        produce(log)
        second = await started(log.flush())
        assert len(syncs.waiting) == 2
        await syncs.end(0 if first_ends_first else 1)
        ends = (1, 1) if first_ends_first else (2, 2)
        assert (log.recovery_point, log.flushed_offset) == ends
        await syncs.end()
        await asyncio.gather(first, second)
        assert (log.recovery_point, log.flushed_offset) == (2, 2)
        assert durability._dirty_segments() == []
        assert not log.is_dirty

    run(story())


def test_one_record_or_epoch_or_file_above_the_recovery_point_needs_a_flush() -> None:
    clock = ManualClock()
    log = new_log(logs=manager(clock=clock))
    changes: list[Callable[[], object]] = [
        lambda: produce(log),
        lambda: log.assign_epoch(5, log.log_end_offset),
        lambda: log.durability.note_unsynced(f"{log.path}/partition.metadata"),
    ]
    dirty: list[bool] = []
    log.flush_now()
    for change in changes:
        dirty.append(log.is_dirty)
        change()
        dirty.append(log.is_dirty)
        clock.advance(7)
        log.flush_now()
        assert log.durability.last_flush_ms == clock.wall_ms()
    assert [*dirty, log.is_dirty] == [False, True] * 3 + [False]


@pytest.mark.parametrize("whole_volume", [False, True])
@pytest.mark.parametrize("change", ["none", "truncation", "offline", "move"])
def test_flush_moves_the_recovery_point_only_if_the_log_is_still_the_same(change: str, whole_volume: bool) -> None:
    log = new_log(TWO_SEGMENTS)
    for _ in range(6):
        produce(log)
    goal = log.durability.begin()
    assert len(goal.sizes) > 1
    match change:
        case "truncation":
            log.truncate_to(5)
            produce(log)
        case "offline":
            log.health.take_offline(OSError(errno.EIO, "input/output error"))
        case "move":
            log.relocations += 1
    if whole_volume:
        finish(log.durability.end(goal, synced=True))
    else:
        log.durability.finish(goal)
    assert (log.recovery_point, log.flushed_offset) == ((6, 6) if change == "none" else (0, 0))
    assert (log.durability._dirty_segments() == []) is (change == "none")


def test_flush_of_an_offline_or_closed_log_is_refused() -> None:
    broken, closed = new_log(), new_log()
    for log in (broken, closed):
        produce(log)
    broken.health.take_offline(OSError(errno.EIO, "input/output error"))
    closed.close()
    for log, code in ((broken, ErrorCode.KAFKA_STORAGE_ERROR), (closed, ErrorCode.NOT_LEADER_OR_FOLLOWER)):
        for work in (log.durability.begin, log.flush_now, lambda log=log: finish(log.flush())):
            with pytest.raises(KafkaError) as refusal:
                work()
            assert refusal.value.code is code
        assert log.recovery_point == 0


def test_group_commit_syncs_only_segments_with_new_records_and_no_directory_without_a_new_segment() -> None:
    disk = MemoryDisk()
    log = new_log(TWO_SEGMENTS, manager(disk))
    for _ in range(5):
        produce(log)
    paths = [segment.path(".log") for segment in log.segments]
    assert len(paths) == 3

    def commit() -> None:
        run(log.flushed(log.log_end_offset))

    first = kinds(disk, commit)
    assert [path for kind, path in first if kind == "sync" and path in paths] == paths
    assert [path for kind, path in first if kind == "sync_dir"] == [log.path, "/logs"]
    assert kinds(disk, commit) == []
    produce(log)
    assert kinds(disk, commit) == [("sync", paths[2])]
    produce(log)
    assert kinds(disk, commit) == [("sync", log.segments.active.path(".log")), ("sync_dir", log.path)]


def test_log_without_a_topic_id_can_be_synced() -> None:
    disk = MemoryDisk()
    log = manager(disk).create("t", ZERO_UUID, 0, LogConfig())
    produce(log)
    run(log.flushed(1))
    log.flush_now()
    assert (log.recovery_point, log.offline) == (1, False)
    assert not disk.exists(f"{log.path}/partition.metadata")


@pytest.mark.parametrize("blocking", [False, True])
def test_every_file_that_a_failed_flush_did_not_sync_is_synced_by_the_next_flush(blocking: bool) -> None:
    disk = MemoryDisk(crashable=True)
    log = new_log(LogConfig(segment_bytes=300, index_interval_bytes=0), manager(disk))
    for number in range(8):
        produce(log, producer_id=3, producer_epoch=0, base_sequence=number, epoch=number // 4)

    def flush() -> None:
        log.flush_now() if blocking else finish(log.flush())

    def fail(kind: str, path: str) -> None:
        if kind == "sync" and not path.endswith(".log"):
            raise DiskError(errno.EMFILE, "too many open files", path)

    disk.on_write = fail
    for _ in range(2):
        with pytest.raises(KafkaError):
            flush()
        assert log.recovery_point == 0
    disk.on_write = None
    flush()
    assert log.recovery_point == 8
    for name in disk.listdir(log.path):
        assert not disk.inode(f"{log.path}/{name}").pending, name


def test_leader_epochs_that_could_not_be_written_are_written_by_the_next_flush() -> None:
    disk = MemoryDisk()
    log = new_log(logs=manager(disk))
    produce(log, epoch=3)

    def fail(kind: str, path: str) -> None:
        if "leader-epoch" in path:
            raise DiskError(errno.EMFILE, "too many open files", path)

    disk.on_write = fail
    with pytest.raises(KafkaError):
        log.flush_now()
    disk.on_write = None
    log.flush_now()
    assert disk.read_bytes(f"{log.path}/leader-epoch-checkpoint") == b"0\n1\n3 0\n"


# Waiting requests.


@pytest.mark.parametrize("end", range(6))
def test_truncation_refuses_exactly_the_waiters_above_the_new_end(monkeypatch: pytest.MonkeyPatch, end: int) -> None:
    async def story() -> None:
        log = new_log()
        for _ in range(5):
            produce(log)
        syncs = HeldSyncs(monkeypatch, "/logs")
        waiting = [await started(log.flushed(offset)) for offset in range(1, 6)]
        log.truncate_to(end)
        await turns()
        assert [task.done() for task in waiting] == [offset > end for offset in range(1, 6)]
        while syncs.waiting:
            await syncs.end()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(each, TruncatedError) for each in outcomes] == [offset > end for offset in range(1, 6)]
        assert log.flushed_offset == end

    run(story())


def test_settle_waits_for_the_end_of_a_running_group_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        log = new_log()
        await log.durability.settle()
        produce(log)
        syncs = HeldSyncs(monkeypatch, "/logs")
        waiting = await started(log.flushed(1))
        settled = await started(log.durability.settle())
        assert not settled.done()
        await syncs.end()
        assert settled.done()
        assert waiting.done()
        await log.durability.settle()

    run(story())


@pytest.mark.parametrize(("mark", "promised"), list(product(Mark, (False, True))))
def test_synced_mark_is_removed_only_while_the_config_does_not_require_fsync(mark: Mark, promised: bool) -> None:
    disk = MemoryDisk()
    log = new_log(replace(LogConfig(), flush_messages=1 if promised else 1 << 62), manager(disk))
    assert log.config.fsync_before_ack is promised
    if mark is not Mark.ABSENT:
        synced_mark.write_file(disk, log.path)
    log.durability.mark = mark
    run(log.durability.remove_mark())
    assert log.durability.mark is (mark if promised else Mark.ABSENT)
    assert disk.exists(f"{log.path}/{synced_mark.SYNCED_MARK_FILE}") is (promised and mark is not Mark.ABSENT)


# Moves.


@pytest.mark.parametrize(("ours", "theirs"), list(product(Mark, repeat=2)))
@pytest.mark.parametrize("works", [True, False])
def test_copy_gets_the_synced_mark_of_its_log_or_keeps_its_own_if_the_disk_fails(
    ours: Mark, theirs: Mark, works: bool
) -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    log, other = (logs.create("t", TOPIC_ID, partition, LogConfig()) for partition in range(2))
    file = f"{log.path}/{synced_mark.SYNCED_MARK_FILE}"
    if ours is Mark.PRESENT:
        synced_mark.write_file(disk, log.path)
    log.durability.mark, other.durability.mark = ours, theirs
    changes = {ours, theirs} == {Mark.PRESENT, Mark.ABSENT}

    def fail(kind: str, path: str) -> None:
        raise DiskError(errno.EIO, "input/output error", path)

    disk.on_write = None if works else fail
    if changes and not works:
        with pytest.raises(DiskError):
            log.durability.copy_mark_of(other.durability)
    else:
        log.durability.copy_mark_of(other.durability)
    expected = theirs if changes and works else ours
    assert log.durability.mark is expected
    assert disk.exists(file) is (expected is Mark.PRESENT)


def moving(monkeypatch: pytest.MonkeyPatch) -> tuple[LogManager, Log, HeldSyncs]:
    logs = directories()
    return logs, log_in_a(logs), HeldSyncs(monkeypatch, A)


@pytest.mark.parametrize("watched", [True, False])
def test_old_directory_is_released_when_all_syncs_that_began_there_have_ended(
    monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    async def story() -> None:
        logs, log, syncs = moving(monkeypatch)
        produce(log, 3)
        future = logs.futures.create(log, logs.dirs[1])
        await copied(future)
        await logs.futures.prepare(future)
        await log.durability.old_path_released()
        before = await started(log.flush())
        await syncs.end()
        await before
        produce(log, 1)
        await copied(future)
        await logs.futures.prepare(future)
        flushes = [await started(log.flush()), await started(log.flush())]
        produce(log, 1)
        flushes.append(await started(log.flush()))
        assert len(syncs.waiting) >= 2
        held = len(syncs.waiting)
        assert logs.futures.swap(future, TAIL) is not None
        released = await started(log.durability.old_path_released()) if watched else None
        produce(log, 1)
        await log.flush()
        for number in range(held):
            assert released is None or not released.done(), f"{held - number} syncs still use the old directory"
            await syncs.end()
        assert released is None or released.done()
        await asyncio.gather(*flushes)
        await asyncio.wait_for(log.durability.old_path_released(), 120)
        assert (log.flushed_offset, log.log_dir) == (6, B)

    run(story())


def test_moved_log_has_the_sync_state_of_its_copy() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    produce(log, 3)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    run(logs.futures.prepare(future))
    produce(log, 2)
    assert (log.recovery_point, log.flushed_offset) == (0, 0)
    assert logs.futures.swap(future, TAIL) is not None
    assert (log.recovery_point, log.flushed_offset) == (3, 3)
    assert log.durability.flushed_bytes == log.appended_bytes
    assert not log.durability.flush_is_overdue(1 << 62)
    produce(log, 1)
    synced = kinds(disk, lambda: run(log.flushed(6)))
    assert ("sync", f"{B}/t-0/partition.metadata") in synced
    assert [path for kind, path in synced if kind == "sync_dir"] == [f"{B}/t-0", B]


def test_files_of_the_copy_that_are_not_synced_yet_are_synced_after_the_swap_under_their_new_names() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    produce(log, 3)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    run(logs.futures.prepare(future))
    future.log.durability.note_unsynced(f"{future.log.path}/partition.metadata")
    assert logs.futures.swap(future, TAIL) is not None
    assert f"{B}/t-0/partition.metadata" in log.durability.unsynced_files
    assert all(path.startswith(f"{B}/t-0/") for path in log.durability.unsynced_files)


def test_truncation_restores_the_recovery_point_if_its_checkpoint_cannot_be_written() -> None:
    for recovery_point, offset in product((0, 3, 5), repeat=2):
        durability = Durability(new_log(), recovery_point, Mark.ABSENT)
        before = durability.lower_recovery_point(offset)
        assert (before, durability.recovery_point) == (recovery_point, min(recovery_point, offset))
        durability.restore_recovery_point(before)
        assert durability.recovery_point == recovery_point
