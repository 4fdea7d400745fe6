"""A partition's log: an ordered run of segments, appended at the end, read anywhere, shortened at both ends.

    log_start_offset ≤ high_watermark ≤ log_end_offset        recovery_point ≤ flushed_offset ≤ log_end_offset

An append either is whole in the file and accounted for, or raises and leaves nothing behind. After the first disk error
the log takes no more writes: what the disk has is unknown from then on, and recovery at the next start will tell.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import lru_cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING

from penstock.check import check
from penstock.disk.api import is_shortage
from penstock.log import appending, shorten
from penstock.log.appending import AppendInfo
from penstock.log.checkpoints import LEADER_EPOCH_FILE
from penstock.log.flush import GroupCommit
from penstock.log.producers import AppendOrigin, ProducerStateManager
from penstock.log.scan import CorruptBatchError
from penstock.log.segment import DELETED_SUFFIX, MAX_RELATIVE_OFFSET, Segment
from penstock.log.slices import LogSlice
from penstock.log.snapshot_files import SnapshotFiles
from penstock.log.synced_mark import Mark
from penstock.log.timestamps import Candidate, TimestampedOffset, next_with_max_time, next_with_time
from penstock.protocol.errors import ErrorCode, KafkaError, without_frames
from penstock.records.header import LOG_OVERHEAD, BatchHeader
from penstock.records.lookup import first_at_or_after, latest
from penstock.records.validate import AppendRules, Prepared, validate_own, validate_produced

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.log.environment import LogEnvironment
    from penstock.log.epochs import LeaderEpochCache
    from penstock.log.flush import FlushGoal
    from penstock.log.producers import BatchMetadata, Verification
    from penstock.log.txn_index import AbortedTransaction
    from penstock.metadata.configs.topic import LogConfig

__all__ = ["AppendInfo", "AppendOrigin", "Log", "LogSlice", "TimestampedOffset"]

logger = logging.getLogger(__name__)

#: A full disk still reads; after any other error its pages can't be trusted.
_STILL_READABLE = (errno.ENOSPC, errno.EDQUOT)


_last_offset = attrgetter("last_offset")


@lru_cache(maxsize=1024)
def _rules_of(config: LogConfig) -> AppendRules:
    return AppendRules.of(config)


class Log:
    __slots__ = (
        "_closed",
        "_commit",
        "_failure",
        "_flush_messages",
        "_roll_ms",
        "_rules",
        "active",
        "bases",
        "cleaned_offset",
        "config",
        "environment",
        "epochs",
        "flushed_offset",
        "high_watermark",
        "last_flush_ms",
        "log_dir",
        "log_end_offset",
        "log_start_offset",
        "mark",
        "partition",
        "path",
        "pending_swaps",
        "producers",
        "recovery_point",
        "segments",
        "size",
        "snapshots",
        "topic",
        "topic_id",
        "truncations",
        "unsynced_bytes",
        "unsynced_files",
    )

    def __init__(
        self,
        environment: LogEnvironment,
        log_dir: str,
        path: str,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        segments: list[Segment],
        *,
        epochs: LeaderEpochCache,
        producers: ProducerStateManager,
        snapshots: SnapshotFiles,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
    ) -> None:
        self.environment = environment
        self.log_dir = log_dir
        self.path = path
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.epochs = epochs
        self.producers = producers
        self.snapshots = snapshots
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_start_offset
        #: Everything below is on disk with its indexes; a crash costs a scan from here.
        self.recovery_point = recovery_point
        #: Record bytes below are on disk; never less than the recovery point.
        self.flushed_offset = recovery_point
        #: Everything below is compacted; 0 where nothing is.
        self.cleaned_offset = 0
        self.last_flush_ms = 0
        self.unsynced_bytes = 0
        #: Side files (snapshots, epochs, metadata) written since the last flush.
        self.unsynced_files: set[str] | None = None
        #: Compacted segments whose turn comes when the disk is done.
        self.pending_swaps: list[Segment] = []
        #: Counts shortenings, so that a flush under way can tell that its goal has moved.
        self.truncations = 0
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self.size = sum(segment.size for segment in segments)
        self._failure: OSError | None = None
        self._closed = False
        self._commit: GroupCommit | None = None
        #: Changed by `synced_mark` alone.
        self.mark = Mark.ABSENT
        self.update_config(config)

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.log_start_offset}..{self.log_end_offset})"

    # Settings and state.

    def segments_from(self, offset: int) -> list[Segment]:
        """The segment that `offset` falls into, and those after it."""
        return self.segments[max(0, bisect_right(self.bases, offset) - 1) :]

    @property
    def offline(self) -> bool:
        return self._failure is not None

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        self._rules = _rules_of(config)
        #: 1 is for those who wait for their fsync themselves.
        self._flush_messages = config.flush_messages if config.flush_messages > 1 else 1 << 62
        for segment in self.segments:
            segment.index_interval = config.index_interval_bytes
        self._roll_ms = self._new_roll_ms()

    def _new_roll_ms(self) -> int:
        """How long the active segment may go on; a compacted one not longer than a record may stay uncompacted."""
        config = self.config
        limit = min(config.segment_ms, config.max_compaction_lag_ms) if config.compact else config.segment_ms
        jitter = min(config.segment_jitter_ms, config.segment_ms)
        return limit - (self.environment.random.randrange(jitter) if jitter > 0 else 0)

    @property
    def last_stable_offset(self) -> int:
        """Below this, every transaction has ended and consumers can see the end. Never below the log start offset."""
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable > self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    def update_high_watermark(self, offset: int) -> int:
        """Move it up to `offset`, within the log; it never goes back here. Returns what it is now."""
        offset = min(offset, self.log_end_offset)
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.producers.on_high_watermark(offset)
        return self.high_watermark

    def failed(self, error: OSError) -> KafkaError:
        """The disk let us down: no more writes, and the directory's owner is told. Returns what to raise.

        A lack of descriptors or memory is not the disk's: what was refused may be tried again.
        """
        if self._closed:
            return KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "The partition was just closed: look up its leader again."
            )
        if self._failure is None and not is_shortage(error):
            self._failure = without_frames(error)
            self.environment.disk_failed(self, error)
        return self._storage_error(error)

    def failed_midway(self, error: OSError) -> KafkaError:
        """As `failed`; but the files no longer match what is in memory, so this log stops even if the disk is well."""
        refusal = self.failed(error)
        if self._failure is None and not self._closed:
            self._failure = without_frames(error)
            logger.error("%s stops until the node restarts: a change of its files was interrupted (%s)", self, error)
        return refusal

    def _storage_error(self, error: OSError) -> KafkaError:
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"Directory {self.log_dir} failed ({error.strerror or error}): see the broker's log.",
        )

    def check_writable(self) -> None:
        if self._failure is not None or self._closed:
            raise self._unwritable()

    def _unwritable(self) -> KafkaError:
        return self.failed(self._failure or OSError(errno.EBADF, "the log is closed"))

    def take_offline(self, error: OSError) -> None:
        """Another log of the directory met the failure."""
        if self._failure is None:
            self._failure = error

    def report_corruption(self, reason: str) -> None:
        self.environment.corruption_found(self, reason)

    def _corrupt(self, error: CorruptBatchError) -> KafkaError:
        self.report_corruption(str(error))
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, "The stored batch is damaged; it is not served.")

    # Appending.

    def append_as_leader(
        self,
        records: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification: Verification | None = None,
        verification_required: bool = False,
        transaction_version: int = -1,
        prepared: Prepared | None = None,
    ) -> AppendInfo:
        """Judge, give offsets, append. Raises KafkaError and appends nothing if a batch is refused.

        A client's batch that takes long to judge is an UnpackFirstError: `environment.unpacking` prepares it.
        """
        if self._failure is not None or self._closed:
            raise self._unwritable()
        base_offset = self.log_end_offset
        if origin is not AppendOrigin.CLIENT:
            batches = validate_own(
                records, self._rules, base_offset=base_offset, leader_epoch=leader_epoch, now_ms=now_ms
            )
            return appending.append_own(self, batches, origin, now_ms, transaction_version)
        batch = validate_produced(
            records,
            self._rules,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            prepared=prepared,
        )
        header = batch.header
        size = header.batch_length + LOG_OVERHEAD
        if size > self.config.segment_bytes:
            raise self.larger_than_segment(size)
        has_producer = header.producer_id >= 0
        if has_producer:
            duplicate = self.producers.admit(header)
            if duplicate is not None:
                return self._duplicate(duplicate)
            if verification_required and header.is_transactional:
                self._check_verified(header, verification)
            if self.producers.get(header.producer_id) is None:
                self._check_producer_room(now_ms)
        last_offset = base_offset + header.last_offset_delta
        segment = self.active
        if self.must_roll(segment, size, header.max_timestamp, last_offset, now_ms):
            segment = self.roll(last_offset, now_ms)
        try:
            segment.append(header, batch.head, batch.tail)
        except OSError as error:
            raise self.failed(error) from error
        if leader_epoch != self.epochs.latest_epoch:
            self.assign_epoch(leader_epoch, base_offset)
        self.advance(last_offset + 1, size)
        if has_producer:
            self.producers.update(header)
        return AppendInfo(
            base_offset,
            last_offset,
            header.max_timestamp if header.log_append_time else -1,
            self.log_start_offset,
            False,
            header.max_timestamp,
        )

    def advance(self, next_offset: int, size: int) -> None:
        self.log_end_offset = next_offset
        self.producers.map_end_offset = next_offset
        self.size += size
        self.unsynced_bytes += size
        if (
            self.unsynced_bytes >= self.environment.unflushed_bytes
            or next_offset - self.flushed_offset >= self._flush_messages
        ):
            self.environment.flush_wanted(self)

    def _duplicate(self, batch: BatchMetadata) -> AppendInfo:
        # As Kafka: the answer's append time is the original's timestamp.
        return AppendInfo(
            batch.first_offset, batch.last_offset, batch.timestamp, self.log_start_offset, True, batch.timestamp
        )

    def larger_than_segment(self, size: int) -> KafkaError:
        return KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"The batch has {size} bytes and a segment {self.config.segment_bytes}: send smaller batches.",
        )

    def _check_verified(self, header: BatchHeader, verification: Verification | None) -> None:
        if not self.producers.is_verified(header, verification):
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {header.producer_id} has no open transaction on this partition: add the partition first.",
            )

    def _check_producer_room(self, now_ms: int) -> None:
        if not self.environment.producer_ids.grant(1, now_ms):
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"The broker remembers penstock.max.producer.ids={self.environment.producer_ids.limit} producers: wait "
                "until some are older than producer.id.expiration.ms, or raise it.",
            )

    def append_as_follower(self, records: Buffer, leader_epoch: int) -> AppendInfo | None:
        """Batches with offsets, as the leader of `leader_epoch` has them; what is cut off at the end is left out.

        Batches of a later epoch are left for the leader of that epoch. None if nothing is left to append.
        """
        self.check_writable()
        return appending.append_fetched(self, records, leader_epoch)

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """`epoch` starts at `start_offset`: on becoming leader, and with the first batch of an epoch.

        The file follows with the next flush: above the recovery point a start learns epochs from the batches.
        """
        self.epochs.assign(epoch, start_offset)

    def note_unsynced(self, path: str) -> None:
        if self.unsynced_files is None:
            self.unsynced_files = set()
        self.unsynced_files.add(path)

    # Rolling.

    def must_roll(self, segment: Segment, size: int, timestamp: int, last_offset: int, now_ms: int) -> bool:
        config = self.config
        occupied = segment.size
        if not occupied:
            return last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        if occupied + size > config.segment_bytes or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            return True
        try:
            first = segment.first_timestamp
        except CorruptBatchError as error:
            raise self._corrupt(error) from error
        except OSError as error:
            raise self.failed(error) from error
        waited = timestamp - first if first is not None and first >= 0 else now_ms - segment.created_ms
        if waited > self._roll_ms:
            return True
        return segment.is_index_full(config.segment_index_bytes)

    def roll(self, last_offset: int | None = None, now_ms: int | None = None) -> Segment:
        """Seal the active segment and start the next at the end of the log."""
        base_offset = self.log_end_offset
        if last_offset is not None and last_offset - base_offset > MAX_RELATIVE_OFFSET:
            base_offset = last_offset - MAX_RELATIVE_OFFSET
        old = self.active
        if base_offset == old.base_offset:
            check(not old.size, "only an empty segment is replaced by one with the same base offset")
            return old
        if now_ms is None:
            now_ms = self.environment.clock.wall_ms()
        try:
            old.seal()
            snapshot = self.snapshots.take(self.producers)
            segment = Segment.create(
                self.environment.disk,
                self.path,
                base_offset,
                created_ms=now_ms,
                index_interval=self.config.index_interval_bytes,
            )
        except OSError as error:
            raise self.failed(error) from error
        if snapshot is not None:
            self.note_unsynced(snapshot)
        if not old.size:
            self.drop_segments([old])
        self.segments.append(segment)
        self.bases.append(base_offset)
        self.active = segment
        self._roll_ms = self._new_roll_ms()
        self.environment.flush_wanted(self)
        return segment

    # Reading.

    def read(self, offset: int, max_bytes: int, *, upper_bound: int, min_one_batch: bool = True) -> LogSlice:
        """Batches from the one that holds `offset`, none that reaches `upper_bound` or beyond."""
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is not in {self.log_start_offset}..{self.log_end_offset}.",
            )
        if self._failure is not None and self._failure.errno not in _STILL_READABLE:
            raise self.failed(self._failure)
        if offset >= upper_bound:
            return LogSlice(self, None, 0, 0)
        try:
            return self._find(offset, max_bytes, upper_bound, min_one_batch)
        except CorruptBatchError as error:
            raise self._corrupt(error) from error
        except OSError as error:
            raise self.failed(error) from error

    def _find(self, offset: int, max_bytes: int, upper_bound: int, min_one_batch: bool) -> LogSlice:
        segments = self.segments
        slot = bisect_right(self.bases, offset) - 1
        while slot < len(segments):
            segment = segments[slot]
            found = segment.locate(offset)
            slot += 1
            if found is None:
                continue
            position, first_size = found
            next_base = self.log_end_offset if slot == len(segments) else self.bases[slot]
            end = segment.size if upper_bound >= next_base else segment.position_of(upper_bound)
            size = min(max_bytes, end - position)
            if size < first_size:
                size = first_size if min_one_batch and end - position >= first_size else 0
            return LogSlice(self, segment if size else None, position, size)
        return LogSlice(self, None, 0, 0)

    async def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """The first record at or after `timestamp`."""
        from_offset = self.log_start_offset
        while (found := self._candidate(next_with_time, timestamp, from_offset)) is not None:
            header, batch = found
            search = partial(first_at_or_after, header, timestamp=timestamp, start_offset=from_offset)
            record = await self.environment.unpacking.look_into(header, batch, search)
            if record is not None:
                return TimestampedOffset(record.timestamp, record.offset, header.partition_leader_epoch)
            from_offset = max(header.next_offset, self.log_start_offset)
        return None

    async def max_timestamp_offset(self) -> TimestampedOffset | None:
        """The first record that has the largest timestamp of the log."""
        from_offset = self.log_start_offset
        while (found := self._candidate(next_with_max_time, from_offset)) is not None:
            header, batch = found
            record = await self.environment.unpacking.look_into(header, batch, partial(latest, header))
            if record is not None and record.offset >= from_offset:
                return TimestampedOffset(record.timestamp, record.offset, header.partition_leader_epoch)
            from_offset = max(header.next_offset, self.log_start_offset)
        return None

    def _candidate(self, find: Callable[..., Candidate | None], *args: int) -> Candidate | None:
        try:
            return find(self.segments, *args)
        except CorruptBatchError as error:
            raise self._corrupt(error) from error
        except OSError as error:
            raise self.failed(error) from error

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """Aborted transactions that overlap [start, end)."""
        found: list[AbortedTransaction] = []
        for segment in self.segments_from(start):
            if not segment.has_aborted:
                continue
            entries = segment.aborted
            # Entries are in the order of their markers.
            for slot in range(bisect_left(entries, start, key=_last_offset), len(entries)):
                aborted = entries[slot]
                if aborted.first_offset < end:
                    found.append(aborted)
                if aborted.last_stable_offset >= end:
                    return found
        return found

    # Durability.

    async def flush(self) -> None:
        """Everything appended so far is on disk, indexes included; the recovery point moves up to it."""
        await self._group_commit().flush()

    async def flushed(self, offset: int) -> None:
        """Returns when the records below `offset` are on disk. Waiters share an fsync.

        Raises TruncatedError if the log is cut below `offset` meanwhile.
        """
        while offset > (self.countable_offset if self.config.fsync_before_ack else self.flushed_offset):
            await self._group_commit().wait(offset)

    def forget_above(self, offset: int) -> None:
        if self._commit is not None:
            self._commit.forget_above(offset)

    @property
    def countable_offset(self) -> int:
        """Records below count as this replica's: a leader or a fetch that names more breaks the promise of the mark."""
        if self.mark is Mark.ABSENT and not self.config.fsync_before_ack:
            return self.log_end_offset
        return self.flushed_offset if self.mark is Mark.PRESENT else self.log_start_offset

    async def remove_mark(self) -> None:
        await self._group_commit().remove_mark()

    def _group_commit(self) -> GroupCommit:
        if self._commit is None:
            self._commit = GroupCommit(self)
        return self._commit

    def flush_now(self) -> None:
        """`flush()` that blocks: for stopping and for tools."""
        self._group_commit().flush_now()

    @property
    def is_dirty(self) -> bool:
        """Whether a flush would have something to do."""
        behind = self.recovery_point < self.log_end_offset or self.epochs.changed or bool(self.unsynced_files)
        return behind and self._failure is None

    def store(self) -> None:
        """Write out what is only in memory: indexes from the recovery point on, leader epochs."""
        for segment in self.segments_from(self.recovery_point):
            segment.store_indexes()
        if self.epochs.changed:
            path = f"{self.path}/{LEADER_EPOCH_FILE}"
            self.environment.disk.write_atomic(path, self.epochs.to_bytes(), sync=False)
            self.epochs.changed = False
            self.note_unsynced(path)

    def begin_flush(self) -> FlushGoal:
        """Half of a flush, for who syncs many logs at once: `end_flush` is the other half."""
        return self._group_commit().begin()

    async def end_flush(self, goal: FlushGoal, *, synced: bool) -> None:
        """`synced`: all that was written before the goal was named is on disk already."""
        if synced:
            self._group_commit().finish(goal)
        else:
            await self._group_commit().sync(goal)

    async def settle(self) -> None:
        """Wait for a group commit that is under way."""
        if self._commit is not None:
            await self._commit.settle()

    # Shortening: `shorten.py` says how.

    def drop_segments(self, doomed: list[Segment]) -> None:
        """Take these out of the log and hand their files over for removal. At least one other stays or follows."""
        for segment in doomed:
            slot = self.bases.index(segment.base_offset)
            del self.segments[slot], self.bases[slot]
            self.size -= segment.size
        try:
            for segment in doomed:
                segment.change_suffix(DELETED_SUFFIX)
        except OSError as error:
            raise self.failed_midway(error) from error
        self.environment.discard(self, doomed)

    def truncate_to(self, offset: int) -> bool:
        """Drop everything at or above `offset`. False if there was nothing."""
        return shorten.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next record gets `offset`."""
        shorten.truncate_fully_and_start_at(self, offset)

    def advance_log_start_offset(self, offset: int) -> bool:
        """Records below `offset` are gone for readers; their segments go with the next retention pass."""
        return shorten.advance_log_start_offset(self, offset)

    def delete_old_segments(self, now_ms: int) -> int:
        """Retention by size, time and log start. Returns how many segments went."""
        return shorten.delete_old_segments(self, now_ms)

    def prepare_stop(self) -> bool:
        """Before the last flush: index and snapshot what a restart wants to find. False where that failed."""
        if self._failure is not None:
            return False
        try:
            active = self.active
            if active.size and active.touched:
                entries = len(active.time_index)
                active.seal()
                if len(active.time_index) > entries:
                    self.note_unsynced(active.time_index.file.path)
            snapshot = self.snapshots.take_last(self.producers)
            if snapshot is not None:
                self.note_unsynced(snapshot)
                self.snapshots.keep_only(self.bases)
        except OSError as error:
            self.failed(error)
            return False
        return True

    def close(self) -> None:
        """Let go of the files. Not a flush."""
        self._closed = True
        for segment in self.segments:
            segment.close()
