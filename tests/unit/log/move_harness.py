"""Provides the tests of moves with logs in two or three directories, and with the steps of a move."""

from __future__ import annotations

from log_harness import TOPIC_ID, manager, produce, read_all, run

from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.future_log import FutureLog
from penstock.log.future_logs import Retired
from penstock.log.log import AppendOrigin, Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.records.control import EndTxn, build_end_txn
from penstock.replication.directory_move import Bounds, StepKind, next_step

A, B, C = "/a", "/b", "/c"
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100, retention_ms=-1)
CHUNK = 300
TAIL = 1 << 20
NOW = 1_700_000_000_000


def directories(disk: MemoryDisk | None = None, clock: ManualClock | None = None, count: int = 2) -> LogManager:
    return manager(disk, clock, dirs=(A, B, C)[:count])


def log_in_a(logs: LogManager, config: LogConfig = SMALL) -> Log:
    return logs.create("t", TOPIC_ID, 0, config, directory_id=logs.dirs[0].directory_id)


async def copied(future: FutureLog) -> None:
    """Makes the future log equal to the current log, step by step."""
    current, log = future.current, future.log
    while True:
        bounds = Bounds(current.log_start_offset, current.log_end_offset)
        step = next_step(bounds, Bounds(log.log_start_offset, log.log_end_offset), future.cut_at)
        match step.kind:
            case StepKind.TRUNCATE:
                future.truncate_to(step.offset)
            case StepKind.START_OVER:
                future.start_over(step.offset)
            case StepKind.ADVANCE_START:
                await future.advance_start(step.offset)
            case StepKind.COPY:
                await future.copy(CHUNK)
            case StepKind.NOTHING:
                return


async def swapped(logs: LogManager, future: FutureLog) -> Retired:
    await copied(future)
    await logs.futures.prepare(future)
    retired = logs.futures.swap(future, TAIL)
    assert retired is not None
    return retired


async def ended(logs: LogManager, future: FutureLog) -> None:
    await logs.futures.retire(await swapped(logs, future))


def move(logs: LogManager, log: Log, slot: int = 1) -> None:
    """Moves the log to the directory with this number, without other work between the steps."""
    run(ended(logs, logs.futures.create(log, logs.dirs[slot])))


def names(logs: LogManager, directory: str) -> list[str]:
    """Returns the names of a log directory's subdirectories."""
    return sorted(name for name in logs.disk.listdir(directory) if logs.disk.is_dir(f"{directory}/{name}"))


def fill(log: Log, *, first: int = 0, epochs: int = 3) -> None:
    """Appends several segments with epochs, a producer, an aborted transaction and an open transaction."""
    for epoch in range(first, first + epochs):
        for _ in range(3):
            produce(log, 3, epoch=epoch, value=bytes(60))
            known = log.producers.get(5)
            following = 0 if known is None else known.last_sequence + 1
            produce(log, 2, epoch=epoch, producer_id=5, producer_epoch=0, base_sequence=following)
        transact(log, epoch, committed=epoch != first + 1)
    begin(log, first + epochs - 1)


def begin(log: Log, epoch: int) -> int:
    """Begins a transaction of a new producer. Returns the producer's id."""
    producer = 100 + log.log_end_offset
    produce(log, 2, epoch=epoch, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
    return producer


def transact(log: Log, epoch: int, *, committed: bool) -> None:
    end = build_end_txn(EndTxn(committed, 0), producer_id=begin(log, epoch), producer_epoch=0, timestamp=NOW)
    log.append_as_leader(end, leader_epoch=epoch, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)


def state(log: Log) -> tuple[object, ...]:
    """Returns the whole state of a log, to compare it before and after a move."""
    return (
        read_all(log),
        log.log_start_offset,
        log.log_end_offset,
        log.high_watermark,
        log.last_stable_offset,
        log.epochs.entries,
        log.producers.snapshot(),
        log.aborted_transactions(log.log_start_offset, log.log_end_offset),
    )
