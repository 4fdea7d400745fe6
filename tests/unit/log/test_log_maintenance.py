"""Tests the background work on logs in virtual time, and its parts: flushes of a directory, and removal of files."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, cast

import pytest
from log_harness import TOPIC_ID, finish, manager, new_log, produce, run

from penstock.clock import ManualClock
from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk, MemoryFile
from penstock.log.cleaner import Cleaner
from penstock.log.directory_flush import MANY_FLUSHES, PARALLEL_FLUSHES, flush_all
from penstock.log.log import Log
from penstock.log.maintenance import AFTER_FLUSH_MS, Intervals, Maintenance
from penstock.log.manager import LogManager
from penstock.log.removal import Removal
from penstock.log.segment import Segment
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import METADATA_TOPIC
from penstock.sim.engine.loop import Timeline

TWO = ("/a", "/b")
DAY_MS = 24 * 3600 * 1000


def in_virtual_time(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    timeline = Timeline(Random(1))
    timeline.run(main(), timeline.process("test"), until=10_000.0)


class Recorded(Maintenance):
    """Notes the time of each job instead of doing it. Each job fails the first time."""

    def __init__(self, logs: LogManager, **options: Any) -> None:
        super().__init__(logs, Intervals(10_000, 20_000, 5_000, 7_000, 3_000, 1_000, 15_000, 500), **options)
        self.times: dict[str, list[float]] = {}

    def _note(self, name: str) -> None:
        times = self.times.setdefault(name, [])
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            raise OSError(errno.EIO, "disk") if name < "f" else KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "refused")

    async def retention(self) -> None:
        self._note("retention")

    async def checkpoints(self) -> None:
        self._note("checkpoints")

    async def removal(self) -> None:
        self._note("removal")

    async def expiry(self) -> None:
        self._note("expiry")

    async def space(self) -> None:
        self._note("space")

    async def timed_flush(self) -> None:
        self._note("flush")


class RecordedCleaner:
    def __init__(self) -> None:
        self.times: list[float] = []

    async def run(self) -> None:
        self.times.append(asyncio.get_running_loop().time())


@pytest.mark.parametrize("limit", [0, 1])
@pytest.mark.parametrize("compacts", [False, True])
def test_each_job_runs_after_its_delay_and_then_at_its_interval_until_the_stop(limit: int, compacts: bool) -> None:
    cleaner = RecordedCleaner()

    async def story() -> None:
        began = asyncio.get_running_loop().time()
        maintenance = Recorded(
            manager(), cleaner=cast(Cleaner, cleaner) if compacts else None, min_free_bytes=lambda: limit
        )
        maintenance.start()
        await asyncio.sleep(60.25)
        await maintenance.stop()
        seen = {name: [round(time - began, 3) for time in times] for name, times in maintenance.times.items()}
        expected: dict[str, list[float]] = {
            "retention": [10, 30, 50],
            "checkpoints": list(range(5, 61, 5)),
            "expiry": list(range(7, 61, 7)),
            "flush": list(range(3, 61, 3)),
            "removal": list(range(1, 61)),
        }
        if limit:
            expected["space"] = [number / 2 for number in range(121)]
        assert {name: times[: len(expected[name])] for name, times in seen.items()} == expected
        assert {name: len(times) for name, times in seen.items()} == {
            name: len(each) for name, each in expected.items()
        }
        assert [round(time - began, 3) for time in cleaner.times] == ([15, 30, 45, 60] if compacts else [])
        await asyncio.sleep(60)
        assert {name: len(times) for name, times in maintenance.times.items()} == {
            name: len(times) for name, times in seen.items()
        }, "no job runs after the stop"
        assert len(asyncio.all_tasks()) == 1

    in_virtual_time(story)


def test_queued_logs_are_flushed_at_once_and_their_checkpoints_written_later() -> None:
    async def story() -> None:
        disk = MemoryDisk()
        logs = LogManager(disk, TWO, ManualClock())
        await logs.open(node_id=1, cluster_id="cluster")
        first, second = (logs.create("t", TOPIC_ID, partition, LogConfig()) for partition in range(2))
        maintenance = Maintenance(logs, Intervals(*[10_000_000] * 8))
        maintenance.start()
        for number, log in enumerate((first, second, first), 1):
            produce(log, 3)
            await asyncio.sleep(1)
            assert log.recovery_point < log.log_end_offset, "not queued"
            logs.flush_soon(log)
            await asyncio.sleep(0.1)
            assert log.recovery_point == log.log_end_offset
            file = f"{log.log_dir}/recovery-point-offset-checkpoint"
            line = f"t {log.partition} {log.log_end_offset}".encode()
            assert not disk.exists(file) or line not in disk.read_bytes(file), number
            await asyncio.sleep(AFTER_FLUSH_MS / 1000)
            assert line in disk.read_bytes(file)
        await maintenance.stop()

    in_virtual_time(story)


def test_flush_of_the_queue_includes_all_directories_and_logs_that_are_queued_meanwhile() -> None:
    logs = manager(dirs=TWO)
    queued = [logs.create("t", TOPIC_ID, partition, LogConfig()) for partition in range(4)]
    late = logs.create("t", TOPIC_ID, 4, LogConfig())
    broken = logs.create("t", TOPIC_ID, 5, LogConfig())
    for log in (*queued, late, broken):
        produce(log, 2, producer_id=5, producer_epoch=0, base_sequence=0)
    original = logs.flush_all
    flushed: list[str] = []

    async def flush(directory: Any, chosen: list[Log]) -> bool:
        if not flushed:
            logs.flush_soon(late)
        flushed.append(directory.path)
        return await original(directory, chosen)

    logs.flush_all = flush  # type: ignore[method-assign, assignment]
    for log in (*queued, broken):
        logs.flush_soon(log)
    broken.health.take_offline(OSError(errno.EIO, "input/output error"))
    finish(Maintenance(logs).flush_queued())
    assert [log.recovery_point for log in (*queued, late, broken)] == [2, 2, 2, 2, 2, 0]
    assert not logs.flush_queue


def test_flush_keeps_only_producer_snapshots_at_segment_boundaries_and_the_newest() -> None:
    logs = manager()
    logs.environment.unflushed_bytes = 1
    log = logs.create("t", TOPIC_ID, 0, LogConfig())
    for number in range(4):
        produce(log, 1, producer_id=5, producer_epoch=0, base_sequence=number)
        logs.flush_soon(log)
        finish(Maintenance(logs).flush_queued())
        assert log.snapshots.offsets == [number + 1]


@pytest.mark.parametrize(("code", "offline"), [(errno.EIO, True), (errno.ENOMEM, False)])
def test_old_snapshot_that_cannot_be_removed_takes_its_directory_offline_and_flushes_go_on(
    code: int, offline: bool
) -> None:
    async def story() -> None:
        disk = MemoryDisk()
        logs = LogManager(disk, TWO, ManualClock())
        await logs.open(node_id=1, cluster_id="cluster")
        logs.environment.unflushed_bytes = 1
        broken, working = (logs.create("t", TOPIC_ID, partition, LogConfig()) for partition in range(2))
        maintenance = Maintenance(logs, Intervals(*[10_000_000] * 8))
        maintenance.start()
        for number in range(3):
            for log in (broken, working):
                if not log.offline:
                    produce(log, producer_id=5, producer_epoch=0, base_sequence=number)
            await asyncio.sleep(10)

            def fail(kind: str, path: str) -> None:
                if kind == "remove" and path.startswith(f"{broken.path}/"):
                    raise DiskError(code, "the disk failed", path)

            disk.on_write = fail
        assert [each.offline for each in logs.dirs] == [offline, False]
        assert working.recovery_point == 3
        assert working.snapshots.offsets == [3]
        await maintenance.stop()

    in_virtual_time(story)


def test_timed_flush_queues_only_overdue_logs_that_are_online() -> None:
    clock = ManualClock()
    logs = manager(clock=clock)
    overdue, empty, quiet, broken = (
        logs.create("t", TOPIC_ID, partition, LogConfig(flush_ms=flush_ms))
        for partition, flush_ms in enumerate((10, 10, 11, 10))
    )
    for log in logs:
        log.durability.last_flush_ms = clock.wall_ms()
    for log in (overdue, quiet, broken):
        produce(log)
    broken.health.take_offline(OSError(errno.EIO, "input/output error"))
    maintenance = Maintenance(logs)
    clock.advance(9)
    finish(maintenance.timed_flush())
    assert not logs.flush_queue
    clock.advance(1)
    finish(maintenance.timed_flush())
    assert list(logs.flush_queue) == [overdue]
    assert empty not in logs.flush_queue


def test_jobs_expire_producers_and_remove_files_and_read_the_free_space_of_all_directories() -> None:
    class Volume(MemoryDisk):
        def free_bytes(self, path: str) -> tuple[int, int]:
            return 1000, {"/a": 10, "/b": 100}[path]

    disk, clock = Volume(), ManualClock()
    logs = manager(disk, clock, dirs=TWO)
    kept, deleted = (logs.create("t", TOPIC_ID, partition, LogConfig()) for partition in range(2))
    produce(kept, producer_id=5, producer_epoch=0, base_sequence=0)
    maintenance = Maintenance(logs, min_free_bytes=lambda: 50)
    finish(maintenance.space())
    assert (list(logs.dirs.free_space.watched), list(logs.dirs.free_space.short())) == (["/a", "/b"], ["/a"])
    logs.delete("t", 1)
    clock.advance(deleted.config.file_delete_delay_ms)
    finish(maintenance.removal())
    assert not [name for name in disk.listdir("/b") if name.startswith("t-")]
    clock.advance(DAY_MS)
    finish(maintenance.expiry())
    assert len(kept.producers) == 0


def test_retention_visits_every_log_except_the_metadata_log_and_offline_logs() -> None:
    clock = ManualClock()
    logs = manager(clock=clock)
    config = LogConfig(retention_ms=1)
    others = [logs.create("t", TOPIC_ID, partition, config) for partition in range(3)]
    metadata = logs.create(METADATA_TOPIC, TOPIC_ID, 0, config)
    for log in (*others, metadata):
        produce(log, 2)
    others[1].health.take_offline(OSError(errno.EIO, "input/output error"))
    clock.advance(10)
    finish(Maintenance(logs).retention())
    assert [log.log_start_offset for log in (*others, metadata)] == [2, 0, 2, 0]
    assert logs.apply_retention() == 0


# Flushing the logs of a directory.


class FakeLog:
    """Stands for a log and its durability. Notes how many flushes end at the same time."""

    def __init__(self, number: int, notes: list[tuple[int, bool]], fails: str = "") -> None:
        self.number, self.notes, self.fails = number, notes, fails
        self.durability = self

    def begin(self) -> int:
        if self.fails == "begin":
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "refused")
        return self.number

    running = most = 0

    async def end(self, goal: int, *, synced: bool) -> None:
        assert goal == self.number
        FakeLog.running += 1
        FakeLog.most = max(FakeLog.most, FakeLog.running)
        await asyncio.sleep(0)
        FakeLog.running -= 1
        self.notes.append((goal, synced))
        if self.fails == "end":
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "refused")


class FakeDisk(MemoryDisk):
    def __init__(self, shared: bool, syncs: bool) -> None:
        super().__init__()
        self.shared = shared
        self.syncs = syncs
        self.volumes: list[str] = []

    def sync_volume(self, path: str) -> bool:
        self.volumes.append(path)
        return self.syncs


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("syncs", [False, True])
@pytest.mark.parametrize("count", [1, 20, MANY_FLUSHES, MANY_FLUSHES + 1])
def test_many_logs_are_flushed_by_one_sync_of_the_volume_and_few_logs_several_at_a_time(
    shared: bool, syncs: bool, count: int
) -> None:
    notes: list[tuple[int, bool]] = []
    disk = FakeDisk(shared, syncs)
    FakeLog.running = FakeLog.most = 0
    logs = [FakeLog(number, notes) for number in range(count)]
    assert run(flush_all(disk, "/a", cast(list[Log], logs))) is True
    many = count > MANY_FLUSHES
    assert disk.volumes == (["/a"] if many else [])
    assert sorted(notes) == [(number, many and syncs) for number in range(count)]
    one_by_one = (many and syncs) or not shared
    assert FakeLog.most == (1 if one_by_one else min(count, PARALLEL_FLUSHES))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("fails", "number"), [("begin", 0), ("begin", 2), ("end", 0), ("end", 2)])
def test_flush_of_a_directory_reports_a_log_that_fails_and_flushes_the_others(
    shared: bool, fails: str, number: int
) -> None:
    notes: list[tuple[int, bool]] = []
    logs = [FakeLog(each, notes, fails if each == number else "") for each in range(3)]
    assert run(flush_all(FakeDisk(shared, False), "/a", cast(list[Log], logs))) is False
    assert sorted(goal for goal, _ in notes) == [each for each in range(3) if each != number or fails == "end"]


def test_other_tasks_run_while_many_flushes_begin() -> None:
    notes: list[tuple[int, bool]] = []
    begun: list[int] = []

    class Begun(FakeLog):
        def begin(self) -> int:
            begun.append(self.number)
            return super().begin()

    async def story() -> list[int]:
        turns: list[int] = []

        async def other() -> None:
            while len(begun) < 200:
                turns.append(len(begun))
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        await asyncio.sleep(0)
        await flush_all(FakeDisk(False, True), "/a", cast(list[Log], [Begun(number, notes) for number in range(200)]))
        await task
        return turns

    assert run(story()) == [0, 64, 128, 192]


def test_directory_goes_offline_if_the_sync_of_its_volume_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.directory_flush.MANY_FLUSHES", 1)

    class Broken(MemoryDisk):
        def sync_volume(self, path: str) -> bool:
            raise DiskError(errno.EIO, "input/output error", path)

    logs = manager(Broken(), dirs=TWO)
    for partition in range(4):
        produce(logs.create("t", TOPIC_ID, partition, LogConfig()))
    in_a = [log for log in logs if log.log_dir == "/a"]
    assert run(logs.flush_all(logs.dirs[0], in_a)) is False
    assert [each.offline for each in logs.dirs] == [True, False]


# Removing files.


class FakeSegment:
    def __init__(self, name: str, notes: list[str], fails: bool = False) -> None:
        self.name, self.notes, self.fails = name, notes, fails

    def close(self) -> None:
        self.notes.append(f"close {self.name}")

    def remove_files(self) -> None:
        self.notes.append(f"remove {self.name}")
        if self.fails:
            raise DiskError(errno.EIO, "input/output error", self.name)


@pytest.mark.parametrize("now", [0, 9, 10, 19, 20, 29, 30])
@pytest.mark.parametrize("everything", [False, True])
def test_files_are_closed_and_removed_when_their_delay_is_over(now: int, everything: bool) -> None:
    disk, clock, notes = MemoryDisk(), ManualClock(), []  # type: ignore[var-annotated]
    removal = Removal(disk, clock)
    due = {10: "abc", 20: "de"}
    for delay, names in due.items():
        removal.add_segments(cast(list[Segment], [FakeSegment(name, notes, name == "a") for name in names]), delay)
    for delay, name in ((10, "x"), (20, "y"), (30, "z")):
        disk.mkdir(f"/logs/{name}")
        readable = [FakeSegment(f"{name}{number}", notes) for number in range(2)]
        removal.add_directory(f"/logs/{name}", delay, cast(list[Segment], readable))
    clock.advance(now)
    run(removal.run(all_of_them=everything))
    reached = 100 if everything else now
    gone = [name for delay, names in due.items() if delay <= reached for name in names]
    gone_trees = [name for delay, name in ((10, "x"), (20, "y"), (30, "z")) if delay <= reached]
    assert [note for note in notes if note[-1] in "abcde"] == [
        f"{what} {name}" for name in gone for what in ("close", "remove")
    ]
    assert [note for note in notes if note[-1] in "01"] == [f"close {name}{n}" for name in gone_trees for n in range(2)]
    assert sorted(disk.listdir("/logs")) == [name for name in "xyz" if name not in gone_trees]
    notes.clear()
    run(removal.run(all_of_them=everything))
    assert notes == []


def test_directory_that_cannot_be_removed_does_not_stop_the_removal_of_others() -> None:
    disk = MemoryDisk()
    removal = Removal(disk, ManualClock())
    for name in "xyz":
        disk.mkdir(f"/logs/{name}")
        removal.add_directory(f"/logs/{name}", 0)

    def fail(kind: str, path: str) -> None:
        if path.endswith("x"):
            raise DiskError(errno.EIO, "input/output error", path)

    disk.on_write = fail
    run(removal.run())
    assert disk.listdir("/logs") == ["x"]


class Gate:
    """Lets the next syncs of files wait until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._opened = asyncio.Event()
        sync = MemoryFile.sync

        async def later(file: MemoryFile) -> None:
            await self._opened.wait()
            await sync(file)

        monkeypatch.setattr(MemoryFile, "sync", later)

    def open(self) -> None:
        self._opened.set()


