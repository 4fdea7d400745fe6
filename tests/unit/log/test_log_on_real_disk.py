"""Tests logs on real files, with and without Linux-only calls, and with few descriptors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from log_harness import TOPIC_ID, check_indexes, offsets, produce

from penstock.clock import ManualClock
from penstock.disk import real
from penstock.disk.real import RealDisk
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.records.batches import split_batches

FLAGS = ("HAVE_NOWAIT_READ", "HAVE_WRITEV", "HAVE_PREAD", "HAVE_FDATASYNC", "HAVE_FSYNC_DIR", "HAVE_SYNCFS")
CONFIG = LogConfig(segment_bytes=4000, index_interval_bytes=300, file_delete_delay_ms=0)


@pytest.fixture(params=["linux", "portable"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealDisk]:
    if request.param == "portable":
        for flag in FLAGS:
            monkeypatch.setattr(real, flag, False)
    disk = RealDisk(max_open_files=16)
    yield disk
    disk.close()


async def opened(disk: RealDisk, root: Path) -> LogManager:
    logs = LogManager(disk, [str(root)], ManualClock())
    await logs.open(node_id=1, cluster_id="cluster")
    return logs


async def consumed(log: Log) -> list[int]:
    """Reads like the broker: cached bytes at once, other bytes with an await."""
    found: list[int] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 700, upper_bound=log.log_end_offset)
        data = piece.read_cached()
        if data is None:
            data = await piece.read()
        for header, _ in split_batches(data, allow_partial=True):
            found.extend(range(max(offset, header.base_offset), header.next_offset))
            offset = header.next_offset
    return found


def test_records_on_a_real_disk_survive_stops_and_crashes(disk: RealDisk, tmp_path: Path) -> None:
    async def work() -> None:
        logs = await opened(disk, tmp_path)
        log = logs.create("t", TOPIC_ID, 0, CONFIG)
        for number in range(200):
            produce(log, 2, timestamp=1_700_000_000_000 + number)
        assert await consumed(log) == list(range(400))
        await log.flushed(400)
        await logs.close()

        logs = await opened(disk, tmp_path)
        log = found(logs)
        assert logs.dirs[0].clean
        assert await consumed(log) == list(range(400))
        log.update_config(CONFIG)
        log.update_high_watermark(400)
        for _ in range(50):
            produce(log, 2)
        log.truncate_to(450)
        log.advance_log_start_offset(100)
        log.delete_old_segments(0)
        await logs.removal.run()
        logs.write_checkpoints()
        logs.abandon()

        with open(tmp_path / "t-0" / f"{log.segments.bases[-1]:020d}.log", "ab") as torn:  # noqa: ASYNC230
            torn.write(b"torn")
        logs = await opened(disk, tmp_path)
        log = found(logs)
        assert not logs.dirs[0].clean
        assert await consumed(log) == list(range(100, 450))
        for segment in log.segments:
            check_indexes(segment)
        assert await log.offset_for_timestamp(1_700_000_000_100) is not None
        await logs.close()

    asyncio.run(work())


def found(logs: LogManager) -> Log:
    log = logs.get("t", 0)
    assert log is not None
    return log


def test_more_logs_than_descriptors_are_written_and_read(disk: RealDisk, tmp_path: Path) -> None:
    async def work() -> None:
        logs = await opened(disk, tmp_path)
        many = [logs.create("t", TOPIC_ID, number, CONFIG) for number in range(60)]
        for _ in range(3):
            for log in many:
                produce(log, 2)
                assert disk.open_files <= 16
        for log in many:
            assert offsets(log) == list(range(6))
        readers = [consumed(log) for log in many]
        assert await asyncio.gather(*readers) == [list(range(6))] * 60
        await logs.close()
        logs = await opened(disk, tmp_path)
        assert {log.log_end_offset for log in logs} == {6}
        await logs.close()

    asyncio.run(work())


def test_no_descriptor_is_open_after_the_logs_are_closed(disk: RealDisk, tmp_path: Path) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no way to count descriptors here")

    async def work() -> tuple[int, int]:
        before = len(os.listdir("/proc/self/fd"))
        logs = await opened(disk, tmp_path)
        for number in range(10):
            produce(logs.create("t", TOPIC_ID, number, CONFIG), 2)
        await logs.close()
        return before, len(os.listdir("/proc/self/fd"))

    before, after = asyncio.run(work())
    assert after <= before
