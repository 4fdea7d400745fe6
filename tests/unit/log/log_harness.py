"""Provides the tests of logs with a node's logs on a disk in memory, with batches, and with a simple reader of
files."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.clock import ManualClock
from penstock.disk.api import Disk
from penstock.disk.memory import MemoryDisk
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.log.scan import scan_verified
from penstock.log.segment import Segment
from penstock.metadata.configs.topic import LogConfig
from penstock.records.batches import split_batches
from penstock.records.build import build_batch
from penstock.records.header import BatchHeader

T = TypeVar("T")
TOPIC_ID = bytes(range(16))
ROOT = "/logs"


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs, without an event loop, a coroutine that never waits. With a disk in memory no coroutine waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise AssertionError("it waits for something")


def manager(
    disk: Disk | None = None, clock: ManualClock | None = None, dirs: tuple[str, ...] = (ROOT,), **options: Any
) -> LogManager:
    logs = LogManager(disk if disk is not None else MemoryDisk(), dirs, clock or ManualClock(), **options)
    finish(logs.open(node_id=1, cluster_id="cluster"))
    return logs


def new_log(config: LogConfig | None = None, logs: LogManager | None = None, topic: str = "t") -> Log:
    return (logs if logs is not None else manager()).create(topic, TOPIC_ID, 0, config or LogConfig())


def batch(count: int = 1, *, timestamp: int = 1_700_000_000_000, value: bytes = b"value", **options: Any) -> bytes:
    return build_batch([(timestamp, b"key", value, ())] * count, **options)


def produce(log: Log, count: int = 1, *, epoch: int = 0, commit: bool = True, **options: Any) -> int:
    """Appends a batch as a client would. Returns its base offset."""
    info = log.append_as_leader(batch(count, **options), leader_epoch=epoch, now_ms=log.environment.clock.wall_ms())
    if commit:
        log.update_high_watermark(log.log_end_offset)
    return info.base_offset


def read_all(log: Log, *, chunk: int = 1 << 20, start: int | None = None) -> list[tuple[BatchHeader, bytes]]:
    """Reads every batch with `Log.read`, from the log start offset on."""
    offset = log.log_start_offset if start is None else start
    found: list[tuple[BatchHeader, bytes]] = []
    while offset < log.log_end_offset:
        data = log.read(offset, chunk, upper_bound=log.log_end_offset).read_now()
        batches = split_batches(data, allow_partial=True)
        assert batches, f"nothing at {offset} of {log}"
        for header, view in batches:
            found.append((header, bytes(view)))
            offset = header.next_offset
    return found


def offsets(log: Log) -> list[int]:
    return [offset for header, _ in read_all(log) for offset in range(header.base_offset, header.next_offset)]


def scan(segment: Segment) -> list[tuple[int, BatchHeader]]:
    return [(each.position, each.header) for each in scan_verified(segment.file, 0, segment.size)]


def check_indexes(segment: Segment) -> None:
    """Checks that every index entry matches the header of an existing batch."""
    batches = scan(segment)
    by_position = dict(batches)
    entries = segment.index.entries()
    assert entries == sorted(set(entries))
    for offset, position in entries:
        assert by_position[position].last_offset == offset
    times = segment.time_index.entries()
    assert times == sorted(times)
    for timestamp, offset in times:
        upto = [header for _, header in batches if header.last_offset <= offset]
        assert upto[-1].last_offset == offset
        assert max(header.max_timestamp for header in upto) == timestamp
    newest = max((header.max_timestamp for _, header in batches), default=-1)
    assert segment.max_timestamp == newest
    for _, header in batches:
        for wanted in {header.base_offset, header.last_offset}:
            found = segment.locate(wanted)
            assert found is not None
            assert by_position[found[0]].base_offset == header.base_offset