def test_clean_stop_syncs_the_files_of_a_flush_that_it_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk(crashable=True)
    logs = manager(disk)
    log = new_log(logs=logs)

    async def story() -> None:
        produce(log, producer_id=7, producer_epoch=0, base_sequence=0)
        log.roll()
        gate = Gate(monkeypatch)
        maintenance = Maintenance(logs)
        maintenance.start()
        logs.flush_soon(log)
        for _ in range(10):
            await asyncio.sleep(0)
        assert log.durability.unsynced_files
        await maintenance.stop()
        gate.open()
        await logs.close()

    run(story())
    assert disk.exists("/logs/.kafka_cleanshutdown")
    assert [name for name in disk.listdir(log.path) if disk.inode(f"{log.path}/{name}").pending] == []


def test_file_that_is_written_again_during_a_flush_is_synced_by_the_next_flush() -> None:
    log = new_log(logs=manager(MemoryDisk()))
    produce(log)
    log.durability.note_unsynced("/again")
    goal = log.durability.begin()
    log.durability.note_unsynced("/again")
    log.durability.note_unsynced("/new")
    log.durability.finish(goal)
    assert log.durability.unsynced_files == {"/again", "/new"}


def test_flush_of_a_deleted_log_leaves_the_snapshots_of_a_new_log_at_the_same_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    logs.environment.unflushed_bytes = 1  # every flush takes a snapshot
    log = new_log(logs=logs)
    for sequence in range(3):
        produce(log, producer_id=7, producer_epoch=0, base_sequence=sequence)
        log.flush_now()
    produce(log, producer_id=7, producer_epoch=0, base_sequence=3)

    async def story() -> Log:
        gate = Gate(monkeypatch)
        logs.flush_soon(log)
        flushing = asyncio.ensure_future(Maintenance(logs).flush_queued())
        for _ in range(5):
            await asyncio.sleep(0)
        logs.delete("t", 0)
        new = logs.create("t", bytes(range(1, 17)), 0, LogConfig())
        produce(new, producer_id=7, producer_epoch=0, base_sequence=0)
        new.flush_now()
        gate.open()
        await flushing
        return new

    new = run(story())
    assert new.snapshots.offsets
    assert all(disk.exists(new.snapshots.path(offset)) for offset in new.snapshots.offsets)
