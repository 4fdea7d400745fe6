"""Tests that an operation without a free descriptor or memory fails and may be retried, and no directory goes
offline."""

from __future__ import annotations

import errno

import pytest
from log_harness import TOPIC_ID, finish, manager, offsets, produce

from penstock.disk.api import DiskError, is_shortage
from penstock.disk.memory import MemoryDisk
from penstock.log.cleaner import Cleaner
from penstock.log.directory import DirectoryError
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError

SHORTAGES = [errno.EMFILE, errno.ENFILE, errno.ENOMEM]


class Scarce:
    """Simulates a disk that refuses writes to paths that contain `where`, until `relieve` is called."""

    def __init__(self, disk: MemoryDisk, code: int, where: str = "") -> None:
        self.disk, self.code, self.where = disk, code, where
        self.refused = 0
        disk.on_write = self

    def __call__(self, operation: str, path: str) -> None:
        if self.where in path:
            self.refused += 1
            raise DiskError(self.code, "nothing left", path)

    def relieve(self) -> None:
        assert self.refused, "the shortage was never met"
        self.disk.on_write = None


def all_online(logs: LogManager) -> bool:
    return not any(directory.offline for directory in logs.dirs.all)


@pytest.mark.parametrize("code", SHORTAGES)
def test_checkpoints_not_written_for_lack_of_descriptors_are_written_later(code: int) -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    log = logs.create("t", TOPIC_ID, 0, LogConfig())
    produce(log, 3)
    for in_background in (True, False):
        shortage = Scarce(disk, code, "checkpoint")
        assert (finish(logs.save_checkpoints()) if in_background else logs.write_checkpoints()) is False
        shortage.relieve()
        assert all_online(logs)
    assert logs.write_checkpoints() is True
    assert produce(log) == 3


@pytest.mark.parametrize("code", SHORTAGES)
def test_a_log_not_created_for_lack_of_descriptors_is_created_by_the_next_attempt(code: int) -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    shortage = Scarce(disk, code, "/t-0")
    with pytest.raises(KafkaError) as refusal:
        logs.create("t", TOPIC_ID, 0, LogConfig())
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    shortage.relieve()
    assert all_online(logs)
    assert produce(logs.create("t", TOPIC_ID, 0, LogConfig())) == 0


def test_start_without_free_descriptors_fails_with_a_remedy() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    finish(logs.close())

    def refuse(path: str) -> list[str]:
        raise DiskError(errno.EMFILE, "Too many open files", path)

    disk.listdir = refuse  # type: ignore[method-assign]
    with pytest.raises(DirectoryError, match="ulimit -n"):
        manager(disk)


def test_a_truncation_that_cannot_write_its_checkpoint_changes_nothing_and_may_be_repeated() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    log = logs.create("t", TOPIC_ID, 0, LogConfig())
    for _ in range(5):
        produce(log)
    finish(log.flush())
    shortage = Scarce(disk, errno.EMFILE, "checkpoint")
    with pytest.raises(KafkaError):
        log.truncate_to(2)
    shortage.relieve()
    assert all_online(logs)
    assert offsets(log) == [0, 1, 2, 3, 4]
    assert log.truncate_to(2)
    assert log.recovery_point == 2
    assert offsets(log) == [0, 1]


def test_a_truncation_interrupted_by_a_lack_of_descriptors_takes_only_its_log_offline() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    log = logs.create("t", TOPIC_ID, 0, LogConfig())
    other = logs.create("t", TOPIC_ID, 1, LogConfig())
    for _ in range(5):
        produce(log)
    shortage = Scarce(disk, errno.ENOMEM, "/t-0/")
    with pytest.raises(KafkaError):
        log.truncate_to(2)
    shortage.relieve()
    assert all_online(logs)
    with pytest.raises(KafkaError) as refusal:
        produce(log)
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert produce(other) == 0


def test_a_compaction_that_fails_for_lack_of_descriptors_is_tried_again() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    config = LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=200, min_cleanable_dirty_ratio=0.01)
    log = logs.create("t", TOPIC_ID, 0, config)
    for _ in range(9):
        produce(log)
    cleaner = Cleaner(logs, max_keys=1000)
    for where in (".cleaned", "checkpoint", ".index"):
        shortage = Scarce(disk, errno.EMFILE, where)
        finish(cleaner.run())
        shortage.relieve()
        assert not cleaner.uncleanable
        assert all_online(logs)
        produce(log, 3)
    finish(cleaner.run())
    assert len(offsets(log)) < 18


def test_lack_of_descriptors_is_recognised_in_the_cause_of_an_error() -> None:
    error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "refused")
    error.__cause__ = DiskError(errno.EMFILE, "Too many open files", "/t-0")
    assert is_shortage(error)
    assert not is_shortage(DiskError(errno.EIO, "input/output error", "/t-0"))
    assert not is_shortage(None)
