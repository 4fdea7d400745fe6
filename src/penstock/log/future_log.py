"""Copies a log that moves to another directory. The copy is called the future log until it replaces the current log.

The copy gets whole batches at their offsets, in the same segments as the current log. Leader epochs, producer state and
the transaction index are derived from the batches; all other state is handed over at the swap. Only the move appends to
a future log, and no client reads it. `penstock.replication.directory_move` decides the steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, TypeVar

from penstock.log import appending
from penstock.log.appending import Prepared
from penstock.log.segment import MAX_RELATIVE_OFFSET, Segment
from penstock.log.synced_mark import Mark
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.batches import iter_batches
from penstock.records.control import read_end_txn

if TYPE_CHECKING:
    from penstock.disk.api import Buffer
    from penstock.log.log import Log
    from penstock.log.slices import LogSlice

T = TypeVar("T")

#: Batches that are accounted for at once: bounds the time for which the event loop is busy.
RUN_BATCHES = 128


class FutureLog:
    __slots__ = ("_copied_to", "_prepared_start", "current", "cut_at", "log")

    def __init__(self, current: Log, log: Log) -> None:
        self.current = current
        self.log = log
        #: The lowest offset to which the current log was truncated since the future log was last cut.
        self.cut_at: int | None = None
        #: The segment of the current log, and the position in it, up to which batches were copied.
        self._copied_to: tuple[Segment, int] | None = None
        #: The log start that the target directory's checkpoint has; None until the log is prepared for the swap.
        self._prepared_start: int | None = None

    def __repr__(self) -> str:
        return f"FutureLog({self.log.path}, {self.log.log_start_offset}..{self.log.log_end_offset})"

    # What is left.

    @property
    def records_left(self) -> int:
        return max(0, self.current.log_end_offset - self.log.log_end_offset)

    @property
    def bytes_left(self) -> int:
        """Returns how many bytes of the current log are not copied yet. This is an estimate until the first batches are
        copied."""
        if not self.records_left:
            return 0
        segments = self.current.segments
        if self._copied_to is not None and self._copied_to[0] in segments:
            segment, position = self._copied_to
            later = segments[segments.index(segment) + 1 :]
            return max(0, segment.size - position) + sum(each.size for each in later)
        return max(0, self.current.size - self.log.size)

    # Following the current log.

    def note_truncation(self, offset: int) -> None:
        """Notes that the current log is about to be truncated to `offset`. The copy is truncated too, before copying
        continues."""
        self.cut_at = offset if self.cut_at is None else min(self.cut_at, offset)

    def truncate_to(self, offset: int) -> None:
        """Truncates the copy to `offset`, because the current log was truncated there.

        Only whole batches can be removed. If `offset` is inside a batch, the whole batch is removed, and its first
        records are copied again.
        """
        self.log.truncate_to(offset)
        self._copied_to = None
        if self.cut_at is not None and self.cut_at >= self.log.log_end_offset:
            self.cut_at = None

    def start_over(self, offset: int) -> None:
        """Removes all records of the copy and continues at `offset`, the start of the log that is copied."""
        self.log.truncate_fully_and_start_at(offset)
        self._copied_to = self.cut_at = None

    async def advance_start(self, offset: int) -> None:
        """Hides the records of the copy below `offset`. Removes their segments at once, because no client reads the
        copy."""
        log = self.log
        log.update_high_watermark(max(offset, self.current.high_watermark))
        log.advance_log_start_offset(offset)
        bases = log.segments.bases
        doomed = [segment for segment, end in zip(log.segments, bases[1:], strict=False) if end <= offset]
        if doomed:
            log.segments.remove(doomed)
            try:
                log.snapshots.keep_only(log.segments.bases)
                for segment in doomed:
                    segment.close()
                    await log.environment.disk.run(segment.remove_files)
            except OSError as error:
                raise log.health.failed(error) from error

    # Copying.

    async def copy(self, max_bytes: int) -> int:
        """Copies the next batches, about `max_bytes`. Returns the number of copied bytes.

        Raises KafkaError if a disk fails, or if the current log is truncated meanwhile. After such a truncation the
        caller has to truncate the copy before it copies again.
        """
        found = self._next(max_bytes)
        if found is None:
            return 0
        data = await found.read()
        copied = 0
        for run, view in self._runs(found, data):
            segment = self._segment_for(run, begins=found.position + copied == 0)
            await finished(self._append(segment, run, view))
            copied += len(view)
            self._note_copied(found, copied)
        return copied

    async def _append(self, segment: Segment, run: list[Prepared], view: memoryview) -> None:
        try:
            await segment.append_many_later([batch.header for batch in run], view)
        except OSError as error:
            raise self.log.health.failed(error) from error
        appending.account_run(self.log, segment, run)

    def copy_tail(self, max_bytes: int) -> bool:
        """Copies all remaining batches without yielding to the event loop. Returns True if it has copied them.

        Copies nothing and returns False if more than `max_bytes` remain, or if the future log has to be truncated
        first.
        """
        if self.cut_at is not None or self.bytes_left > max_bytes:
            return False
        while self.records_left:
            found = self._next(max_bytes)
            if found is None:
                continue
            copied = 0
            for run, view in self._runs(found, found.read_now()):
                segment = self._segment_for(run, begins=found.position + copied == 0)
                try:
                    segment.append_many([batch.header for batch in run], [view])
                except OSError as error:
                    raise self.log.health.failed(error) from error
                appending.account_run(self.log, segment, run)
                copied += len(view)
            self._note_copied(found, copied)
        return True

    def _next(self, max_bytes: int) -> LogSlice | None:
        """Returns the next slice of the current log to copy.

        Returns None if compaction has removed the last records of the current log. The end of the copy is then moved to
        the end of the current log.
        """
        current, log = self.current, self.log
        found = current.read(log.log_end_offset, max_bytes, upper_bound=current.log_end_offset)
        if found.segment is None and log.log_end_offset < current.log_end_offset:
            # Compaction removed the last records of a log whose active segment is empty.
            self._skip_to(current.log_end_offset)
            return None
        return found

    def _skip_to(self, offset: int) -> None:
        log = self.log
        log.log_end_offset = log.producers.map_end_offset = offset
        log.roll()

    def _runs(self, found: LogSlice, data: Buffer) -> Iterator[tuple[list[Prepared], memoryview]]:
        """Yields the batches of a chunk in lists of at most RUN_BATCHES batches, so that no append takes long.

        Each list comes with the bytes of its batches.
        """
        if self.log.log_start_offset == self.log.log_end_offset:
            appending.start_with_first_batch(self.log, data)
        whole = memoryview(data)
        run: list[Prepared] = []
        start = end = 0
        expected = self.log.log_end_offset
        for header, view in iter_batches(whole, allow_partial=True):
            if header.base_offset < expected:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"{self.current.path} has a batch at offset {header.base_offset}, but the copy continues at offset "
                    f"{expected}.",
                )
            expected = header.next_offset
            marker = read_end_txn(view) if header.is_control and header.producer_id >= 0 else None
            run.append(Prepared(header, (view,), marker))
            end += header.size
            if len(run) == RUN_BATCHES:
                yield run, whole[start:end]
                run, start = [], end
        if run:
            yield run, whole[start:end]

    def _segment_for(self, run: list[Prepared], *, begins: bool) -> Segment:
        """Returns the segment of the copy to which the batches in `run` are appended.

        `begins` is True if these batches are the first of a segment in the current log. The copy then starts a new
        segment too.
        """
        log = self.log
        log.health.check_writable()
        segment = log.segments.active
        too_far = run[-1].header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        if too_far or (begins and segment.size):
            return log.roll(run[-1].header.last_offset)
        return segment

    def _note_copied(self, found: LogSlice, copied: int) -> None:
        if found.segment is not None:
            self._copied_to = found.segment, found.position + copied

    # Ending the move.

    async def make_durable(self) -> None:
        """Syncs the copy to disk, and gives it a synced mark if the current log has one (see `synced_mark`)."""
        current, log = self.current, self.log
        if log.config is not current.config:
            log.update_config(current.config)
        log.update_high_watermark(current.high_watermark)
        await log.flush()
        try:
            await log.environment.disk.run(log.durability.copy_mark_of, current.durability)
        except OSError as error:
            raise log.health.failed(error) from error

    async def flush(self) -> None:
        """Syncs the copied batches to disk, and removes the producer snapshot of the previous flush.

        Each flush writes a snapshot. Without this removal, all these snapshots would have to be removed together,
        after the swap.
        """
        log = self.log
        await log.flush()
        try:
            log.snapshots.keep_only(log.segments.bases)
        except OSError as error:
            raise log.health.failed(error) from error

    @property
    def flush_is_due(self) -> bool:
        """True if the copy has many unsynced bytes. A flush now makes the flush at the swap short."""
        log = self.log
        return log.appended_bytes - log.durability.flushed_bytes >= log.environment.unflushed_bytes

    def note_prepared(self, start: int) -> None:
        """Notes that the copy is on disk, and that the checkpoint of its directory has the log start offset `start`."""
        self._prepared_start = start

    @property
    def is_prepared(self) -> bool:
        """True if the copy can replace the current log. The copy must meet these conditions:

        - It is on disk, and has the log start offset of the current log.
        - It has a synced mark exactly if the current log has one (see `synced_mark`).
        - Every record that is synced in the current log is synced in the copy. This is not needed if the config
          requires fsync before acknowledgements: the swap then syncs the copy.
        """
        current, log = self.current, self.log
        ours, theirs = log.durability, current.durability
        if self._prepared_start != current.log_start_offset or self.cut_at is not None:
            return False
        if ours.mark is not theirs.mark or theirs.mark is Mark.CHANGING:
            return False
        return current.config.fsync_before_ack or ours.flushed_offset >= theirs.flushed_offset

    def hand_over_state(self) -> None:
        """Gives the future log the leader epochs and the producer state of the current log. Both logs end at the same
        offset.

        This state can't be rebuilt from the batches alone: they show neither producers whose records were deleted nor
        transactions whose verification is pending.
        """
        current, log = self.current, self.log
        log.epochs.copy_from(current.epochs)
        log.producers = current.producers
        try:
            snapshot = log.snapshots.retake(log.producers)
        except OSError as error:
            raise log.health.failed(error) from error
        if snapshot is not None:
            log.durability.note_unsynced(snapshot)
        if current.config.fsync_before_ack:
            log.flush_now()


async def finished(work: Awaitable[T]) -> T:
    """Waits until the write `work` has ended, even if the caller is cancelled. Returns the result of `work`.

    A cancelled caller must not leave a half-written batch behind.
    """
    writing = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        raise
