"""Runs the background work on logs: retention, checkpoints, flushes, file removal, compaction.

The work is done in short steps, so that it does not delay requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.protocol.errors import KafkaError

if TYPE_CHECKING:
    from penstock.log.cleaner import Cleaner
    from penstock.log.manager import LogManager

logger = logging.getLogger(__name__)

#: Delay between a flush that moved a recovery point and the write of the checkpoints.
AFTER_FLUSH_MS = 2_000


@dataclass(frozen=True, slots=True)
class Intervals:
    """Holds the milliseconds between two runs of each kind of work, with Kafka's defaults."""

    initial_delay_ms: int = 30_000
    retention_check_ms: int = 300_000
    checkpoint_ms: int = 5_000
    producer_expiration_check_ms: int = 600_000
    flush_check_ms: int = 3_000
    removal_ms: int = 1_000
    cleaner_backoff_ms: int = 15_000
    space_check_ms: int = 500


class Maintenance:
    def __init__(
        self,
        logs: LogManager,
        intervals: Intervals | None = None,
        cleaner: Cleaner | None = None,
        min_free_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """Creates the background work. `min_free_bytes` returns the number of bytes that must stay free in each
        directory.

        The free space is never checked if `min_free_bytes` returns 0 when the node starts.
        """
        self._logs = logs
        self._intervals = intervals if intervals is not None else Intervals()
        #: None if logs are not compacted.
        self.cleaner = cleaner
        self._min_free_bytes = min_free_bytes
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        every = self._intervals
        jobs: list[tuple[str, Callable[[], Awaitable[None]], int, int]] = [
            ("retention", self.retention, every.initial_delay_ms, every.retention_check_ms),
            ("checkpoints", self.checkpoints, every.checkpoint_ms, every.checkpoint_ms),
            ("producer expiry", self.expiry, every.producer_expiration_check_ms, every.producer_expiration_check_ms),
            ("timed flush", self.timed_flush, every.flush_check_ms, every.flush_check_ms),
            ("removal", self.removal, every.removal_ms, every.removal_ms),
        ]
        if self.cleaner is not None:
            jobs.append(("compaction", self.cleaner.run, every.cleaner_backoff_ms, every.cleaner_backoff_ms))
        if self._min_free_bytes():
            jobs.append(("free space", self.space, 0, every.space_check_ms))
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._repeat(*job), name=f"logs: {job[0]}") for job in jobs]
        self._tasks.append(loop.create_task(self._flush_on_request(), name="logs: flush"))

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(self, name: str, job: Callable[[], Awaitable[None]], delay_ms: int, interval_ms: int) -> None:
        await asyncio.sleep(delay_ms / 1000)
        while True:
            try:
                await job()
            except (KafkaError, OSError) as error:
                logger.error("background work on logs failed and is tried again later: %s: %s", name, error)
            await asyncio.sleep(interval_ms / 1000)

    async def retention(self) -> None:
        now_ms = self._logs.clock.wall_ms()
        for count, log in enumerate(self._logs):
            self._logs.retain(log, now_ms)
            if count % 64 == 63:
                await asyncio.sleep(0)

    async def checkpoints(self) -> None:
        await self._logs.save_checkpoints()

    async def removal(self) -> None:
        await self._logs.futures.retire_postponed()
        await self._logs.removal.run()

    async def expiry(self) -> None:
        self._logs.expire_producers()

    async def space(self) -> None:
        await self._logs.dirs.free_space.look(self._logs.dirs, self._min_free_bytes())

    async def timed_flush(self) -> None:
        """Flushes logs whose last flush is at least flush.ms ago."""
        now_ms = self._logs.clock.wall_ms()
        for log in self._logs:
            if log.durability.flush_is_overdue(now_ms) and not log.offline:
                self._logs.flush_soon(log)

    async def _flush_on_request(self) -> None:
        while True:
            await self._logs.flush_requested.wait()
            await self.flush_queued()
            await asyncio.sleep(AFTER_FLUSH_MS / 1000)
            await self.checkpoints()

    async def flush_queued(self) -> None:
        """Flushes the logs that `flush_soon` has queued, also logs that are queued during the flush."""
        logs = self._logs
        logs.flush_requested.clear()
        while logs.flush_queue:
            queued = [log for log in logs.flush_queue if not log.offline]
            logs.flush_queue.clear()
            for directory in logs.dirs.all:
                await logs.flush_all(directory, [log for log in queued if log.log_dir == directory.path])
            for log in queued:
                if log.health.closed:
                    continue  # deleted meanwhile: a new log of the same name may have files at these paths
                try:
                    log.snapshots.keep_only(log.segments.bases)
                except OSError as error:  # the flushes of all other logs go on
                    log.health.failed(error)
