"""Tests that the topic id of a log is on disk before its records count as synced.

Records without a topic id belong to no topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from log_harness import TOPIC_ID, finish, manager, produce, run

from penstock.disk.memory import MemoryDisk
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.uuid import ZERO_UUID

NAME = "/logs/t-0/partition.metadata"
OTHER_ID = bytes(16)[:-1] + b"\7"


def after_power_losses(disk: MemoryDisk) -> Iterator[Log | None]:
    for seed in range(30):
        yield manager(disk.crash(Random(seed))).get("t", 0)


def with_records(disk: MemoryDisk) -> tuple[LogManager, Log]:
    disk.mkdir("/logs")
    logs = manager(disk)
    log = logs.create("t", TOPIC_ID, 0, LogConfig())
    produce(log, 4)
    return logs, log


def test_log_without_a_topic_id_is_not_used_for_a_new_topic() -> None:
    disk = MemoryDisk()
    logs, _ = with_records(disk)
    logs.abandon()
    disk.write_atomic(NAME, b"version: 0\ntopic")  # as after a power loss before the first sync
    logs = manager(disk)
    assert logs.get("t", 0) is None
    assert [name for name in disk.listdir("/logs") if name.endswith("-stray")], "the operator may inspect them"
    assert logs.create("t", OTHER_ID, 0, LogConfig()).log_end_offset == 0


def test_log_with_synced_records_keeps_its_topic_id_after_every_power_loss() -> None:
    disk = MemoryDisk(crashable=True)
    _, log = with_records(disk)
    run(log.flushed(4))
    for found in after_power_losses(disk):
        assert found is not None
        assert (found.topic_id, found.log_end_offset) == (TOPIC_ID, 4)


def test_the_first_sync_of_a_process_syncs_the_topic_id_that_a_killed_process_wrote() -> None:
    disk = MemoryDisk(crashable=True)
    killed, _ = with_records(disk)
    killed.abandon()
    log = manager(disk).get("t", 0)
    assert log is not None
    finish(log.flush())
    for found in after_power_losses(disk):
        assert found is not None
        assert (found.topic_id, found.log_end_offset) == (TOPIC_ID, 4)


def test_flushed_log_with_a_damaged_topic_id_keeps_its_name_and_records() -> None:
    disk = MemoryDisk()
    logs, log = with_records(disk)
    finish(log.flush())
    logs.write_checkpoints()
    logs.abandon()
    disk.write_atomic(NAME, b"version: 0\ntopic")
    found = manager(disk).get("t", 0)
    assert found is not None
    assert (found.topic_id, found.log_end_offset) == (ZERO_UUID, 4)
