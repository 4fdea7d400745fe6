"""Tests all logs of a node together: failures of a directory, stops, and logs with the same name, two of each."""

from __future__ import annotations

import asyncio
import errno

import pytest
from log_harness import TOPIC_ID, finish, manager, offsets, produce, run
from move_harness import SMALL, A, B, C, copied, directories, fill, log_in_a, names

from penstock.clock import ManualClock
from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk, MemoryFile
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.log.segment import Segment
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError

MARK = ".kafka_cleanshutdown"
IDS = [bytes(15) + bytes([number]) for number in range(200, 203)]


def is_open(segment: Segment) -> bool:
    return segment.file._inode is not None  # type: ignore[attr-defined]


def four_logs(disk: MemoryDisk, config: LogConfig = SMALL) -> tuple[LogManager, list[Log]]:
    """Makes two logs with several segments in each of two directories."""
    logs = directories(disk)
    found = []
    for partition in range(4):
        directory_id = logs.dirs[partition % 2].directory_id
        log = logs.create("t", TOPIC_ID, partition, config, directory_id=directory_id)
        fill(log)
        found.append(log)
    return logs, found


def failing(disk: MemoryDisk, kind: str, text: str, code: int = errno.EIO) -> None:
    def fail(operation: str, path: str) -> None:
        if operation == kind and text in path:
            raise DiskError(code, "input/output error", path)

    disk.on_write = fail


# Directories that fail.


def test_failed_directory_is_reported_once_and_its_logs_are_no_longer_flushed() -> None:
    disk = MemoryDisk()
    logs, found = four_logs(disk)
    reported: list[str] = []
    logs.on_offline = lambda directory, error: reported.append(directory.path)
    for log in found:
        logs.flush_soon(log)
    for code in (errno.EMFILE, errno.ENOMEM, errno.EIO, errno.EROFS):
        logs.take_offline(logs.dirs[0], OSError(code, "error"))
    assert reported == [A]
    assert logs.dirs[0].failure is not None
    assert logs.dirs[0].failure.errno == errno.EIO, "the first error of the disk is the reason"
    assert list(logs.flush_queue) == [found[1], found[3]]
    assert [log.offline for log in found] == [True, False, True, False]
    assert [offsets(log)[:2] for log in found[1::2]] == [[0, 1], [0, 1]]


def test_copy_and_second_log_of_a_name_go_offline_with_their_directory() -> None:
    logs = directories(MemoryDisk(), count=3)
    log = log_in_a(logs)
    fill(log)
    future = logs.futures.create(log, logs.dirs[1])
    logs.take_offline(logs.dirs[1], OSError(errno.EIO, "error"))
    assert (log.offline, future.log.offline) == (False, True)
    logs.take_offline(logs.dirs[0], OSError(errno.EIO, "error"))
    assert log.offline


def test_start_of_all_directories_fails_only_if_none_is_online() -> None:
    for broken in ((), (A,), (B,), (A, B)):
        disk = MemoryDisk()
        logs = LogManager(disk, (A, B), ManualClock())

        def fail(kind: str, path: str, broken: tuple[str, ...] = broken) -> None:
            if path.startswith(broken) and broken:
                raise DiskError(errno.EIO, "input/output error", path)

        disk.on_write = fail
        if len(broken) == 2:
            with pytest.raises(Exception, match="No log directory can be used"):
                finish(logs.open(node_id=1, cluster_id="c"))
            assert disk.volume.locks == set()
        else:
            finish(logs.open(node_id=1, cluster_id="c"))
            assert [each.path for each in logs.dirs if each.offline] == list(broken)


# Stopping.


def test_clean_stop_flushes_and_closes_every_log_and_marks_every_directory() -> None:
    disk = MemoryDisk()
    logs, found = four_logs(disk)
    closed: list[bool] = []
    disk.close = lambda: closed.append(True)  # type: ignore[method-assign]
    ends = [log.log_end_offset for log in found]
    finish(logs.close(broker_epoch=5))
    assert [log.recovery_point for log in found] == ends
    assert all(log.health.closed for log in found)
    assert not [segment for log in found for segment in log.segments if is_open(segment)]
    assert (len(logs), disk.volume.locks, closed) == (0, set(), [True])
    again = directories(disk)
    assert [each.clean for each in again.dirs] == [True, True]
    assert {each.last_incarnation.broker_epoch for each in again.dirs} == {5}
    assert [log.log_end_offset for log in again] == [ends[log.partition] for log in again]


