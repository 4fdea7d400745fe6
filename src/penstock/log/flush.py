"""Making a log durable: one fsync for all who wait, and the full flush that moves the recovery point.

Only the record bytes have to be on disk for an acknowledgement. The recovery point promises more: indexes, epochs and
producer snapshots up to it are on disk too, so that nothing below it is scanned after a crash.

Where acknowledgements promise fsync, the first sync leaves a mark in the log's directory: everything that the replica
was ever counted for is on disk. What was acknowledged before the promise was switched on is synced by then. The mark
goes before anything counts unsynced again. A broker whose machine was off tells the controller of its marked logs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from penstock.log.checkpoints import PARTITION_METADATA_FILE
from penstock.log.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.log.segment import Segment

SYNCED_MARK_FILE = "penstock.synced"


class FlushGoal(NamedTuple):
    """What a flush will have made durable when it is done."""

    offset: int
    truncations: int
    sizes: list[tuple[Segment, int]]
    paths: list[str]


class TruncatedError(KafkaError):
    """The records that a waiter wants on disk were truncated: they will never be there."""

    def __init__(self, offset: int) -> None:
        message = f"Records below offset {offset} were truncated before they were synced: ask the present leader."
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)


async def sync_to_end(log: Log) -> None:
    """Waits until the records that the log has now are on disk, or are truncated: then the log has another end."""
    with suppress(TruncatedError):
        await log.flushed(log.log_end_offset)


async def make_countable(log: Log) -> None:
    """Syncs to the end where fsync is promised; where it is not any more, removes the mark that says so."""
    await (sync_to_end(log) if log.config.fsync_before_ack else log.remove_mark())


class GroupCommit:
    __slots__ = ("_log", "_marking", "_removals", "_running", "_synced_bases", "_waiters")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._marking = asyncio.Lock()
        self._removals = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._running: asyncio.Task[None] | None = None
        #: Base offsets of segments whose directory entry is known to be on disk.
        self._synced_bases: set[int] = set()

    async def wait(self, offset: int) -> None:
        self._log.check_writable()
        if offset > self._log.log_end_offset:
            raise TruncatedError(offset)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.append((offset, future))
        if self._running is None:
            self._running = loop.create_task(self._run(), name=f"fsync {self._log.topic}-{self._log.partition}")
        await future

    async def _run(self) -> None:
        try:
            while self._waiters:
                # Whoever asks while the disk works is served by the next round.
                durable = await self._sync_records()
                waiting, self._waiters = self._waiters, []
                for offset, future in waiting:
                    if offset > durable:
                        self._waiters.append((offset, future))
                    elif not future.done():
                        future.set_result(None)
        except (OSError, KafkaError) as error:
            refusal = self._log.failed(error) if isinstance(error, OSError) else error
            self._refuse(refusal)
        finally:
            self._running = None

    def refuse_above(self, end_offset: int) -> None:
        """The log is cut at `end_offset`: waiters for records above hear so, whatever is appended there later."""
        waiting, self._waiters = self._waiters, []
        for offset, future in waiting:
            if offset <= end_offset:
                self._waiters.append((offset, future))
            elif not future.done():
                future.set_exception(TruncatedError(offset))

    async def settle(self) -> None:
        if self._running is not None:
            await asyncio.wait([self._running])

    def _refuse(self, error: KafkaError) -> None:
        waiting, self._waiters = self._waiters, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)

    async def _sync_records(self) -> int:
        """Returns the offset below which all records are now on disk."""
        log = self._log
        while True:
            goal, truncations = log.log_end_offset, log.truncations
            removals, mark = self._removals, log.config.fsync_before_ack and not log.marked
            log.mark_possible = log.mark_possible or mark
            for segment in self._dirty_segments():
                size = segment.size
                await segment.file.sync()
                if log.truncations == truncations:
                    segment.synced_size = max(segment.synced_size, size)
            mark = await self._sync_entries(mark, removals)
            if log.truncations == truncations:
                log.marked = log.marked or mark
                log.flushed_offset = max(log.flushed_offset, goal)
                return log.flushed_offset

    def _dirty_segments(self) -> list[Segment]:
        return [segment for segment in self._log.segments if segment.synced_size < segment.size]

    def _new_files(self) -> bool:
        return any(segment.base_offset not in self._synced_bases for segment in self._log.segments)

    def _note_files(self) -> None:
        self._synced_bases = {segment.base_offset for segment in self._log.segments}

    def begin(self) -> FlushGoal:
        """Write out what is only in memory; returns what has to be synced for the recovery point to move."""
        log = self._log
        log.check_writable()
        try:
            log.store()
            if log.unsynced_bytes >= log.environment.unflushed_bytes:
                snapshot = log.snapshots.take(log.producers)
                if snapshot is not None:
                    log.note_unsynced(snapshot)
        except OSError as error:
            raise log.failed(error) from error
        paths: list[str] = []
        for segment in log.segments_from(log.recovery_point):
            paths.extend(segment.path(suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
            if segment.has_aborted:
                paths.append(segment.path(TXN_INDEX_SUFFIX))
        paths.extend(sorted(log.unsynced_files or ()))
        log.unsynced_files = None
        log.unsynced_bytes = 0
        sizes = [(segment, segment.size) for segment in self._dirty_segments()]
        return FlushGoal(log.log_end_offset, log.truncations, sizes, paths)

    async def sync(self, goal: FlushGoal) -> None:
        log = self._log
        try:
            await self._sync_records()
            await log.environment.disk.run(self._sync_files, goal.paths)
        except OSError as error:
            self._missed(goal)
            raise log.failed(error) from error
        self.finish(goal)

    def _missed(self, goal: FlushGoal) -> None:
        """What wasn't synced is for the next flush: the disk may not be to blame, and the log goes on."""
        for path in goal.paths:
            self._log.note_unsynced(path)

    def finish(self, goal: FlushGoal) -> None:
        """Everything that belongs to the goal is on disk."""
        log = self._log
        if log.truncations != goal.truncations or log.offline:
            return
        for segment, size in goal.sizes:
            segment.synced_size = max(segment.synced_size, size)
        log.recovery_point = max(log.recovery_point, goal.offset)
        log.flushed_offset = max(log.flushed_offset, goal.offset)
        log.last_flush_ms = log.environment.clock.wall_ms()

    async def flush(self) -> None:
        self._log.check_writable()
        if self._log.is_dirty:
            await self.sync(self.begin())

    def flush_now(self) -> None:
        log = self._log
        log.check_writable()
        if not log.is_dirty:
            return
        goal = self.begin()
        try:
            for segment, _ in goal.sizes:
                segment.file.sync_now()
            self._sync_files(goal.paths)
        except OSError as error:
            self._missed(goal)
            raise log.failed(error) from error
        self._note_files()
        self.finish(goal)

    def _sync_files(self, paths: list[str]) -> None:
        disk = self._log.environment.disk
        for path in paths:
            if disk.exists(path):
                disk.sync_file(path)
        self._sync_directories()

    async def _sync_entries(self, mark: bool, removals: int) -> bool:
        """Whether the log's directory was marked, too: not if a mark was removed since the sync began."""
        async with self._marking:
            mark = mark and self._removals == removals
            if mark or self._new_files():
                await self._log.environment.disk.run(self._sync_directories, mark)
                self._note_files()
        return mark

    async def remove_mark(self) -> None:
        """Fsync is not promised any more: what is not synced counts once the directory has no mark, also on disk."""
        log = self._log
        log.check_writable()
        async with self._marking:
            if log.config.fsync_before_ack or not log.mark_possible:
                return  # it was promised again, or another one removed it
            log.marked = False
            self._removals += 1
            try:
                await log.environment.disk.run(self._remove_mark)
            except OSError as error:
                raise log.failed(error) from error
            log.mark_possible = False
            log.counts_synced = log.config.fsync_before_ack

    def _remove_mark(self) -> None:
        disk = self._log.environment.disk
        disk.remove(f"{self._log.path}/{SYNCED_MARK_FILE}")
        disk.sync_dir(self._log.path)

    def _sync_directories(self, mark: bool = False) -> None:
        """The entries of the log's files, and the first time the entry of the log's own directory."""
        disk = self._log.environment.disk
        if mark:
            disk.write_new(f"{self._log.path}/{SYNCED_MARK_FILE}", b"")
            whose = f"{self._log.path}/{PARTITION_METADATA_FILE}"
            if disk.exists(whose):
                disk.sync_file(whose)  # the mark is told under the topic's id
        disk.sync_dir(self._log.path)
        if not self._synced_bases:
            disk.sync_dir(self._log.log_dir)
