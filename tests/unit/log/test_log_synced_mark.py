"""Tests when the synced mark, a file that says that all counted records are on disk, is written and removed.

Also tests which records count for the high watermark meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from log_harness import TOPIC_ID, produce, run

from penstock.clock import ManualClock
from penstock.disk.real import RealDisk, RealFile
from penstock.log.flush import make_countable
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.log.synced_mark import SYNCED_MARK_FILE, Mark
from penstock.metadata.configs.topic import LogConfig

PLAIN = LogConfig()
PROMISED = replace(PLAIN, penstock_acks_fsync=True)


async def with_log(tmp_path: Path, config: LogConfig, work: Callable[[Log], Awaitable[None]]) -> None:
    logs = LogManager(RealDisk(), [str(tmp_path)], ManualClock())
    await logs.open(node_id=1, cluster_id="cluster")
    await work(logs.create("t", TOPIC_ID, 0, config))
    logs.abandon()


def is_marked(tmp_path: Path) -> bool:
    return (tmp_path / "t-0" / SYNCED_MARK_FILE).exists()


async def told_after_a_restart(tmp_path: Path) -> dict[bytes, list[int]]:
    logs = LogManager(RealDisk(), [str(tmp_path)], ManualClock())
    await logs.open(node_id=1, cluster_id="cluster")
    told = logs.synced_partitions()
    logs.abandon()
    return told


def test_first_sync_of_a_log_with_fsync_before_acknowledgements_writes_the_synced_mark_file(tmp_path: Path) -> None:
    async def work(log: Log) -> None:
        produce(log)
        assert (log.countable_offset, is_marked(tmp_path)) == (0, False)
        await log.flushed(1)
        assert (log.countable_offset, is_marked(tmp_path)) == (1, True)

    run(with_log(tmp_path, PROMISED, work))
    assert run(told_after_a_restart(tmp_path)) == {TOPIC_ID: [0]}


def test_log_without_fsync_before_acknowledgements_never_gets_the_synced_mark_file(tmp_path: Path) -> None:
    async def work(log: Log) -> None:
        produce(log)
        await log.flushed(1)
        await log.flush()
        produce(log)
        assert log.countable_offset == log.log_end_offset

    run(with_log(tmp_path, PLAIN, work))
    assert not is_marked(tmp_path)
    assert run(told_after_a_restart(tmp_path)) == {}


def test_no_record_counts_for_the_high_watermark_between_switching_fsync_on_and_the_first_sync(
    tmp_path: Path,
) -> None:
    async def work(log: Log) -> None:
        produce(log)
        await log.flush()
        log.update_config(PROMISED)
        assert (log.flushed_offset, log.countable_offset) == (1, 0)
        await log.flushed(1)
        assert (log.countable_offset, is_marked(tmp_path)) == (1, True)

    run(with_log(tmp_path, PLAIN, work))


def test_sync_that_began_before_fsync_was_switched_on_does_not_write_the_synced_mark_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, original = asyncio.Event(), RealFile.sync

    async def sync(file: RealFile) -> None:
        await gate.wait()
        await original(file)

    monkeypatch.setattr(RealFile, "sync", sync)

    async def work(log: Log) -> None:
        produce(log)
        early = asyncio.ensure_future(log.flush())
        await asyncio.sleep(0)
        produce(log)  # counted in the page cache
        log.update_config(PROMISED)
        gate.set()
        await early
        assert not is_marked(tmp_path)
        assert log.countable_offset == 0
        await log.flushed(2)
        assert is_marked(tmp_path)

    run(with_log(tmp_path, PLAIN, work))


def test_only_synced_records_count_for_the_high_watermark_until_the_synced_mark_file_is_removed(tmp_path: Path) -> None:
    async def work(log: Log) -> None:
        produce(log)
        await log.flushed(1)
        log.update_config(PLAIN)
        produce(log)
        assert log.countable_offset == 1
        await make_countable(log)
        assert (log.countable_offset, is_marked(tmp_path)) == (2, False)

    run(with_log(tmp_path, PROMISED, work))


def test_switching_fsync_on_during_the_removal_of_the_synced_mark_file_writes_the_file_again(tmp_path: Path) -> None:
    async def work(log: Log) -> None:
        produce(log)
        await log.flushed(1)
        log.update_config(PLAIN)
        going = asyncio.ensure_future(make_countable(log))
        await asyncio.sleep(0)
        log.update_config(PROMISED)
        await log.flushed(1)
        await going
        assert (log.durability.mark, is_marked(tmp_path)) == (Mark.PRESENT, True)

    run(with_log(tmp_path, PROMISED, work))


@pytest.mark.parametrize("left", [-1, 0])
def test_synced_mark_file_is_removed_from_a_log_that_lost_synced_records(tmp_path: Path, left: int) -> None:
    async def work(log: Log) -> None:
        produce(log)
        produce(log)
        await log.flushed(2)

    async def start_and_kill() -> dict[bytes, list[int]]:
        logs = LogManager(RealDisk(), [str(tmp_path)], ManualClock())
        await logs.open(node_id=1, cluster_id="cluster", config_of=lambda _: PROMISED)
        told = logs.synced_partitions()
        await logs.save_checkpoints()  # the recovery point is where the log ends now
        logs.abandon()
        return told

    run(with_log(tmp_path, PROMISED, work))
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 1\n")
    segment = next((tmp_path / "t-0").glob("*.log"))
    segment.write_bytes(segment.read_bytes()[:left])
    assert is_marked(tmp_path)
    assert run(start_and_kill()) == {}
    assert not is_marked(tmp_path)
    assert run(start_and_kill()) == {}
