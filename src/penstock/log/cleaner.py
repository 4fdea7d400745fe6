"""Runs the broker's part of compaction: finds a log that is due, and replaces its segments by compacted segments.

A log is due when enough of it is dirty (`min.cleanable.dirty.ratio`) or when a dirty record has waited too long
(`max.compaction.lag.ms`). As in Kafka, some segments are never compacted: the active segment, the segment that holds
the last stable offset, all later segments, and segments with records younger than `min.compaction.lag.ms`. So every
transaction with records in a rewritten segment has ended, and the transaction index shows whether it was aborted.

A helper process rewrites the segments. If no other process can open the files of this disk, as in the simulator, the
broker rewrites them itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.disk.api import is_shortage
from penstock.log.scan import CorruptBatchError
from penstock.log.segment import Segment
from penstock.log.swap import CLEANED_SUFFIX, swap_in
from penstock.protocol.errors import KafkaError

if TYPE_CHECKING:
    from penstock.log.compaction import CompactionJob, CompactionResult
    from penstock.log.log import Log
    from penstock.log.manager import LogManager

logger = logging.getLogger(__name__)

WORKER = "penstock.log.cleaner_worker"
#: Keys that one round remembers, about 150 bytes each in the helper process. A log with more takes several rounds.
MAX_KEYS = 1_000_000


@dataclass(frozen=True, slots=True)
class Due:
    log: Log
    first_dirty_offset: int
    first_uncleanable_offset: int
    dirty_bytes: int
    ratio: float
    overdue: bool
    #: The log's generation when it was assessed: a truncation or a move makes this assessment void.
    generation: int


class Cleaner:
    def __init__(
        self,
        logs: LogManager,
        *,
        max_keys: int = MAX_KEYS,
        may_drop_tombstones: Callable[[Log], bool] = lambda log: True,
    ) -> None:
        """Creates a cleaner. `may_drop_tombstones` tells whether compaction may drop the tombstones of a log.

        It returns False while another replica has not copied the whole log: without the tombstones and transaction
        markers, that replica would keep records that were deleted or aborted.
        """
        self._logs = logs
        self._max_keys = max_keys
        self._may_drop_tombstones = may_drop_tombstones
        #: Logs that could not be compacted, and why; not tried again until the next start.
        self.uncleanable: dict[Log, str] = {}
        self._one_at_a_time = asyncio.Lock()

    async def run(self) -> None:
        """Compacts every log that is due, the log with the largest dirty share first."""
        tried: set[Log] = set()
        while True:
            async with self._one_at_a_time:
                due = [each for each in self.due() if each.log not in tried]
                if not due:
                    return
                chosen = max(due, key=lambda each: (each.overdue, each.ratio))
                tried.add(chosen.log)
                await self.clean(chosen)

    async def clean_now(self, log: Log) -> CompactionResult | None:
        """Compacts a log immediately, even if little of it is dirty.

        Starts a new segment first, because the active segment is never compacted.

        Returns None if the log has nothing to compact, is offline or is being moved.
        """
        async with self._one_at_a_time:
            if not self._is_present(log) or not log.config.compact or log.offline or log.is_moving:
                return None
            try:
                if log.segments.active.size:
                    log.roll()
                due = self._assess(log, self._logs.clock.wall_ms(), at_once=True)
            except (CorruptBatchError, OSError, KafkaError) as error:
                self._give_up(log, error)
                return None
            return None if due is None else await self.clean(due)

    def due(self) -> list[Due]:
        found: list[Due] = []
        now_ms = self._logs.clock.wall_ms()
        self.uncleanable = {log: why for log, why in self.uncleanable.items() if self._is_present(log)}
        for log in self._logs:
            if not log.config.compact or log.offline or log in self.uncleanable or log.is_moving:
                continue  # as in Kafka, a log that is moved is not compacted until the move has ended
            try:
                due = self._assess(log, now_ms)
            except (CorruptBatchError, OSError, KafkaError) as error:
                self._give_up(log, error)
                continue
            if due is not None:
                found.append(due)
        return found

    def _assess(self, log: Log, now_ms: int, *, at_once: bool = False) -> Due | None:
        first_dirty = self.clean_until(log)
        uncleanable = self.first_uncleanable_offset(log, now_ms)
        clean_bytes = dirty_bytes = 0
        overdue = False
        for slot, segment in enumerate(log.segments[:-1]):
            if log.segments.bases[slot + 1] <= first_dirty:
                clean_bytes += segment.size
            elif segment.base_offset < uncleanable:
                dirty_bytes += segment.size
                first = segment.first_timestamp
                if first is not None and 0 <= first < now_ms - log.config.max_compaction_lag_ms:
                    overdue = True
        if not dirty_bytes:
            return None
        ratio = dirty_bytes / (clean_bytes + dirty_bytes)
        if not at_once and not overdue and ratio <= log.config.min_cleanable_dirty_ratio:
            return None
        return Due(log, first_dirty, uncleanable, dirty_bytes, ratio, overdue, log.generation)

    def clean_until(self, log: Log) -> int:
        offset = log.cleaned_offset
        # Compaction starts over if the log start is past this point, or if the checkpoint is impossible.
        return offset if log.log_start_offset <= offset <= log.segments.active.base_offset else log.log_start_offset

    def first_uncleanable_offset(self, log: Log, now_ms: int) -> int:
        """Returns the base offset of the first segment that must not be compacted yet. A segment is compacted as a
        whole or not at all."""
        bound = log.segments.starting_at(min(log.segments.active.base_offset, log.last_stable_offset))[0].base_offset
        lag_ms = log.config.min_compaction_lag_ms
        if lag_ms > 0:
            for segment in log.segments[:-1]:
                if segment.max_timestamp > now_ms - lag_ms:
                    return min(bound, segment.base_offset)
        return bound

    async def clean(self, due: Due) -> CompactionResult | None:
        log = due.log
        sources: list[Segment] = []
        try:
            # Compaction leaves gaps between offsets. Recovery takes gaps above the recovery point for lost records.
            await log.flush()
            if not await self._logs.save_checkpoints() or self._is_overtaken(due, sources):
                return None
            sources = [each for each in log.segments[:-1] if each.base_offset < due.first_uncleanable_offset]
            job = self._job(due, sources)
            result = await self._compact(job)
            if log.generation != due.generation or not self._is_present(log):
                self._drop(job, result)
                return None
            await self._swap_in(log, job, result)
            if log.generation == due.generation:
                log.note_compacted(result.end_offset)
                await self._logs.save_checkpoints([self._logs.dirs.of(log)])
        except (CorruptBatchError, KafkaError, OSError) as error:
            if not self._is_overtaken(due, sources):
                self._give_up(log, error)
            return None
        logger.info(
            "compacted %s up to offset %d: kept %d of %d records",
            log,
            result.end_offset,
            result.records_kept,
            result.records_read,
        )
        return result

    def _is_present(self, log: Log) -> bool:
        return self._logs.get(log.topic, log.partition) is log

    def _is_overtaken(self, due: Due, sources: list[Segment]) -> bool:
        """True if the log has changed so that the result of the compaction `due` must not be used.

        This is the case if the log was truncated, moved or deleted since the compaction began, or if one of the
        segments `sources` was deleted.
        """
        log = due.log
        cut = log.generation != due.generation or not self._is_present(log)
        return cut or any(segment not in log.segments for segment in sources)

    def _job(self, due: Due, segments: list[Segment]) -> CompactionJob:
        from penstock.log.compaction import CompactionJob  # imported only once there is something to compact

        log = due.log
        config = log.config
        return CompactionJob(
            log.path,
            [(segment.base_offset, segment.size) for segment in segments],
            due.first_dirty_offset,
            due.first_uncleanable_offset,
            self._logs.clock.wall_ms(),
            config.delete_retention_ms,
            config.segment_bytes,
            config.segment_index_bytes,
            config.index_interval_bytes,
            self._max_keys,
            [(*each,) for each in log.aborted_transactions(log.segments.bases[0], due.first_uncleanable_offset)],
            {
                entry.producer_id: (entry.last_offset if entry.batches else None, entry.producer_epoch)
                for entry in log.producers
            },
            _uncommitted_producers(log),
            self._may_drop_tombstones(log),
        )

    async def _compact(self, job: CompactionJob) -> CompactionResult:
        from penstock.log.compaction import CompactionResult, compact

        disk = self._logs.disk
        if not disk.shared:
            return compact(disk, job)
        return CompactionResult.from_json(await disk.run_worker(WORKER, job.to_json()))

    def _new_segment(self, job: CompactionJob, base_offset: int, size: int, has_aborted: bool) -> Segment:
        segment = Segment(
            self._logs.disk,
            job.directory,
            base_offset,
            size=size,
            has_aborted=has_aborted,
            index_interval=job.index_interval_bytes,
            suffix=CLEANED_SUFFIX,
        )
        segment.synced_size = size
        segment.trusted_from = 0
        return segment

    async def _swap_in(self, log: Log, job: CompactionJob, result: CompactionResult) -> None:
        sizes = dict(job.segments)
        present = {segment.base_offset: segment for segment in log.segments[:-1]}
        replacements: list[tuple[list[Segment], Segment]] = []
        for group in result.groups:
            new = self._new_segment(job, group.sources[0], group.size, group.has_aborted)
            old = [present[base] for base in group.sources if base in present and present[base].size == sizes[base]]
            if len(old) < len(group.sources):
                new.remove_files()  # retention deleted a source meanwhile
            else:
                replacements.append((old, new))
        try:
            await swap_in(log, replacements)
        except OSError as error:
            raise log.health.failed(error) from error

    def _drop(self, job: CompactionJob, result: CompactionResult) -> None:
        for group in result.groups:
            self._new_segment(job, group.sources[0], group.size, group.has_aborted).remove_files()

    def _give_up(self, log: Log, error: Exception) -> None:
        """Handles an error in the compaction of a log.

        After a lack of file descriptors or memory, the next run tries the log again. After any other error, the log is
        not compacted until the node restarts.
        """
        if is_shortage(error):
            logger.warning("%s could not be compacted now and is tried again later: %s", log, error)
            return
        self.uncleanable[log] = str(error)
        logger.error("%s is not compacted until the node restarts: %s", log, error)


def _uncommitted_producers(log: Log) -> list[int]:
    """Returns the producers whose last batch or marker may be above the high watermark."""
    high_watermark = log.high_watermark
    if high_watermark >= log.log_end_offset:
        return []
    # The state does not tell the offset of a marker that began a new epoch, and thus removed the batches.
    return [each.producer_id for each in log.producers if not each.batches or each.last_offset >= high_watermark]
