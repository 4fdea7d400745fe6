"""Tests all logs of a node: directories, identity, locks, failures, and the files after a stop."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from log_harness import TOPIC_ID, batch, finish, manager, new_log, offsets, produce, read_all, run

from penstock.clock import ManualClock
from penstock.disk.api import DirectoryLockedError, DiskError
from penstock.disk.memory import MemoryDisk
from penstock.disk.real import RealDisk
from penstock.log.checkpoints import parse_properties
from penstock.log.directory import parse_log_name
from penstock.log.environment import DAY_MS
from penstock.log.manager import DirectoryError, LogManager
from penstock.log.segment import LOG_SUFFIX
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import ZERO_UUID, uuid_to_str

NOW = 1_700_000_000_000
OTHER_ID = bytes(range(1, 17))
THREE = ("/a", "/b", "/c")


def create(logs: LogManager, partition: int = 0, topic: str = "t", config: LogConfig | None = None) -> str:
    return logs.create(topic, TOPIC_ID, partition, config or LogConfig()).log_dir


def failing(disk: MemoryDisk, directory: str, code: int = errno.EIO) -> None:
    def fail(operation: str, path: str) -> None:
        if path.startswith(directory):
            raise DiskError(code, "Input/output error", path)

    disk.on_write = fail


def test_a_new_log_goes_to_the_directory_with_the_fewest_logs() -> None:
    logs = manager(dirs=THREE)
    assert [create(logs, number) for number in range(6)] == ["/a", "/b", "/c", "/a", "/b", "/c"]
    logs.delete("t", 1)
    assert create(logs, 6) == "/b"


def test_a_cordoned_directory_gets_new_logs_only_if_all_directories_are_cordoned() -> None:
    logs = manager(dirs=THREE)
    logs.dirs.cordon(frozenset({"/a", "/c"}))
    assert [create(logs, number) for number in range(3)] == ["/b", "/b", "/b"]
    logs.dirs.cordon(frozenset(THREE))
    assert create(logs, 3) == "/a"


def test_new_log_is_created_in_the_directory_with_the_given_id() -> None:
    logs = manager(dirs=THREE)
    wanted = logs.dirs[2]
    log = logs.create("t", TOPIC_ID, 0, LogConfig(), directory_id=wanted.directory_id)
    assert log.log_dir == "/c"


def test_a_second_log_for_a_partition_is_refused() -> None:
    logs = manager()
    create(logs)
    with pytest.raises(KafkaError) as error:
        create(logs)
    assert error.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert len(logs) == 1


def test_new_log_directory_gets_an_id_and_keeps_it() -> None:
    disk = MemoryDisk()
    logs = manager(disk, dirs=THREE)
    ids = [directory.directory_id for directory in logs.dirs]
    assert len(set(ids)) == 3
    assert parse_properties(disk.read_bytes("/a/meta.properties")) == {
        "version": "1",
        "node.id": "1",
        "cluster.id": "cluster",
        "directory.id": uuid_to_str(ids[0]),
    }
    run(logs.close())
    assert [directory.directory_id for directory in manager(disk, dirs=THREE).dirs] == ids


@pytest.mark.parametrize(("node_id", "cluster_id", "name"), [(2, "cluster", "node.id"), (1, "other", "cluster.id")])
def test_log_directory_of_another_node_is_refused_and_unlocked(node_id: int, cluster_id: str, name: str) -> None:
    disk = MemoryDisk()
    run(manager(disk).close())
    stranger = LogManager(disk, ["/logs"], ManualClock())
    with pytest.raises(DirectoryError, match=name):
        finish(stranger.open(node_id=node_id, cluster_id=cluster_id))
    manager(disk)


def test_log_directory_that_another_process_uses_is_refused() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    with pytest.raises(DirectoryLockedError):
        manager(disk)
    run(logs.close())
    manager(disk)


def test_logs_have_the_same_topic_ids_and_high_watermarks_after_a_restart() -> None:
    disk = MemoryDisk()
    logs = manager(disk, dirs=THREE)
    for partition in range(5):
        log = logs.create("my-topic", TOPIC_ID, partition, LogConfig())
        produce(log, 4)
        produce(log, 2, commit=False)
    run(logs.close())
    logs = manager(disk, dirs=THREE)
    assert len(logs) == 5
    for log in logs:
        assert (log.topic, log.topic_id) == ("my-topic", TOPIC_ID)
        assert (log.high_watermark, log.log_end_offset) == (4, 6)


def test_topic_id_can_be_assigned_to_a_log_without_a_topic_id() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    create(logs)
    logs.abandon()
    disk.write_atomic("/logs/t-0/partition.metadata", b"version: 0\ntopic")
    logs = manager(disk)
    log = logs.get("t", 0)
    assert log is not None
    assert log.topic_id == ZERO_UUID
    log.assign_topic_id(TOPIC_ID)
    logs.abandon()
    found = manager(disk).get("t", 0)
    assert found is not None
    assert found.topic_id == TOPIC_ID


def test_the_same_partition_in_two_directories_is_refused() -> None:
    disk = MemoryDisk()
    logs = manager(disk, dirs=("/a", "/b"))
    create(logs)
    run(logs.close())
    disk.mkdir("/b/t-0")
    with pytest.raises(DirectoryError, match="move one of them away"):
        manager(disk, dirs=("/a", "/b"))


def two_namesakes(disk: MemoryDisk) -> None:
    """Leaves a log of t-0 in /b, and the log of the recreated topic in /a: /b was offline during the recreation."""
    logs = manager(disk, dirs=("/a", "/b"))
    produce(logs.create("t", TOPIC_ID, 0, LogConfig(), directory_id=logs.dirs[1].directory_id), 2)
    logs.take_offline(logs.dirs[1], OSError(errno.EIO, "broken"))
    logs.delete("t", 0)
    log = logs.create("t", OTHER_ID, 0, LogConfig())
    produce(log, 3)
    produce(log, 1)
    log.advance_log_start_offset(1)
    run(logs.close())
    assert disk.exists("/a/t-0")
    assert disk.exists("/b/t-0")


@pytest.mark.parametrize(
    ("topic_id", "place", "kept"), [(OTHER_ID, "/a", [0, 3]), (TOPIC_ID, "/b", [0])], ids=["new", "old"]
)
@pytest.mark.parametrize("restarts", [0, 1])
def test_topic_id_decides_which_of_two_logs_with_the_same_name_is_used(
    topic_id: bytes, place: str, kept: list[int], restarts: int
) -> None:
    disk = MemoryDisk()
    two_namesakes(disk)
    for _ in range(restarts):
        run(manager(disk, dirs=("/a", "/b")).close())
    logs = manager(disk, dirs=("/a", "/b"))
    log = logs.claim("t", 0, topic_id)
    assert log is not None
    assert (log.log_dir, log.topic_id) == (place, topic_id)
    assert [header.base_offset for header, _ in read_all(log)] == kept
    assert log.log_start_offset == (1 if topic_id == OTHER_ID else 0)
    other = "/b" if place == "/a" else "/a"
    [stray] = [name for name in disk.listdir(other) if name.startswith("t-0")]
    assert stray.endswith("-stray")
    run(logs.close())
    found = manager(disk, dirs=("/a", "/b")).get("t", 0)
    assert found is not None
    assert found.topic_id == topic_id


def test_two_logs_with_the_same_name_are_both_renamed_as_stray_if_their_topics_do_not_exist() -> None:
    disk = MemoryDisk()
    two_namesakes(disk)
    logs = manager(disk, dirs=("/a", "/b"))
    logs.set_stray("t", 0)
    assert logs.get("t", 0) is None
    left = [name for path in ("/a", "/b") for name in disk.listdir(path) if name.startswith("t-0")]
    assert [name.rpartition("-")[2] for name in left] == ["stray", "stray"]


def test_deleting_a_partition_also_deletes_logs_of_other_topic_ids_with_the_same_name() -> None:
    disk = MemoryDisk()
    logs = manager(disk, dirs=THREE)
    for slot, topic_id in ((2, TOPIC_ID), (1, OTHER_ID)):
        produce(logs.create("t", topic_id, 0, LogConfig(), directory_id=logs.dirs[slot].directory_id), 2)
        logs.take_offline(logs.dirs[slot], OSError(errno.EIO, "broken"))
        logs.delete("t", 0)
    produce(logs.create("t", bytes(15) + b"\x07", 0, LogConfig()), 2)
    run(logs.close())
    assert all(disk.exists(f"{path}/t-0") for path in THREE)
    logs = manager(disk, dirs=THREE)
    logs.delete("t", 0)
    assert not [path for path in THREE if disk.exists(f"{path}/t-0")]


def test_a_second_log_of_the_same_topic_is_refused() -> None:
    disk = MemoryDisk()
    two_namesakes(disk)
    disk.write_atomic("/b/t-0/partition.metadata", disk.read_bytes("/a/t-0/partition.metadata"))
    with pytest.raises(DirectoryError, match="move one of them away"):
        manager(disk, dirs=("/a", "/b"))


def test_a_failed_directory_takes_only_its_own_logs_offline() -> None:
    disk = MemoryDisk()
    told: list[str] = []
    logs = manager(disk, dirs=("/a", "/b"), on_offline=lambda directory, error: told.append(directory.path))
    for partition in range(4):
        create(logs, partition)
    for log in logs:
        produce(log, 2)
    failing(disk, "/a")
    first, second, third, fourth = (logs.get("t", partition) for partition in range(4))
    assert first is not None
    assert second is not None
    assert third is not None
    assert fourth is not None
    with pytest.raises(KafkaError):
        produce(first)
    assert told == ["/a"]
    assert [directory.offline for directory in logs.dirs] == [True, False]
    with pytest.raises(KafkaError) as error:
        produce(third)
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert produce(second) == 2
    assert offsets(fourth) == [0, 1]
    assert create(logs, 4) == "/b", "new logs go where it works"
    logs.write_checkpoints()
    run(logs.close())
    assert not disk.exists("/a/.kafka_cleanshutdown")
    assert disk.exists("/b/.kafka_cleanshutdown")


def test_no_acknowledged_record_is_lost_when_a_disk_fails_and_comes_back() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    create(logs)
    log = logs.get("t", 0)
    assert log is not None
    acknowledged = [produce(log) for _ in range(10)]
    failing(disk, "/logs", errno.ENOSPC)
    with pytest.raises(KafkaError):
        produce(log)
    disk.on_write = None
    logs.abandon()
    again = manager(disk).get("t", 0)
    assert again is not None
    assert offsets(again) == acknowledged
    assert produce(again) == 10


def test_directory_that_fails_at_start_is_offline_and_a_start_without_a_working_directory_fails() -> None:
    disk = MemoryDisk()
    run(manager(disk, dirs=("/a", "/b")).close())
    failing(disk, "/a")
    logs = manager(disk, dirs=("/a", "/b"))
    assert [directory.offline for directory in logs.dirs] == [True, False]
    assert create(logs) == "/b"
    disk = MemoryDisk()
    failing(disk, "/")
    with pytest.raises(DirectoryError, match="free some space or replace the disk"):
        manager(disk)


def test_start_fails_if_the_only_directory_fails_while_its_logs_are_loaded() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    log = new_log(logs=logs)
    produce(log)
    logs.abandon()
    del disk.inode(log.segments.active.path(LOG_SUFFIX)).data[-1:]  # the load has to truncate the torn batch
    failing(disk, "/logs/t-0")
    with pytest.raises(DirectoryError, match="free some space or replace the disk"):
        manager(disk)


def test_creating_a_log_on_a_failing_disk_fails_with_a_storage_error() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    failing(disk, "/logs")
    with pytest.raises(KafkaError) as error:
        create(logs)
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError, match="No log directory is online"):
        create(logs, 1)


def test_a_deleted_log_is_closed_at_once_and_its_files_are_removed_after_the_delay() -> None:
    disk, clock = MemoryDisk(), ManualClock(NOW)
    logs = manager(disk, clock)
    log = logs.create("t", TOPIC_ID, 0, LogConfig(file_delete_delay_ms=1000))
    produce(log)
    late = log.read(0, 100, upper_bound=1)
    logs.delete("t", 0)
    logs.delete("t", 0)
    assert logs.get("t", 0) is None
    assert [name for name in disk.listdir("/logs") if name.startswith("t-0.") and name.endswith("-delete")]
    with pytest.raises(KafkaError) as error:
        log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW)
    assert error.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not logs.dirs[0].offline
    assert late.size
    assert create(logs) == "/logs"
    clock.advance(1000)
    finish(logs.removal.run())
    assert sorted(name for name in disk.listdir("/logs") if name.startswith("t-")) == ["t-0"]


def test_the_files_of_a_stray_log_are_renamed_and_kept() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    create(logs)
    logs.set_stray("t", 0)
    run(logs.close())
    logs = manager(disk)
    assert len(logs) == 0
    assert [name for name in disk.listdir("/logs") if name.endswith("-stray")]


def test_a_very_long_topic_name_can_be_deleted(tmp_path: Path) -> None:
    logs = manager(RealDisk(), dirs=(str(tmp_path),))
    create(logs, topic="x" * 249)
    logs.delete("x" * 249, 0)
    (name,) = [each.name for each in tmp_path.iterdir() if each.is_dir()]
    logs.abandon()
    assert name.endswith("-delete")
    assert len(name) == 255


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("t-0", ("t", 0)),
        ("a-b-12", ("a-b", 12)),
        ("-5", None),
        ("t", None),
        ("t-", None),
        ("t-0.0123-delete", None),
        ("t-0.0123-stray", None),
        ("meta.properties", None),
    ],
)
def test_directories_of_logs_are_recognised_by_their_names(name: str, parsed: tuple[str, int] | None) -> None:
    assert parse_log_name(name) == parsed


def test_stopping_many_logs_syncs_the_volume_once(tmp_path: Path) -> None:
    async def work() -> int:
        disk = RealDisk()
        calls = []
        original = disk.sync_volume
        disk.sync_volume = lambda path: bool(calls.append(path)) or original(path)  # type: ignore[method-assign, func-returns-value]
        logs = LogManager(disk, [str(tmp_path)], ManualClock())
        await logs.open(node_id=1, cluster_id="cluster")
        for partition in range(70):
            create(logs, partition)
        for log in logs:
            produce(log, 2)
        await logs.close()
        return len(calls)

    assert asyncio.run(work()) == 1

    async def again() -> set[tuple[int, int]]:
        logs = LogManager(RealDisk(), [str(tmp_path)], ManualClock())
        await logs.open(node_id=1, cluster_id="cluster")
        assert logs.dirs[0].clean
        found = {(log.recovery_point, log.log_end_offset) for log in logs}
        await logs.close()
        return found

    assert asyncio.run(again()) == {(2, 2)}


def test_checkpoint_files_of_a_log_directory_have_the_format_of_kafka() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    for partition in range(2):
        create(logs, partition)
    log = logs.get("t", 1)
    assert log is not None
    produce(log, 5)
    log.advance_log_start_offset(3)
    finish(log.flush())
    logs.write_checkpoints()
    assert disk.read_bytes("/logs/recovery-point-offset-checkpoint") == b"0\n2\nt 0 0\nt 1 5\n"
    assert disk.read_bytes("/logs/replication-offset-checkpoint") == b"0\n2\nt 0 0\nt 1 5\n"
    assert disk.read_bytes("/logs/log-start-offset-checkpoint") == b"0\n1\nt 1 3\n"
    written = []
    disk.on_write = lambda operation, path: written.append(path)
    logs.write_checkpoints()
    assert written == [], "nothing changed, nothing written"


def test_ten_thousand_open_logs_take_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    logs = manager(RealDisk(), dirs=(str(tmp_path),))
    config = LogConfig()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for partition in range(500):
        create(logs, partition, config=config)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    logs.abandon()
    assert used / 500 < 4000


@pytest.mark.parametrize("operation", ["sync", "create", "append"])
def test_stop_with_a_failed_last_flush_writes_no_clean_shutdown_marker(operation: str) -> None:
    """The process had no descriptors left, which is no failure of the disk: the directory stays online."""
    disk = MemoryDisk()
    logs = manager(disk, dirs=("/a", "/b"))
    for number in range(2):
        create(logs, number)
        log = logs.get("t", number)
        assert log is not None
        produce(log, 3, producer_id=7, producer_epoch=0, base_sequence=0)

    def fail(what: str, path: str) -> None:
        if what == operation and path.startswith("/a/t-0/"):
            raise DiskError(errno.EMFILE, "Too many open files", path)

    disk.on_write = fail
    finish(logs.close(broker_epoch=5))
    disk.on_write = None
    again = manager(disk, dirs=("/a", "/b"))
    assert [directory.clean for directory in again.dirs] == [False, True]
    for number in range(2):
        log = again.get("t", number)
        assert log is not None
        assert log.log_end_offset == 3


def test_files_that_a_failed_flush_did_not_sync_are_synced_by_the_next_flush() -> None:
    disk = MemoryDisk(crashable=True)
    logs = manager(disk)
    log = logs.create("t", TOPIC_ID, 0, LogConfig())
    produce(log, 3)
    synced: list[str] = []

    def fail(what: str, path: str) -> None:
        if what == "sync" and path.endswith("partition.metadata"):
            raise DiskError(errno.EMFILE, "Too many open files", path)

    def watch(what: str, path: str) -> None:
        if what == "sync":
            synced.append(path)

    disk.on_write = fail
    with pytest.raises(KafkaError):
        finish(log.flush())
    disk.on_write = watch
    finish(log.flush())
    assert f"{log.path}/partition.metadata" in synced
    assert log.recovery_point == 3


def test_new_producers_are_refused_at_the_limit_of_remembered_producer_ids() -> None:
    clock = ManualClock()
    logs = manager(clock=clock, max_producer_ids=3)
    first, second = (logs.create("t", TOPIC_ID, number, LogConfig()) for number in range(2))
    for producer_id, log in ((1, first), (2, first), (2, second)):
        produce(log, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    with pytest.raises(KafkaError) as refused:
        produce(second, producer_id=3, producer_epoch=0, base_sequence=0)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    assert "penstock.max.producer.ids=3" in str(refused.value.message)
    produce(second, producer_id=2, producer_epoch=0, base_sequence=1)
    produce(second)  # without an id
    clock.advance(2 * DAY_MS)
    logs.expire_producers()
    produce(second, producer_id=3, producer_epoch=0, base_sequence=0)