def test_abandoned_logs_are_all_closed_and_their_directories_unlocked_without_a_mark() -> None:
    disk = MemoryDisk()
    logs, found = four_logs(disk)
    future = logs.futures.create(found[0], logs.dirs[1])
    closed: list[bool] = []
    disk.close = lambda: closed.append(True)  # type: ignore[method-assign]
    logs.abandon()
    assert all(log.health.closed for log in (*found, future.log))
    assert not [segment for log in found for segment in log.segments if is_open(segment)]
    assert (len(logs), disk.volume.locks, closed) == (0, set(), [True])
    assert not any(disk.exists(f"{path}/{MARK}") for path in (A, B))


@pytest.mark.parametrize("with_log", [False, True])
def test_directory_that_is_offline_at_the_stop_gets_no_mark_even_if_it_can_be_written_again(with_log: bool) -> None:
    disk = MemoryDisk()
    logs = directories(disk, count=3)
    for slot in (0, 1) if with_log else (1,):
        produce(logs.create("t", TOPIC_ID, slot, SMALL, directory_id=logs.dirs[slot].directory_id), 2)
    logs.take_offline(logs.dirs[0], OSError(errno.EIO, "error"))
    finish(logs.close())
    assert [disk.exists(f"{path}/{MARK}") for path in (A, B, C)] == [False, True, True]
    assert disk.volume.locks == set()


@pytest.mark.parametrize(
    ("kind", "text"),
    [("sync", f"{A}/t-2/"), ("create", f"{A}/recovery-point"), ("create", f"{A}/{MARK}"), ("append", f"{A}/t-2/")],
    ids=["flush", "checkpoints", "mark", "index or snapshot"],
)
@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_error_at_the_stop_leaves_no_mark_in_its_directory_and_one_in_the_other(
    kind: str, text: str, code: int
) -> None:
    disk = MemoryDisk()
    logs, found = four_logs(disk)
    reported: list[str] = []
    logs.on_offline = lambda directory, error: reported.append(directory.path)
    failing(disk, kind, text, code)
    finish(logs.close())
    disk.on_write = None
    assert [disk.exists(f"{path}/{MARK}") for path in (A, B)] == [False, True]
    assert reported == ([A] if code == errno.EIO else [])
    again = directories(disk)
    for log in found:
        other = again.get("t", log.partition)
        assert other is not None
        assert other.log_end_offset == log.log_end_offset


def test_stop_waits_for_the_group_commits_of_all_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[asyncio.Future[None]] = []
    original = MemoryFile.sync

    async def sync(file: MemoryFile) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        held.append(future)
        await future
        await original(file)

    async def story() -> None:
        logs = manager()
        found = [logs.create("t", TOPIC_ID, partition, LogConfig()) for partition in range(2)]
        for log in found:
            produce(log)
        monkeypatch.setattr(MemoryFile, "sync", sync)
        waiting = [asyncio.ensure_future(log.flushed(1)) for log in found]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stop = asyncio.ensure_future(logs.close())
        for _ in range(2):
            for _ in range(5):
                await asyncio.sleep(0)
            assert not any(log.health.closed for log in found), "a group commit is still running"
            held.pop(0).set_result(None)
        monkeypatch.setattr(MemoryFile, "sync", original)
        await stop
        await asyncio.gather(*waiting)

    run(story())


def test_stop_keeps_only_producer_snapshots_at_segment_boundaries_and_the_newest() -> None:
    logs = manager()
    logs.environment.unflushed_bytes = 1
    log = logs.create("t", TOPIC_ID, 0, LogConfig())
    for number in range(4):
        produce(log, producer_id=5, producer_epoch=0, base_sequence=number)
        log.flush_now()
    assert len(log.snapshots.offsets) == 4
    produce(log, producer_id=5, producer_epoch=0, base_sequence=4)
    assert log.prepare_stop()
    assert log.snapshots.offsets == [5]


@pytest.mark.parametrize(("code", "offline"), [(errno.EIO, True), (errno.EMFILE, False)])
def test_log_that_cannot_be_prepared_for_the_stop_reports_the_disk_error(code: int, offline: bool) -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    log = logs.create("t", TOPIC_ID, 0, LogConfig())
    produce(log, producer_id=5, producer_epoch=0, base_sequence=0)
    failing(disk, "create", ".snapshot", code)
    assert log.prepare_stop() is False
    assert (logs.dirs[0].offline, log.offline) == (offline, offline)
    disk.on_write = None
    assert log.prepare_stop() is not offline


# Truncations and retention.


def test_truncation_below_the_log_start_lowers_the_log_start_on_disk_before_it_returns() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    log, other = (logs.create("t", TOPIC_ID, partition, LogConfig()) for partition in range(2))
    for each in (log, other):
        for _ in range(6):
            produce(each)
        each.advance_log_start_offset(4)
        each.flush_now()
    logs.write_checkpoints()
    log.truncate_to(2)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (2, 2, 2)
    assert disk.read_bytes("/logs/log-start-offset-checkpoint") == b"0\n2\nt 0 2\nt 1 4\n"
    logs.abandon()
    again = manager(disk).get("t", 0)
    assert again is not None
    assert (again.log_start_offset, again.log_end_offset) == (2, 2)


