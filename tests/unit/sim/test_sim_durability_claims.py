"""Tests the check of data that a node takes for synced, with one missing sync at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.controlplane.quorum_files import QuorumFiles
from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk, MemoryFile
from penstock.disk.volume import Volume
from penstock.log import synced_mark
from penstock.log.flush import Durability
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.raft.events import QuorumState
from penstock.records.build import build_batch
from penstock.sim.checks.durability_claims import DurabilityClaims
from penstock.sim.checks.taps import tapped


class OneDisk:
    """Stands in for a machine that consists only of its disk."""

    name = "n1"

    def __init__(self) -> None:
        self.volume = Volume(lambda: 0, crashable=True)
        self.disk = MemoryDisk(volume=self.volume)


def broken_by(act: Callable[[Log], Any], config: LogConfig | None = None, *, stops: bool = False) -> list[str]:
    """Returns the violations that the check reports while `act` uses a log with two records. With `stops`, the node
    then stops cleanly."""
    machine: Any = OneDisk()
    violations: list[str] = []

    async def use() -> None:
        logs = LogManager(machine.disk, ("/logs",), ManualClock())
        await logs.open(node_id=1, cluster_id="cluster")
        log = logs.create("t", bytes(range(16)), 0, config or LogConfig())
        append(log)
        append(log)
        result = act(log)
        if result is not None:
            await result
        if stops:
            await logs.close()

    with tapped(DurabilityClaims([machine], lambda rule, what: violations.append(what)).taps()):
        asyncio.run(use())
    return [what.partition("would erase: ")[2] for what in violations]


def append(log: Log) -> None:
    log.append_as_leader(build_batch([(0, b"key", b"value", ())]), leader_epoch=0, now_ms=0)


async def flush_with_roll(log: Log) -> None:
    log.roll()
    append(log)
    await log.durability.flush()


async def truncate_twice(log: Log) -> None:
    log.roll()
    append(log)
    await log.durability.flush()
    log.truncate_to(1)
    append(log)
    log.truncate_fully_and_start_at(7)


async def write_and_erase_mark(log: Log) -> None:
    await log.durability._write_mark()
    await log.durability._erase_mark()


def save_vote(log: Log) -> None:
    files = QuorumFiles(log, log.environment.disk, ManualClock(), None, None)  # type: ignore[arg-type]
    files.save_state(QuorumState(epoch=3))


@pytest.mark.parametrize(
    "act", [flush_with_roll, truncate_twice, write_and_erase_mark, save_vote, lambda log: log.durability.wait(2)]
)
def test_node_that_syncs_all_data_breaks_no_rule(act: Callable[[Log], Any]) -> None:
    assert broken_by(act) == []


def test_flush_without_a_sync_of_the_record_file_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_sync(file: MemoryFile) -> None:
        return None

    monkeypatch.setattr(MemoryFile, "sync", no_sync)
    assert broken_by(lambda log: log.durability.wait(2)) == [
        "/logs/t-0/00000000000000000000.log from position 0 on, below offset 2"
    ]


def test_flush_without_a_sync_of_directories_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Durability, "_sync_directories", lambda durability: None)
    assert broken_by(lambda log: log.durability.wait(2)) == [
        "the directory entry of /logs/t-0/00000000000000000000.log",
        "the content of /logs/t-0/partition.metadata",
        "the directory entry of /logs/t-0/partition.metadata",
        "the directory entry of /logs/t-0",
    ]


def test_recovery_point_above_unsynced_indexes_and_producer_snapshots_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Durability, "_sync_files", lambda durability, paths: durability._sync_directories())
    index, snapshot = "/logs/t-0/00000000000000000000", "/logs/t-0/00000000000000000002.snapshot"
    unsynced = [f"{index}.index", f"{index}.timeindex", snapshot]
    assert broken_by(flush_with_roll) == [f"the content of {path}" for path in unsynced]


async def change_epochs_and_flush(log: Log) -> None:
    """Flushes records of epoch 0, then of epochs 1 and 2."""
    await log.durability.flush()
    for epoch in (1, 2):
        log.append_as_leader(build_batch([(0, b"key", b"value", ())]), leader_epoch=epoch, now_ms=0)
    await log.durability.flush()


def test_flush_after_a_change_of_leader_epochs_breaks_no_rule() -> None:
    assert broken_by(change_epochs_and_flush) == []


def test_epoch_that_started_below_the_log_start_breaks_no_rule() -> None:
    async def flush_and_delete_records(log: Log) -> None:
        await change_epochs_and_flush(log)
        log.update_high_watermark(4)
        log.advance_log_start_offset(3)
        log.durability.finish(log.durability.begin()._replace(offset=4))

    assert broken_by(flush_and_delete_records) == []


def test_recovery_point_above_an_epoch_that_the_synced_epoch_file_lacks_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def without_directory_syncs(log: Log) -> None:
        await log.durability.flush()
        monkeypatch.setattr(MemoryDisk, "sync_dir", lambda disk, path: None)
        await change_epochs_and_flush(log)

    found = broken_by(without_directory_syncs)
    path = "/logs/t-0/leader-epoch-checkpoint"
    assert [what for what in found if "epoch" in what] == [
        f"the leader epoch 1 at offset 2 in {path}",
        f"the leader epoch 2 at offset 3 in {path}",
    ]


def test_producer_snapshot_above_the_recovery_point_may_be_unsynced() -> None:
    async def write_snapshot_and_finish(log: Log) -> None:
        await log.durability.flush()
        append(log)
        log.environment.disk.write_atomic(f"{log.path}/00000000000000000003.snapshot", b"producers", sync=False)
        log.durability.finish(log.durability.begin()._replace(offset=2))

    assert broken_by(write_snapshot_and_finish) == []


@pytest.mark.parametrize("written", [False, True], ids=["not written", "written without a sync"])
def test_recovery_point_above_the_end_of_a_truncated_log_is_reported(
    monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    async def flush_and_truncate(log: Log) -> None:
        await log.durability.flush()
        log.environment.recovery_point_lowered(log)
        monkeypatch.setattr(MemoryDisk, "sync_dir", lambda disk, path: None)
        if not written:
            monkeypatch.setattr(log.environment, "recovery_point_lowered", lambda log: None)
        log.truncate_to(1)

    path = "/logs/recovery-point-offset-checkpoint"
    found = [what for what in broken_by(flush_and_truncate) if "recovery point" in what]
    assert found == [f"the recovery point of /logs/t-0 in {path} is still 2, above 1"]


def test_records_appended_after_the_flushed_offset_may_be_unsynced() -> None:
    async def flush_and_append(log: Log) -> None:
        await log.durability.wait(2)
        append(log)
        log.durability.finish(log.durability.begin()._replace(offset=2))

    assert broken_by(flush_and_append) == []


def test_flushed_offset_above_the_synced_records_is_reported() -> None:
    async def flush_and_append(log: Log) -> None:
        await log.durability.wait(2)
        append(log)
        log.durability.finish(log.durability.begin())

    (what,) = broken_by(flush_and_append)
    assert what.startswith("/logs/t-0/00000000000000000000.log from position ")
    assert what.endswith(" on, below offset 3")


def test_synced_mark_of_a_log_with_unsynced_records_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_sync(durability: Durability) -> None:
        return None

    monkeypatch.setattr(Durability, "_sync_records", no_sync)
    assert "/logs/t-0/00000000000000000000.log from position 0 on, below offset 2" in broken_by(
        lambda log: log.durability._write_mark()
    )


def test_mark_that_is_written_without_a_sync_of_its_directory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synced_mark, "write_file", lambda disk, path: disk.write_new(f"{path}/penstock.synced", b""))
    assert broken_by(lambda log: log.durability._write_mark()) == ["the directory entry of /logs/t-0/penstock.synced"]


def test_mark_that_a_power_loss_could_bring_back_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synced_mark, "remove_file", lambda disk, path: disk.remove(f"{path}/penstock.synced"))
    assert broken_by(write_and_erase_mark) == ["the directory entry of /logs/t-0/penstock.synced"]


def test_truncation_without_a_sync_of_the_directory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryDisk, "sync_dir", lambda disk, path: None)
    removed = [what for what in broken_by(truncate_twice) if what.startswith("the removal of ")]
    assert "the removal of /logs/t-0/00000000000000000002.log" in removed
    assert "the removal of /logs/t-0/00000000000000000000.log" in removed


def test_truncation_without_a_sync_of_the_shortened_file_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryFile, "sync_now", lambda file: None)
    assert "the truncation of /logs/t-0/00000000000000000000.log" in broken_by(truncate_twice)


def test_vote_that_is_saved_without_a_sync_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    old = MemoryDisk.write_atomic

    def unsynced(disk: MemoryDisk, path: str, data: bytes, *, sync: bool = True) -> None:
        old(disk, path, data, sync=False)

    monkeypatch.setattr(MemoryDisk, "write_atomic", unsynced)
    assert set(broken_by(save_vote)) == {
        "the content of /logs/t-0/quorum-state",
        "the directory entry of /logs/t-0/quorum-state",
    }


def test_clean_stop_of_logs_with_and_without_records_breaks_no_rule() -> None:
    def and_an_empty_log(log: Log) -> None:
        log.environment.disk.mkdir("/logs/empty-0")
        log.environment.disk.write_atomic("/logs/empty-0/partition.metadata", b"version: 0", sync=False)

    assert broken_by(and_an_empty_log, stops=True) == []


def test_clean_stop_with_an_unsynced_file_of_a_log_is_reported() -> None:
    def write_snapshot(log: Log) -> None:
        log.environment.disk.write_atomic(f"{log.path}/00000000000000000001.snapshot", b"producers", sync=False)

    assert set(broken_by(write_snapshot, stops=True)) == {
        "the content of /logs/t-0/00000000000000000001.snapshot",
    }
