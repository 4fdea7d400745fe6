"""Makes a log durable: one fsync for all waiters (group commit), and the full flush that moves the recovery point.

A group commit syncs only the record bytes, which is enough for an acknowledgement. A full flush also syncs indexes,
epochs and producer snapshots. So a start after a crash has to scan only the batches above the recovery point.

If the config requires fsync before acknowledgements, the first group commit also writes the synced mark of the log (see
`synced_mark`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from penstock.log import synced_mark
from penstock.log.checkpoints import PARTITION_METADATA_FILE
from penstock.log.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from penstock.log.synced_mark import Mark
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.log.segment import Segment


class FlushGoal(NamedTuple):
    """Names the data that a flush has to sync: records below an offset, segment files up to a size, and other files.

    The other files are indexes, leader epochs and producer snapshots.
    """

    offset: int
    generation: int
    sizes: list[tuple[Segment, int]]
    paths: list[str]
    notes: int
    """The number of the last note of an unsynced file when the flush began."""


class TruncatedError(KafkaError):
    """Raised in a request that waits for an fsync, if its records were truncated and so never reach the disk."""

    def __init__(self, offset: int) -> None:
        message = f"Records below offset {offset} were truncated before they were synced: ask the present leader."
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)


async def sync_to_end(log: Log) -> None:
    """Waits until every record that is in the log at the time of the call is on disk or truncated."""
    with suppress(TruncatedError):
        await log.flushed(log.log_end_offset)


async def make_countable(log: Log) -> None:
    """Waits until the leader may count all records of this replica for the high watermark.

    Syncs the records if the config requires fsync before acknowledgements. Otherwise removes the synced mark, so that
    unsynced records count too (see `synced_mark`).
    """
    await (sync_to_end(log) if log.config.fsync_before_ack else log.durability.remove_mark())


class Durability:
    """Tracks how much of a log is on disk, and syncs the log for waiting requests."""

    __slots__ = (
        "_log",
        "_notes",
        "_old_syncs",
        "_released",
        "_running",
        "_synced_bases",
        "_syncs",
        "_unsynced_files",
        "_waiters",
        "flushed_bytes",
        "flushed_offset",
        "last_flush_ms",
        "mark",
        "recovery_point",
    )

    def __init__(self, log: Log, recovery_point: int, mark: Mark) -> None:
        self._log = log
        #: Everything below is on disk with its indexes; a crash costs a scan from here.
        self.recovery_point = recovery_point
        #: Record bytes below are on disk; never less than the recovery point.
        self.flushed_offset = recovery_point
        #: What `appended_bytes` of the log was when the last flush began.
        self.flushed_bytes = 0
        self.last_flush_ms = 0
        self.mark = mark
        #: Side files (snapshots, epochs, metadata) that no completed flush has synced, with the number of their last
        #: note: a file that is noted again while a flush syncs it stays for the next flush.
        self._unsynced_files: dict[str, int] | None = None
        self._notes = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._running: asyncio.Task[None] | None = None
        #: Base offsets of segments whose directory entry is known to be on disk.
        self._synced_bases: frozenset[int] = frozenset()
        #: Number of syncs under way, and of those that began before the log moved to its present directory.
        self._syncs = self._old_syncs = 0
        #: Set when the last of the latter has ended.
        self._released: asyncio.Event | None = None

    # State.

    def note_unsynced(self, path: str) -> None:
        """Makes the next flush also sync the file at `path`, for example a producer snapshot."""
        if self._unsynced_files is None:
            self._unsynced_files = {}
        self._notes += 1
        self._unsynced_files[path] = self._notes

    @property
    def is_behind(self) -> bool:
        """True if a flush is needed: the log has records above the recovery point, or unsynced leader epochs or
        snapshots."""
        log = self._log
        return self.recovery_point < log.log_end_offset or log.epochs.changed or bool(self._unsynced_files)

    def flush_is_overdue(self, now_ms: int) -> bool:
        """True if the last flush is at least flush.ms ago and records were appended after it."""
        log = self._log
        return log.appended_bytes > self.flushed_bytes and now_ms - self.last_flush_ms >= log.config.flush_ms

    def lower_recovery_point(self, offset: int) -> int:
        """Lowers the recovery point to `offset`, before the log is truncated there. Returns the old recovery point."""
        before, self.recovery_point = self.recovery_point, min(self.recovery_point, offset)
        return before

    def restore_recovery_point(self, before: int) -> None:
        """Sets the recovery point back to `before`, because a truncation failed before it changed the log."""
        self.recovery_point = before

    def restart_at(self, offset: int) -> None:
        """Sets the recovery point and the flushed offset to `offset`, because the log is now empty and starts there."""
        self.recovery_point = self.flushed_offset = offset

    # Moves to another directory.

    @contextmanager
    def _using_path(self) -> Iterator[None]:
        path = self._log.path
        self._syncs += 1
        try:
            yield
        finally:
            if self._log.path == path:
                self._syncs -= 1
            else:
                self._old_syncs -= 1
                if not self._old_syncs and self._released is not None:
                    self._released.set()

    async def old_path_released(self) -> None:
        """Waits for the end of all syncs that began before the log was moved to its present directory."""
        if self._old_syncs:
            self._released = asyncio.Event()
            await self._released.wait()
            self._released = None

    def copy_mark_of(self, other: Durability) -> None:
        """Gives this log a synced mark if `other` has one, and removes the mark if `other` has none (see
        `synced_mark`).

        Blocks the event loop. The caller must have synced the records of this log.
        """
        disk, path = self._log.environment.disk, self._log.path
        if other.mark is Mark.PRESENT and self.mark is Mark.ABSENT:
            synced_mark.write_file(disk, path)
            self.mark = Mark.PRESENT
        elif other.mark is Mark.ABSENT and self.mark is Mark.PRESENT:
            synced_mark.remove_file(disk, path)
            self.mark = Mark.ABSENT

    def take_over(self, other: Durability, unsynced_files: Iterable[str]) -> None:
        """Copies the sync state of `other`, whose files now belong to this log. The next sync also syncs the
        directories."""
        self.recovery_point = other.recovery_point
        self.flushed_offset = other.flushed_offset
        self.flushed_bytes = self._log.appended_bytes
        self.mark = other.mark
        self._synced_bases = frozenset()
        self._unsynced_files = None
        for path in unsynced_files:
            self.note_unsynced(path)
        self._old_syncs, self._syncs = self._old_syncs + self._syncs, 0

    @property
    def unsynced_files(self) -> frozenset[str]:
        return frozenset(self._unsynced_files or ())

    # Group commit.

    async def wait(self, offset: int) -> None:
        """Waits for a group commit that covers the records below `offset`."""
        self._log.health.check_writable()
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
                # Waiters that come during this round are served by the next.
                with self._using_path():
                    durable = await self._sync_round()
                waiting, self._waiters = self._waiters, []
                for offset, future in waiting:
                    if offset > durable:
                        self._waiters.append((offset, future))
                    elif not future.done():
                        future.set_result(None)
        except (OSError, KafkaError) as error:
            refusal = self._log.health.failed(error) if isinstance(error, OSError) else error
            self._refuse(refusal)
        finally:
            self._running = None

    def forget_above(self, end_offset: int) -> None:
        """Lowers the flushed offset to `end_offset`, because the log is truncated there.

        Requests that wait for an fsync of truncated records get a TruncatedError. Truncated segments no longer count as
        synced: a new segment at the same offset is a new file.
        """
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self._synced_bases = frozenset(base for base in self._synced_bases if base < end_offset)
        waiting, self._waiters = self._waiters, []
        for offset, future in waiting:
            if offset <= end_offset:
                self._waiters.append((offset, future))
            elif not future.done():
                future.set_exception(TruncatedError(offset))

    async def settle(self) -> None:
        """Waits for the end of a group commit that is running; returns at once if none is running."""
        if self._running is not None:
            await asyncio.wait([self._running])

    def _refuse(self, error: KafkaError) -> None:
        waiting, self._waiters = self._waiters, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)

    async def _sync_round(self) -> int:
        """Runs one group commit, and returns the flushed offset.

        First writes or removes the synced mark, as the config requires (see `synced_mark`). Then syncs the records that
        requests wait for.
        """
        log = self._log
        promised = log.config.fsync_before_ack
        if promised and self.mark is not Mark.PRESENT:
            await self._write_mark()
        elif not promised and self.mark is not Mark.ABSENT:
            await self._erase_mark()
        if any(offset > self.flushed_offset for offset, _ in self._waiters):
            await self._sync_records()
        return self.flushed_offset

    async def _write_mark(self) -> None:
        """Syncs all records, then writes the synced mark.

        While the mark exists, only synced records of this replica count for the high watermark (see `synced_mark`).
        """
        disk = self._log.environment.disk
        self.mark = Mark.CHANGING
        await self._sync_records()
        await disk.run(synced_mark.write_file, disk, self._log.path)
        self.mark = Mark.PRESENT

    async def _erase_mark(self) -> None:
        disk = self._log.environment.disk
        self.mark = Mark.CHANGING
        await disk.run(synced_mark.remove_file, disk, self._log.path)
        self.mark = Mark.ABSENT

    async def _sync_records(self) -> None:
        """Syncs the records that are in the log now, and waits until each of them is on disk or truncated."""
        log = self._log
        while True:
            goal, generation, bases = log.log_end_offset, log.generation, frozenset(log.segments.bases)
            for segment in self._dirty_segments():
                size = segment.size
                await segment.file.sync()
                if log.generation == generation:
                    segment.synced_size = max(segment.synced_size, size)
            if not bases <= self._synced_bases:
                await log.environment.disk.run(self._sync_directories)
            if log.generation == generation:
                self._synced_bases = bases
                self.flushed_offset = max(self.flushed_offset, goal)
                return

    def _dirty_segments(self) -> list[Segment]:
        return [segment for segment in self._log.segments if segment.synced_size < segment.size]

    def begin(self) -> FlushGoal:
        """Begins a flush: writes all data that is only in memory to files.

        Returns the records and files that the caller has to sync before the recovery point moves.
        """
        log = self._log
        log.health.check_writable()
        try:
            log.store()
            if log.appended_bytes - self.flushed_bytes >= log.environment.unflushed_bytes:
                snapshot = log.snapshots.take(log.producers)
                if snapshot is not None:
                    self.note_unsynced(snapshot)
        except OSError as error:
            raise log.health.failed(error) from error
        paths: list[str] = []
        for segment in log.segments.starting_at(self.recovery_point):
            paths.extend(segment.path(suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
            if segment.has_aborted:
                paths.append(segment.path(TXN_INDEX_SUFFIX))
        paths.extend(sorted(self._unsynced_files or ()))
        self.flushed_bytes = log.appended_bytes
        sizes = [(segment, segment.size) for segment in self._dirty_segments()]
        return FlushGoal(log.log_end_offset, log.generation, sizes, paths, self._notes)

    async def sync(self, goal: FlushGoal) -> None:
        log = self._log
        try:
            with self._using_path():
                await self._sync_records()
                await log.environment.disk.run(self._sync_files, goal.paths)
        except OSError as error:
            raise log.health.failed(error) from error
        self.finish(goal)

    def finish(self, goal: FlushGoal) -> None:
        """Moves the recovery point up to the offset of `goal`. The caller must have synced all files of the goal.

        A flush that fails or is cancelled does not get here: the next flush syncs its files.
        """
        log = self._log
        if log.generation != goal.generation or log.offline:
            return
        noted = self._unsynced_files or {}
        self._unsynced_files = {path: note for path, note in noted.items() if note > goal.notes} or None
        for segment, size in goal.sizes:
            segment.synced_size = max(segment.synced_size, size)
        self.recovery_point = max(self.recovery_point, goal.offset)
        self.flushed_offset = max(self.flushed_offset, goal.offset)
        self.last_flush_ms = log.environment.clock.wall_ms()

    async def end(self, goal: FlushGoal, *, synced: bool) -> None:
        """Completes the flush that `begin` began: syncs the files of `goal` and moves the recovery point.

        With `synced`, the whole volume was synced since `begin`, so the files need no further sync.
        """
        if synced:
            self.finish(goal)
        else:
            await self.sync(goal)

    async def flush(self) -> None:
        self._log.health.check_writable()
        if self._log.is_dirty:
            await self.sync(self.begin())

    def flush_now(self) -> None:
        log = self._log
        log.health.check_writable()
        if not log.is_dirty:
            return
        goal = self.begin()
        try:
            for segment, _ in goal.sizes:
                segment.file.sync_now()
            self._sync_files(goal.paths)
        except OSError as error:
            raise log.health.failed(error) from error
        self._synced_bases = frozenset(log.segments.bases)
        self.finish(goal)

    def _sync_files(self, paths: list[str]) -> None:
        disk = self._log.environment.disk
        for path in paths:
            if disk.exists(path):
                disk.sync_file(path)
        self._sync_directories()

    async def remove_mark(self) -> None:
        """Waits until the synced mark is removed by a group commit. Unsynced records then count for the high watermark
        too.

        Returns early if the config changes and requires fsync before acknowledgements.
        """
        while self.mark is not Mark.ABSENT and not self._log.config.fsync_before_ack:
            await self.wait(0)

    def _sync_directories(self) -> None:
        """Syncs the directory entries of the log's files.

        The first call also syncs the topic id and the entry of the log's directory. Without these, a start after a
        power loss could not assign the records to a topic.
        """
        disk = self._log.environment.disk
        topic_id = f"{self._log.path}/{PARTITION_METADATA_FILE}"
        if not self._synced_bases and disk.exists(topic_id):
            disk.sync_file(topic_id)
        disk.sync_dir(self._log.path)
        if not self._synced_bases:
            disk.sync_dir(self._log.log_dir)
