"""Manages all logs of a node: opens, creates, deletes and flushes them, and writes their checkpoints.

    open ──► lock and identify each directory ──► load its logs (recover them unless the stop was clean) ──► serve
    close ──► flush and close every log ──► checkpoints ──► the clean-shutdown marker ──► unlock

A directory that fails goes offline with all its logs, and the broker is notified; the other directories stay in use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from penstock.allowance import UNLIMITED, Allowance
from penstock.disk.api import is_shortage
from penstock.log import directory_flush
from penstock.log.checkpoints import (
    PARTITION_METADATA_FILE,
    Incarnation,
    render_partition_metadata,
)
from penstock.log.directories import LogDirectories
from penstock.log.directory import (
    CLEANER_FILE,
    DELETE_SUFFIX,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    STRAY_SUFFIX,
    Checkpoints,
    DirectoryError,
    LogDir,
)
from penstock.log.environment import DAY_MS, LogEnvironment
from penstock.log.future_logs import FutureLogs
from penstock.log.leftover_copies import Leftover
from penstock.log.loading import LogPlace, create_log
from penstock.log.log_table import LogTable
from penstock.log.removal import Removal
from penstock.log.scan import CorruptBatchError
from penstock.log.stored_logs import StoredLogs, read_topic_id
from penstock.log.synced_mark import Mark
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import ZERO_UUID
from penstock.protocol.vocabulary import METADATA_TOPIC

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.disk.api import Disk
    from penstock.log.log import Log
    from penstock.log.segment import Segment
    from penstock.protocol.vocabulary import TopicPartition

logger = logging.getLogger(__name__)

__all__ = ["DirectoryError", "LogDir", "LogManager"]


class LogManager:
    def __init__(
        self,
        disk: Disk,
        dirs: Sequence[str],
        clock: Clock,
        *,
        random: Random | None = None,
        on_offline: Callable[[LogDir, OSError], None] | None = None,
        on_corruption: Callable[[TopicPartition, str], None] | None = None,
        producer_expiration_ms: int = DAY_MS,
        max_producer_ids: int = UNLIMITED,
        metadata_dir: str | None = None,
        cordoned: frozenset[str] = frozenset(),
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.dirs = LogDirectories(disk, dirs, metadata_dir, cordoned)
        self.removal = Removal(disk, clock)
        self.on_offline = on_offline
        self._on_corruption = on_corruption
        self.environment = LogEnvironment(
            disk,
            clock,
            random if random is not None else Random(0),  # noqa: S311 (directory ids and jitter)
            producer_expiration_ms=producer_expiration_ms,
            producer_ids=Allowance(max_producer_ids),
            disk_failed=self._disk_failed,
            corruption_found=self._corruption_found,
            recovery_point_lowered=self._recovery_point_lowered,
            discard=self._discard,
            flush_wanted=self.flush_soon,
        )
        self.environment.producer_ids.counted_by(lambda: sum(len(log.producers) for log in self._table))
        self._table = LogTable(directory.path for directory in self.dirs.all)
        self._stored = StoredLogs(self, self._table)
        self.futures = FutureLogs(self)
        #: Logs that asked for a flush; `Maintenance` flushes them.
        self.flush_queue: dict[Log, None] = {}
        self.flush_requested = asyncio.Event()
        #: The last damage found in each partition, for the operator.
        self.corruptions: dict[TopicPartition, str] = {}

    def __iter__(self) -> Iterator[Log]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def get(self, topic: str, partition: int) -> Log | None:
        return self._table.get((topic, partition))

    def find(self, topic: str, partition: int, topic_id: bytes) -> Log | None:
        """Returns the log of this partition with this topic id; None if there is no such log.

        A deleted topic with the same name may have left a log with the same name and partition.
        """
        known = self._table.with_name((topic, partition))
        return next((log for log in known if log.topic_id == topic_id), None)

    def synced_partitions(self) -> dict[bytes, list[int]]:
        """Returns the partitions whose logs have a synced mark (`synced_mark` explains it), grouped by topic id."""
        found: dict[bytes, list[int]] = {}
        for log in self._table.with_namesakes():
            if log.durability.mark is Mark.PRESENT:
                found.setdefault(log.topic_id, []).append(log.partition)
        return found

    # Starting.

    async def open(
        self, *, node_id: int = 0, cluster_id: str = "", config_of: Callable[[str], LogConfig] | None = None
    ) -> None:
        """Opens every log. Raises DirectoryError or DirectoryLockedError if this node may not use a directory."""
        try:
            for directory in self.dirs.all:
                self._stored.acquire(directory, node_id, cluster_id)
            self._check_usable()
            self._stored.finish_moves()
            for directory in self.dirs.all:
                if not directory.offline:
                    await self._stored.load_directory(directory, config_of)
            self._check_usable()  # a disk may have failed while its logs were loaded
            self.futures.leftovers.load(LogConfig())
        except BaseException:
            self.abandon()
            raise

    def _check_usable(self) -> None:
        if all(directory.offline for directory in self.dirs):
            reasons = "; ".join(f"{each.path}: {each.failure}" for each in self.dirs)
            raise DirectoryError(f"No log directory can be used ({reasons}): free some space or replace the disk.")

    def note_incarnation(self, broker_epoch: int, asking: bytes = ZERO_UUID) -> None:
        """Writes the incarnation file, with `broker_epoch`, into each directory for partitions.

        While a process registers, it has no broker epoch yet: it passes the epoch of the previous process, and its own
        incarnation id as `asking`. If a directory is offline, removes the file from all directories, because unsynced
        writes to the offline directory may be lost.
        """
        for directory in self.dirs:
            if not self.dirs.any_offline:
                try:
                    directory.note_incarnation(Incarnation(broker_epoch, asking))
                except OSError as error:
                    self.take_offline(directory, error)
        if self.dirs.any_offline:
            self.dirs.forget_incarnation()

    def relocated(self, log: Log, source: LogDir) -> None:
        """Updates the log counts of both directories and queues the log for a flush. Called when a move of `log` out of
        `source` has ended."""
        self._table.relocated(log, source.path)
        self.flush_soon(log)

    # Making and removing logs.

    def create(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        config: LogConfig,
        *,
        directory_id: bytes | None = None,
        start_offset: int = 0,
    ) -> Log:
        """Creates a log in the directory that `LogDirectories.for_new_log` chooses."""
        known = self._table.get((topic, partition))
        if known is not None:
            raise KafkaError(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"{topic}-{partition} already has a log in {known.log_dir}."
            )
        directory = self.dirs.for_new_log(topic, directory_id, self._table.counts)
        path = directory.file(f"{topic}-{partition}")
        place = LogPlace(directory.path, path, topic, partition, topic_id)
        try:
            if (topic, partition) in self.corruptions:
                self._set_unreadable_aside((topic, partition), topic_id)
            if directory.remembers((topic, partition)):
                # Removes lines of a deleted log: after a crash they would be taken for the new log's.
                directory.write_checkpoints(self.checkpoints(directory))
            self._clear_name(directory, f"{topic}-{partition}")
            self.disk.mkdir(path)
            log = create_log(self.environment, place, config, start_offset)
            if topic_id != ZERO_UUID:
                metadata = f"{path}/{PARTITION_METADATA_FILE}"
                self.disk.write_new(metadata, render_partition_metadata(topic_id))
                log.durability.note_unsynced(metadata)
        except OSError as error:
            self.take_offline(directory, error)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"Directory {directory.path} failed ({error.strerror or error}): see the broker's log.",
            ) from error
        self._table.add(log)
        return log

    def adopt(self, orphan: Leftover, config: LogConfig) -> Log | None:
        """Makes a future log the current log of its partition, because the partition's own log is lost.

        Returns None if the future log can't be read.
        """
        directory, key = orphan.directory, (orphan.topic, orphan.partition)
        try:
            points = directory.read_checkpoint(RECOVERY_POINT_FILE)
            starts = directory.read_checkpoint(LOG_START_FILE)
            name = self.futures.leftovers.adopt(orphan)
            self._stored.load(directory, name, key, config, points.get(key, 0), starts.get(key, 0))
        except OSError as error:
            self.take_offline(directory, error)
        return self._table.get(key)

    def _set_unreadable_aside(self, key: TopicPartition, topic_id: bytes) -> None:
        """Renames the directory of a log that the start could not read, if the log belongs to a deleted topic.

        Raises KafkaError if the log belongs to the topic `topic_id`, because it may be the only copy of the records.
        """
        name = f"{key[0]}-{key[1]}"
        for directory in self.dirs:
            path = directory.file(name)
            if directory.offline or not self.disk.exists(path):
                continue
            if read_topic_id(self.disk, path) in (topic_id, ZERO_UUID):
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{path} can't be read ({self.corruptions[key]}): restore it, or move it away to start "
                    "with an empty log.",
                )
            self.disk.rename(path, self.aside(directory, name, STRAY_SUFFIX))
        del self.corruptions[key]

    def _clear_name(self, directory: LogDir, name: str) -> None:
        """Renames a directory that has the name of a new log, so that the new log does not take over its files.

        Such a directory is left, for example, if the rename failed when its log was deleted.
        """
        path = directory.file(name)
        if not self.disk.exists(path):
            return
        suffix = STRAY_SUFFIX if directory.has_records(name) else DELETE_SUFFIX
        target = self.aside(directory, name, suffix)
        logger.warning("directory %s is in the way of a new log of the same name: it is renamed to %s", path, target)
        self.disk.rename(path, target)
        if suffix == DELETE_SUFFIX:
            self.removal.add_directory(target, 0)

    def aside(self, directory: LogDir, name: str, suffix: str) -> str:
        unique = self.environment.random.randbytes(16).hex()
        room = 255 - len(unique) - len(suffix) - 1
        return directory.file(f"{name[:room]}.{unique}{suffix}")

    def claim(self, topic: str, partition: int, topic_id: bytes) -> Log | None:
        """Returns the partition's log if it is on disk; None otherwise.

        If a deleted topic with the same name left a log, renames that log as a stray. This happens if the topic was
        deleted and created again while a log directory was offline.
        """
        log = self._table.get((topic, partition))
        if log is None:
            return None
        namesakes = self._table.take_namesakes((topic, partition))
        if log.topic_id not in (topic_id, ZERO_UUID):
            self.set_stray(topic, partition)
        for other in namesakes:
            if other.topic_id == topic_id:
                self._table.add(other)
            else:
                self._close_and_rename(other, STRAY_SUFFIX)
        return self._table.get((topic, partition))

    def delete(self, topic: str, partition: int) -> None:
        """Deletes the log: renames its directory now and removes it after file.delete.delay.ms."""
        self._put_aside(topic, partition, DELETE_SUFFIX)

    def set_stray(self, topic: str, partition: int) -> None:
        """Closes a log that is not in the metadata and renames its directory; the files are kept."""
        self._put_aside(topic, partition, STRAY_SUFFIX)

    def _put_aside(self, topic: str, partition: int, suffix: str) -> None:
        log = self._table.get((topic, partition))
        if log is None:
            return
        self._table.remove(log)
        self.corruptions.pop((topic, partition), None)
        self._close_and_rename(log, suffix)
        for other in self._table.take_namesakes((topic, partition)):
            self._close_and_rename(other, STRAY_SUFFIX)

    def _close_and_rename(self, log: Log, suffix: str) -> None:
        future = self.futures.of(log)
        if future is not None:
            self.futures.drop(future)
        self.flush_queue.pop(log, None)
        log.close()
        self.futures.put_old_aside(log, suffix)
        directory = self.dirs.of(log)
        if directory.offline:
            return
        target = self.aside(directory, f"{log.topic}-{log.partition}", suffix)
        try:
            self.disk.rename(log.path, target)
        except OSError as error:
            self.take_offline(directory, error)
            return
        if suffix == DELETE_SUFFIX:
            self.removal.add_directory(target, log.config.file_delete_delay_ms)

    # Callbacks of logs.

    def _disk_failed(self, log: Log, error: OSError) -> None:
        self.take_offline(self.dirs.of(log), error)

    def take_offline(self, directory: LogDir, error: OSError) -> None:
        """Takes the directory and its logs offline, unless the error is a lack of descriptors or memory."""
        if directory.offline:
            return
        if is_shortage(error):
            logger.error(
                "log directory %s could not be used for lack of descriptors or memory, and stays online: %s",
                directory.path,
                error,
            )
            return
        directory.failure = error
        for log in self._logs_in(directory):
            log.health.take_offline(error)
            self.flush_queue.pop(log, None)
        if self.on_offline is not None:
            self.on_offline(directory, error)

    def _corruption_found(self, log: Log, reason: str) -> None:
        """Records damage in a log and notifies the owner. Ignores repeated reports of the same damage, because each
        read of the damaged batch reports it."""
        key = (log.topic, log.partition)
        if self.corruptions.get(key) == reason:
            return
        self.corruptions[key] = reason
        if self._on_corruption is not None:
            self._on_corruption(key, reason)

    def _recovery_point_lowered(self, log: Log) -> None:
        directory = self.dirs.of(log)
        directory.write_checkpoints(self.checkpoints(directory))

    def _discard(self, log: Log, segments: list[Segment]) -> None:
        self.removal.add_segments(segments, log.config.file_delete_delay_ms)

    def flush_soon(self, log: Log) -> None:
        """Queues the log for a flush by `Maintenance`, which also writes the new recovery point to the checkpoint
        file."""
        self.flush_queue[log] = None
        self.flush_requested.set()

    # Background work.

    def apply_retention(self) -> int:
        """Deletes expired segments (retention.ms, retention.bytes) in all logs. Returns how many were deleted."""
        now_ms = self.clock.wall_ms()
        return sum(self.retain(log, now_ms) for log in self)

    def retain(self, log: Log, now_ms: int) -> int:
        if log.topic == METADATA_TOPIC or log.offline:
            return 0
        try:
            return log.delete_old_segments(now_ms)
        except (KafkaError, CorruptBatchError) as error:
            logger.error("no segment of %s could be deleted by retention: %s", log, error)
            return 0

    def expire_producers(self) -> int:
        now_ms = self.clock.wall_ms()
        return sum(log.producers.remove_expired(now_ms, self.environment.producer_expiration_ms) for log in self)

    def _all(self) -> list[Log]:
        """Returns all logs: current logs, future logs of moves, and logs that have the same name as a current log.

        If two directories have a log of the same name, `claim` decides later which log belongs to the current topic.
        """
        return [*self._table.with_namesakes(), *(future.log for future in self.futures)]

    def _logs_in(self, directory: LogDir) -> list[Log]:
        return [log for log in self._all() if log.log_dir == directory.path]

    def checkpoints(self, directory: LogDir) -> Checkpoints:
        logs = [((log.topic, log.partition), log) for log in self._logs_in(directory)]
        return {
            RECOVERY_POINT_FILE: {key: log.recovery_point for key, log in logs},
            # Kafka leaves out logs that start with their first segment; but a crash may bring a deleted segment back.
            LOG_START_FILE: {key: log.log_start_offset for key, log in logs if log.log_start_offset > 0},
            HIGH_WATERMARK_FILE: {key: log.high_watermark for key, log in logs},
            CLEANER_FILE: {key: log.cleaned_offset for key, log in logs if log.cleaned_offset > 0},
        }

    def write_checkpoints(self, directories: Iterable[LogDir] | None = None) -> bool:
        """Writes the checkpoints of these directories (by default of all directories). Blocks the event loop. Returns
        False if a write failed."""
        written = True
        for directory in self.dirs.all if directories is None else directories:
            if not directory.offline:
                try:
                    directory.write_checkpoints(self.checkpoints(directory))
                except OSError as error:
                    self.take_offline(directory, error)
                    written = False
        return written

    async def save_checkpoints(self, directories: Iterable[LogDir] | None = None) -> bool:
        """Writes checkpoints as `write_checkpoints` does, without blocking the event loop. Returns False if a write
        failed."""
        written = True
        for directory in self.dirs.all if directories is None else directories:
            if not directory.offline:
                try:
                    await directory.save_checkpoints(partial(self.checkpoints, directory))
                except OSError as error:
                    self.take_offline(directory, error)
                    written = False
        return written

    async def flush_all(self, directory: LogDir, logs: list[Log]) -> bool:
        """Flushes these logs of one directory. Returns False if the flush of a log failed."""
        try:
            return await directory_flush.flush_all(self.disk, directory.path, logs)
        except OSError as error:
            self.take_offline(directory, error)
            return False

    # Stopping.

    async def close(self, *, broker_epoch: int = -1) -> None:
        """Flushes and closes every log, and writes the clean-shutdown marker into each directory.

        With the marker, the next start does not verify the logs. A directory in which a flush failed gets no marker.
        """
        unfinished: set[str] = set()
        logs = self._all()
        for log in logs:
            await log.durability.settle()
            if not log.prepare_stop():
                logger.error(
                    "%s could not be prepared for the stop: the next start verifies the logs of this directory",
                    log,
                )
                unfinished.add(log.log_dir)
        for directory in self.dirs.all:
            dirty = [log for log in self._logs_in(directory) if log.is_dirty]
            if not directory.offline and not await self.flush_all(directory, dirty):
                unfinished.add(directory.path)
        unfinished.update(each.path for each in self.dirs.all if not self.write_checkpoints([each]))
        for log in logs:
            log.close()
        for directory in self.dirs.all:
            if not directory.offline and directory.path not in unfinished:
                try:
                    directory.leave_clean_mark(broker_epoch)
                except OSError as error:
                    self.take_offline(directory, error)
            directory.release()
        self._table.clear()
        self.disk.close()

    def abandon(self) -> None:
        """Closes all logs without a flush, like a crash: the next start recovers them."""
        for log in self._all():
            log.close()
        for directory in self.dirs.all:
            directory.release()
        self._table.clear()
        self.disk.close()