def test_files_of_all_segments_that_are_removed_together_are_renamed() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    log = logs.create("t", TOPIC_ID, 0, LogConfig(segment_bytes=100))
    for _ in range(5):
        produce(log)
    assert len(log.segments) == 5
    log.advance_log_start_offset(3)
    assert log.delete_old_segments(0) == 3
    left = sorted(name for name in disk.listdir(log.path) if ".log" in name)
    assert [name.endswith(".deleted") for name in left] == [True, True, True, False, False]
    run(logs.removal.run(all_of_them=True))
    assert len([name for name in disk.listdir(log.path) if ".log" in name]) == 2


# Logs with the same name.


def three_namesakes(disk: MemoryDisk) -> None:
    """Leaves a log of t-0 in each of three directories, of topics with three different ids."""
    logs = directories(disk, count=3)
    for slot in (2, 1, 0):
        log = logs.create("t", IDS[slot], 0, SMALL, directory_id=logs.dirs[slot].directory_id)
        produce(log, slot + 1)
        if slot:
            logs.take_offline(logs.dirs[slot], OSError(errno.EIO, "broken"))
            logs.delete("t", 0)
    run(logs.close())
    assert all(disk.exists(f"{path}/t-0") for path in (A, B, C))


@pytest.mark.parametrize("wanted", [0, 1, 2, None])
def test_topic_id_chooses_one_of_three_logs_and_the_others_become_strays(wanted: int | None) -> None:
    disk = MemoryDisk()
    three_namesakes(disk)
    logs = directories(disk, count=3)
    assert [logs.find("t", 0, each) is not None for each in IDS] == [True] * 3
    log = logs.claim("t", 0, bytes(16) if wanted is None else IDS[wanted])
    if wanted is None:
        assert log is None
    else:
        assert log is not None
        assert (log.topic_id, log.log_end_offset, log.log_dir) == (IDS[wanted], wanted + 1, (A, B, C)[wanted])
    for slot, path in enumerate((A, B, C)):
        [name] = names(logs, path)
        assert name.endswith("-stray") is (slot != wanted)
    assert logs.claim("u", 0, IDS[0]) is None


@pytest.mark.parametrize("missing", [None, B])
def test_unreadable_logs_of_a_deleted_topic_are_set_aside_in_every_online_directory(missing: str | None) -> None:
    disk = MemoryDisk()
    three_namesakes(disk)
    if missing is not None:
        disk.remove_tree(f"{missing}/t-0")
    logs = directories(disk, count=3)
    logs._table.clear()
    logs.corruptions["t", 0] = "damaged"
    logs.take_offline(logs.dirs[2], OSError(errno.EIO, "broken"))
    new_id = bytes(15) + b"\x99"
    log = logs.create("t", new_id, 0, SMALL, directory_id=logs.dirs[0].directory_id)
    assert (log.topic_id, logs.corruptions) == (new_id, {})
    assert [name.rpartition("-")[2] for name in sorted(names(logs, A), key=len)] == ["0", "stray"]
    assert [name.rpartition("-")[2] for name in names(logs, B)] == ([] if missing else ["stray"])
    assert names(logs, C) == ["t-0"], "an offline directory is not changed"


@pytest.mark.parametrize("slot", [0, 1])
def test_unreadable_log_of_the_same_topic_prevents_an_empty_log_and_stays(slot: int) -> None:
    disk = MemoryDisk()
    three_namesakes(disk)
    logs = directories(disk, count=3)
    logs._table.clear()
    logs.corruptions["t", 0] = "damaged"
    with pytest.raises(KafkaError, match="damaged") as refusal:
        logs.create("t", IDS[slot], 0, SMALL, directory_id=logs.dirs[2].directory_id)
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert disk.exists(f"{(A, B)[slot]}/t-0")


def test_number_of_logs_in_each_directory_follows_creation_deletion_and_moves() -> None:
    logs = directories(MemoryDisk(), count=3)
    for partition in range(5):
        logs.create("t", TOPIC_ID, partition, SMALL)
    assert logs._table.counts == {A: 2, B: 2, C: 1}
    logs.delete("t", 0)
    logs.set_stray("t", 1)
    assert logs._table.counts == {A: 1, B: 1, C: 1}
    log = logs.get("t", 2)
    assert log is not None
    future = logs.futures.create(log, logs.dirs[0])
    run(copied(future))
    run(logs.futures.prepare(future))
    assert logs.futures.swap(future, 1 << 20) is not None
    assert logs._table.counts == {A: 2, B: 1, C: 0}
