"""Tests that a log that is deleted and recreated uses no data of the old log, even after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from log_harness import ROOT, TOPIC_ID, finish, manager, produce, read_all

from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.cleaner import Cleaner
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.records.build import build_batch
from penstock.records.record import read_records

NOW = 1_700_000_000_000
COMPACT = LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01)
OTHER_ID = bytes(range(1, 17))


def fill(log: Log, keys: str) -> None:
    for number, key in enumerate(keys):
        data = build_batch([(NOW, key.encode(), str(number).encode(), ())])
        log.append_as_leader(data, leader_epoch=0, now_ms=NOW)
    log.update_high_watermark(log.log_end_offset)
    log.roll()


def keys(log: Log) -> str:
    return "".join((record.key or b"").decode() for _, data in read_all(log) for record in read_records(data))


def made_again(logs: LogManager, config: LogConfig) -> Log:
    logs.delete("t", 0)
    return logs.create("t", OTHER_ID, 0, config)


def killed(logs: LogManager) -> LogManager:
    """Kills the process; the machine stays on."""
    logs.abandon()
    return manager(logs.disk, ManualClock(NOW))


@pytest.mark.parametrize("killed_before", [False, True])
def test_recreated_compacted_log_is_compacted_from_its_start(killed_before: bool) -> None:
    logs = manager(MemoryDisk(), ManualClock(NOW))
    fill(logs.create("t", TOPIC_ID, 0, COMPACT), "a" * 30)
    cleaner = Cleaner(logs)
    finish(cleaner.run())
    fill(log := made_again(logs, COMPACT), "b" * 30 + "zzz")
    if killed_before:
        logs = killed(logs)
        found = logs.get("t", 0)
        assert found is not None
        found.update_config(COMPACT)
        found.update_high_watermark(found.log_end_offset)
        log, cleaner = found, Cleaner(logs)
    finish(cleaner.run())
    assert keys(log) == "bz"


def restarted(logs: LogManager) -> tuple[LogManager, Log]:
    logs = killed(logs)
    log = logs.get("t", 0)
    assert log is not None
    log.update_config(COMPACT)
    log.update_high_watermark(log.log_end_offset)
    return logs, log


def cut_at_ten(logs: LogManager, log: Log) -> tuple[LogManager, Log]:
    log.truncate_to(10)
    return logs, log


def started_over_at_ten(logs: LogManager, log: Log) -> tuple[LogManager, Log]:
    log.truncate_fully_and_start_at(10)
    return logs, log


def damaged_from_ten_on(logs: LogManager, log: Log) -> tuple[LogManager, Log]:
    compacted = log.segments[0].file
    for name in logs.disk.listdir(log.path):
        if name.startswith(f"{20:020d}."):
            logs.disk.remove(f"{log.path}/{name}")
    compacted.truncate(compacted.size - 1)
    return restarted(logs)


@pytest.mark.parametrize("killed_before", [False, True])
@pytest.mark.parametrize(
    ("shortened", "left"), [(cut_at_ten, "ace"), (started_over_at_ten, "ce"), (damaged_from_ten_on, "ace")]
)
def test_a_log_truncated_below_its_cleaned_offset_is_compacted_again_when_it_grows(
    shortened: Callable[[LogManager, Log], tuple[LogManager, Log]], left: str, killed_before: bool
) -> None:
    logs = manager(MemoryDisk(), ManualClock(NOW))
    log = logs.create("t", TOPIC_ID, 0, COMPACT)
    fill(log, "a" * 10)
    fill(log, "b" * 10)
    finish(Cleaner(logs).run())
    assert log.cleaned_offset == 20
    logs, log = shortened(logs, log)
    assert log.log_end_offset == 10
    fill(log, "c" * 10)
    fill(log, "e" * 10)
    if killed_before:
        logs, log = restarted(logs)
    finish(Cleaner(logs).run())
    assert keys(log) == left


def test_log_that_could_not_be_compacted_is_compacted_again_after_it_is_recreated() -> None:
    logs = manager(MemoryDisk(), ManualClock(NOW))
    log = logs.create("t", TOPIC_ID, 0, COMPACT)
    fill(log, "a" * 10)
    log.segments[0].file.pwrite(b"\xff", 68)
    cleaner = Cleaner(logs)
    finish(cleaner.run())
    assert log in cleaner.uncleanable
    fill(again := made_again(logs, COMPACT), "b" * 10)
    finish(cleaner.run())
    assert keys(again) == "b"
    assert not cleaner.uncleanable


@pytest.mark.parametrize("records", [3, 30])
def test_records_of_a_recreated_log_survive_a_killed_process(records: int) -> None:
    logs = manager(MemoryDisk(), ManualClock(NOW))
    log = logs.create("t", TOPIC_ID, 0, LogConfig())
    produce(log, 20)
    log.advance_log_start_offset(10)
    finish(log.flush())
    logs.write_checkpoints()
    produce(made_again(logs, LogConfig()), records)
    found = killed(logs).get("t", 0)
    assert found is not None
    assert (found.log_start_offset, found.log_end_offset) == (0, records)
    assert found.high_watermark == 0, "the old one's high watermark says nothing of these records"


class HeldRun:
    """Simulates a disk whose background work waits until the test releases it."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.started, self.gate = asyncio.Event(), asyncio.Event()
        original = disk.run

        async def run(function: Any, *args: Any) -> Any:
            self.started.set()
            await self.gate.wait()
            return await original(function, *args)

        disk.run = run  # type: ignore[method-assign, assignment]


def test_checkpoint_save_leaves_out_a_log_that_is_recreated_during_the_save() -> None:
    async def work() -> None:
        disk = MemoryDisk()
        logs = manager(disk, ManualClock(NOW))
        log = logs.create("t", TOPIC_ID, 0, LogConfig())
        produce(log, 20)
        log.advance_log_start_offset(10)
        held = HeldRun(disk)
        saving = asyncio.ensure_future(logs.save_checkpoints())
        await held.started.wait()
        made_again(logs, LogConfig())
        held.gate.set()
        await saving
        for name in disk.listdir(ROOT):
            if name.endswith("checkpoint"):
                assert b"t 0 10" not in disk.read_bytes(f"{ROOT}/{name}")
                assert b"t 0 20" not in disk.read_bytes(f"{ROOT}/{name}")

    asyncio.run(work())


def test_concurrent_saves_of_checkpoints_are_all_on_disk_when_they_return() -> None:
    """Checks that a save returns only once its files are on disk.

    The cleaner relies on this: recovery treats gaps above the checkpointed recovery point as lost records.
    """

    async def work() -> None:
        disk = MemoryDisk()
        logs = manager(disk, ManualClock(NOW))
        log = logs.create("t", TOPIC_ID, 0, LogConfig())
        produce(log, 20)
        log.flush_now()
        held = HeldRun(disk)
        first = asyncio.ensure_future(logs.save_checkpoints())
        await held.started.wait()
        log.update_high_watermark(20)
        second = asyncio.ensure_future(logs.save_checkpoints())
        await asyncio.sleep(0)
        held.gate.set()
        await first
        assert b"t 0 20" in disk.read_bytes(f"{ROOT}/recovery-point-offset-checkpoint")
        await second
        assert b"t 0 20" in disk.read_bytes(f"{ROOT}/replication-offset-checkpoint")

    asyncio.run(work())
