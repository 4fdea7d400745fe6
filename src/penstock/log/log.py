"""Implements a partition's log: an ordered list of segments. Records are appended at the end and read anywhere.

log_start_offset ≤ high_watermark ≤ log_end_offset        recovery_point ≤ flushed_offset ≤ log_end_offset

An append either succeeds (file, indexes and offsets include it) or raises an error and changes nothing. After the
first disk error the log accepts no more writes: the state of the disk is unknown until recovery at the next start.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING

from penstock.check import check
from penstock.log import appending, shorten, timestamps
from penstock.log.appending import AppendInfo
from penstock.log.checkpoints import LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, render_partition_metadata
from penstock.log.flush import Durability
from penstock.log.health import LogHealth
from penstock.log.producers import AppendOrigin, ProducerStateManager
from penstock.log.roll_policy import RollPolicy
from penstock.log.scan import CorruptBatchError
from penstock.log.segment import DELETED_SUFFIX, MAX_RELATIVE_OFFSET, TIME_INDEX_SUFFIX, Segment
from penstock.log.segment_list import SegmentList
from penstock.log.slices import LogSlice
from penstock.log.snapshot_files import SnapshotFiles
from penstock.log.synced_mark import Mark
from penstock.log.timestamps import TimestampedOffset
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.header import LOG_OVERHEAD
from penstock.records.validate import AppendRules, Prepared, validate_own, validate_produced

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from penstock.log.environment import LogEnvironment
    from penstock.log.epochs import LeaderEpochCache
    from penstock.log.producers import Verification
    from penstock.log.txn_index import AbortedTransaction
    from penstock.metadata.configs.topic import LogConfig

__all__ = ["AppendInfo", "AppendOrigin", "Log", "LogSlice", "TimestampedOffset"]


@lru_cache(maxsize=1024)
def _rules_of(config: LogConfig) -> AppendRules:
    return AppendRules.of(config)


class Log:
    __slots__ = (
        "_flush_messages",
        "_rules",
        "appended_bytes",
        "cleaned_offset",
        "config",
        "durability",
        "environment",
        "epochs",
        "health",
        "high_watermark",
        "log_dir",
        "log_end_offset",
        "log_start_offset",
        "on_truncation",
        "partition",
        "path",
        "pending_swaps",
        "producers",
        "relocations",
        "rolling",
        "segments",
        "snapshots",
        "topic",
        "topic_id",
        "truncations",
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
        mark: Mark = Mark.ABSENT,
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
        #: Everything below is compacted; 0 where nothing is.
        self.cleaned_offset = 0
        #: Bytes of the batches appended since the log was opened; never goes down.
        self.appended_bytes = 0
        #: Compacted segments that wait for a sync before they replace the old ones.
        self.pending_swaps: list[Segment] = []
        #: Counts truncations, so that readers of a slice notice one.
        self.truncations = 0
        #: Called before each truncation with its offset, while the log is copied to another directory.
        self.on_truncation: Callable[[int], None] | None = None
        #: Counts moves to another directory, begun and ended.
        self.relocations = 0
        self.segments = SegmentList(segments)
        self.durability = Durability(self, recovery_point, mark)
        self.health = LogHealth(
            f"{topic}-{partition}",
            log_dir,
            disk_failed=partial(environment.disk_failed, self),
            report_corruption=partial(environment.corruption_found, self),
        )
        self.update_config(config)

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.log_start_offset}..{self.log_end_offset})"

    # Settings and state.

    @property
    def size(self) -> int:
        return self.segments.size

    @property
    def is_moving(self) -> bool:
        """True while the log is copied to another directory."""
        return self.on_truncation is not None

    @property
    def generation(self) -> int:
        """Returns a number that changes with every truncation and move.

        A flush or compaction compares the numbers before and after its work, to notice a truncation or move in between.
        """
        return self.truncations + self.relocations

    @property
    def recovery_point(self) -> int:
        return self.durability.recovery_point

    @property
    def flushed_offset(self) -> int:
        return self.durability.flushed_offset

    @property
    def offline(self) -> bool:
        return self.health.failure is not None

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        self._rules = _rules_of(config)
        #: With flush.messages=1 each produce request waits for its own fsync: no flush in the background.
        self._flush_messages = config.flush_messages if config.flush_messages > 1 else 1 << 62
        for segment in self.segments:
            segment.index_interval = config.index_interval_bytes
        self.rolling = RollPolicy(config, self.environment.random)

    @property
    def last_stable_offset(self) -> int:
        """Returns the offset below which every transaction has ended with a marker below the high watermark."""
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable > self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    def update_high_watermark(self, offset: int) -> int:
        """Raises the high watermark to `offset`, at most to the log end. Returns the high watermark."""
        offset = min(offset, self.log_end_offset)
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.producers.on_high_watermark(offset)
        return self.high_watermark

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
        """Validates the batches, assigns offsets to them and appends them. Raises KafkaError if a batch is refused.

        Raises UnpackFirstError if validating a client's batch takes long. The caller then lets `environment.unpacking`
        prepare the batch, and calls this method again with the result as `prepared`.
        """
        health = self.health
        if health.failure is not None or health.closed:
            raise health.unwritable()
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
            raise appending.larger_than_segment(self, size)
        has_producer = header.producer_id >= 0
        if has_producer:
            duplicate = self.producers.admit(header)
            if duplicate is not None:
                return appending.duplicate_of(self, duplicate)
            if verification_required and header.is_transactional:
                appending.check_verified(self, header, verification)
            if self.producers.get(header.producer_id) is None:
                appending.check_producer_room(self, now_ms)
        last_offset = base_offset + header.last_offset_delta
        segment = self.segments.active
        try:
            if self.rolling.is_due(segment, size, header.max_timestamp, last_offset, now_ms):
                segment = self.roll(last_offset, now_ms)
            segment.append(header, batch.head, batch.tail)
        except CorruptBatchError as error:
            raise health.corrupt(error) from error
        except OSError as error:
            raise health.failed(error) from error
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
        appended = self.appended_bytes = self.appended_bytes + size
        durability = self.durability
        if (
            appended - durability.flushed_bytes >= self.environment.unflushed_bytes
            or next_offset - durability.flushed_offset >= self._flush_messages
        ):
            self.environment.flush_wanted(self)

    def append_as_follower(self, records: Buffer, leader_epoch: int) -> AppendInfo | None:
        """Appends batches that were fetched from the leader of `leader_epoch`. The batches keep their offsets.

        Leaves out an incomplete batch at the end, and batches of an epoch above `leader_epoch`: only the leader of that
        epoch may send such batches. Returns None if no batch was appended.
        """
        self.health.check_writable()
        return appending.append_fetched(self, records, leader_epoch)

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Records that `epoch` starts at `start_offset`. Called when this replica becomes leader, and when the first
        batch of an epoch is appended.

        The next flush writes the epoch file. After a crash before that flush, recovery reads the epoch from the batches
        above the recovery point.
        """
        self.epochs.assign(epoch, start_offset)

    def assign_topic_id(self, topic_id: bytes) -> None:
        """Writes the topic id from the metadata image into a log that has no partition.metadata."""
        self.topic_id = topic_id
        path = f"{self.path}/{PARTITION_METADATA_FILE}"
        try:
            self.environment.disk.write_atomic(path, render_partition_metadata(topic_id), sync=False)
        except OSError as error:
            raise self.health.failed(error) from error
        self.durability.note_unsynced(path)

    # Rolling.

    def roll(self, last_offset: int | None = None, now_ms: int | None = None) -> Segment:
        """Seals the active segment, creates the next segment at the end of the log, and returns the new segment."""
        base_offset = self.log_end_offset
        if last_offset is not None and last_offset - base_offset > MAX_RELATIVE_OFFSET:
            base_offset = last_offset - MAX_RELATIVE_OFFSET
        old = self.segments.active
        if base_offset == old.base_offset:
            check(not old.size, "only an empty segment is replaced by one with the same base offset")
            return old
        if now_ms is None:
            now_ms = self.environment.clock.wall_ms()
        try:
            self._seal(old)
            snapshot = self.snapshots.take(self.producers)
            segment = Segment.create(
                self.environment.disk,
                self.path,
                base_offset,
                created_ms=now_ms,
                index_interval=self.config.index_interval_bytes,
            )
        except OSError as error:
            raise self.health.failed(error) from error
        if snapshot is not None:
            self.durability.note_unsynced(snapshot)
        if not old.size:
            self.drop_segments([old])
        self.segments.add(segment)
        self.rolling = RollPolicy(self.config, self.environment.random)
        self.environment.flush_wanted(self)
        return segment

    def _seal(self, segment: Segment) -> None:
        """Seals a segment. If this adds an entry to the time index, the next flush syncs the index file.

        After a truncation the segment may end at the recovery point; a flush syncs only segments that end above it.
        """
        entries = len(segment.time_index) if segment.size else 0
        segment.seal()
        if segment.size and len(segment.time_index) > entries:
            self.durability.note_unsynced(segment.path(TIME_INDEX_SUFFIX))

    # Reading.

    def read(self, offset: int, max_bytes: int, *, upper_bound: int, min_one_batch: bool = True) -> LogSlice:
        """Returns a slice that begins with the batch that holds `offset` and ends at or before `upper_bound`."""
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is outside of this log, which has offsets {self.log_start_offset} to "
                f"{self.log_end_offset}.",
            )
        if self.health.failure is not None:
            self.health.check_readable()
        if offset >= upper_bound:
            return LogSlice(self, None, 0, 0)
        try:
            return self.segments.slice_from(self, offset, max_bytes, upper_bound, min_one_batch)
        except CorruptBatchError as error:
            raise self.health.corrupt(error) from error
        except OSError as error:
            raise self.health.failed(error) from error

    async def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """Finds the first record at or after `timestamp`."""
        return await timestamps.first_at_or_after(self, timestamp)

    async def max_timestamp_offset(self) -> TimestampedOffset | None:
        """Finds the first record that has the largest timestamp of the log."""
        return await timestamps.first_with_max(self)

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """Returns the aborted transactions that overlap [start, end)."""
        return self.segments.aborted_between(start, end)

    # Durability: `durability` holds the state.

    async def flush(self) -> None:
        """Syncs all records appended so far, with their indexes, and moves the recovery point to the log end."""
        await self.durability.flush()

    def flush_now(self) -> None:
        """Flushes the log as `flush` does, but blocks the event loop: used when the node stops, and by tools."""
        self.durability.flush_now()

    async def flushed(self, offset: int) -> None:
        """Waits until the records below `offset` are on disk. Waiters share an fsync.

        Raises TruncatedError if the log is truncated below `offset` meanwhile.
        """
        durability = self.durability
        while offset > (self.countable_offset if self.config.fsync_before_ack else durability.flushed_offset):
            await durability.wait(offset)

    @property
    def countable_offset(self) -> int:
        """Returns the offset below which this replica's records count for the high watermark: see `synced_mark`."""
        mark = self.durability.mark
        if mark is Mark.ABSENT and not self.config.fsync_before_ack:
            return self.log_end_offset
        return self.durability.flushed_offset if mark is Mark.PRESENT else self.log_start_offset

    @property
    def is_dirty(self) -> bool:
        """True if the log has records or other state that is not flushed yet."""
        return self.health.failure is None and self.durability.is_behind

    def store(self) -> None:
        """Writes leader epochs and index entries from memory to their files, without a sync."""
        for segment in self.segments.starting_at(self.recovery_point):
            segment.store_indexes()
        if self.epochs.changed:
            path = f"{self.path}/{LEADER_EPOCH_FILE}"
            self.environment.disk.write_atomic(path, self.epochs.to_bytes(), sync=False)
            self.epochs.changed = False
            self.durability.note_unsynced(path)

    # Shortening: the steps are in `shorten.py`.

    def drop_segments(self, doomed: list[Segment]) -> None:
        """Removes the `doomed` segments from the log and queues their files for deletion.

        If the log then has no segment, the caller must add a new segment.
        """
        self.segments.remove(doomed)
        try:
            for segment in doomed:
                segment.change_suffix(DELETED_SUFFIX)
        except OSError as error:
            raise self.health.failed_midway(error) from error
        self.environment.discard(self, doomed)

    def truncate_to(self, offset: int) -> bool:
        """Removes all batches at or above `offset`. Returns False if the log had no such batches."""
        return shorten.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Removes all records; the next record gets `offset`."""
        shorten.truncate_fully_and_start_at(self, offset)

    def advance_log_start_offset(self, offset: int) -> bool:
        """Raises the log start offset to `offset`; retention deletes the segments below it later.

        Returns False if the log already starts at or above `offset`. Raises KafkaError if `offset` is above the high
        watermark.
        """
        if offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is above the high watermark {self.high_watermark}: name a committed offset.",
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        self.producers.on_log_start(offset)
        return True

    def delete_old_segments(self, now_ms: int) -> int:
        """Deletes segments that exceed retention.bytes or retention.ms, or that lie below the log start.

        Returns the number of deleted segments.
        """
        return shorten.delete_old_segments(self, now_ms)

    def begin_truncation(self, offset: int) -> None:
        """Lowers the recovery point and the compaction checkpoint to `offset`, before the files are truncated.

        Otherwise new records above `offset` would count as flushed and compacted, like the truncated records before
        them.
        """
        self.truncations += 1
        if self.on_truncation is not None:
            self.on_truncation(offset)
        durability = self.durability
        durability.forget_above(offset)
        if max(durability.recovery_point, self.cleaned_offset) > offset:
            before = durability.lower_recovery_point(offset)
            self.cleaned_offset = min(self.cleaned_offset, offset)
            try:
                self.environment.recovery_point_lowered(self)
            except OSError as error:
                durability.restore_recovery_point(before)  # no file has changed yet: the caller may try again
                raise self.health.failed(error) from error

    def end_at(self, offset: int) -> None:
        """Sets the log end offset to `offset`, after the files were truncated to `offset`. Lowers the high watermark
        and the log start offset to `offset` if they are above it."""
        self.log_end_offset = offset
        self.high_watermark = min(self.high_watermark, offset)
        if self.log_start_offset > offset:
            self.log_start_offset = offset
            self.environment.recovery_point_lowered(self)

    def restart_at(self, segment: Segment) -> None:
        """Adds `segment` to a log that has no segments. The log is then empty and starts at the
        segment's base offset.
        """
        offset = segment.base_offset
        self.segments.add(segment)
        self.log_start_offset = self.log_end_offset = self.high_watermark = offset
        self.durability.restart_at(offset)

    def note_compacted(self, offset: int) -> None:
        """Records that all segments below `offset` are compacted."""
        self.cleaned_offset = min(offset, self.log_end_offset)

    def prepare_stop(self) -> bool:
        """Completes the indexes and takes a producer snapshot for the stop. Returns False after a disk error."""
        if self.health.failure is not None:
            return False
        try:
            active = self.segments.active
            if active.size and active.touched:
                self._seal(active)
            snapshot = self.snapshots.take_last(self.producers)
            if snapshot is not None:
                self.durability.note_unsynced(snapshot)
                self.snapshots.keep_only(self.segments.bases)
        except OSError as error:
            self.health.failed(error)
            return False
        return True

    def close(self) -> None:
        """Closes the files of the log, without a flush."""
        self.health.closed = True
        for segment in self.segments:
            segment.close()
