"""Creates and removes the future logs of a node, and swaps them with their current logs.

    create ──► (copied by the move) ──► prepare ──► swap ──► retire
                                        on disk     in one   the old log is renamed for removal
                                                    step

A crash before the swap leaves the current log and a future log that the next start resumes: see `leftover_copies`. A
crash after the swap leaves both logs under their final name, and `moved_mark` tells which log is old. The old log is
removed last, after the whole new log is on disk.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from penstock.check import check
from penstock.log import leftover_copies, moved_mark
from penstock.log.checkpoints import PARTITION_METADATA_FILE, render_partition_metadata
from penstock.log.directory import DELETE_SUFFIX, FUTURE_SUFFIX, LogDir
from penstock.log.future_log import FutureLog, finished
from penstock.log.loading import LogPlace, create_log
from penstock.log.swap import cancel_swaps
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import ZERO_UUID

if TYPE_CHECKING:
    from penstock.log.environment import LogEnvironment
    from penstock.log.log import Log
    from penstock.log.removal import Removal
    from penstock.log.segment import Segment

logger = logging.getLogger(__name__)

#: Bytes that follow the topic's name in the name of its future log, with a partition of one digit.
NAME_OVERHEAD = len("-0.") + 32 + len(FUTURE_SUFFIX)
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Retired:
    """Holds the old log of a move, after the new log has replaced it."""

    log: Log
    directory: LogDir
    path: str
    segments: list[Segment]


class Logs(leftover_copies.Logs, Protocol):
    """The interface of the log manager, with the methods that this module uses."""

    removal: Removal
    environment: LogEnvironment

    def aside(self, directory: LogDir, name: str, suffix: str) -> str: ...

    def relocated(self, log: Log, source: LogDir) -> None: ...

    def write_checkpoints(self, directories: Iterable[LogDir] | None = None) -> bool: ...

    async def save_checkpoints(self, directories: Iterable[LogDir] | None = None) -> bool: ...


class FutureLogs:
    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._by_current: dict[Log, FutureLog] = {}
        self.leftovers = leftover_copies.LeftoverCopies(logs, self)
        #: Old logs that were not renamed yet, by path, and those of them whose renaming is tried again.
        self._retiring: dict[str, Retired] = {}
        self._postponed: list[Retired] = []

    def __iter__(self) -> Iterator[FutureLog]:
        return iter(list(self._by_current.values()))

    def get(self, topic: str, partition: int) -> FutureLog | None:
        current = self._logs.get(topic, partition)
        return None if current is None else self.of(current)

    def of(self, current: Log) -> FutureLog | None:
        return self._by_current.get(current)

    @property
    def environment(self) -> LogEnvironment:
        """Returns the environment of future logs, which have their own callbacks.

        For example, their removed files are deleted without a delay, because no client reads a future log.
        """
        return replace(
            self._logs.environment,
            disk_failed=self._disk_failed,
            corruption_found=lambda log, reason: logger.error("the future log %s is damaged: %s", log.path, reason),
            discard=_remove_segments,
            flush_wanted=lambda log: None,
        )

    def _disk_failed(self, log: Log, error: OSError) -> None:
        """Takes the directory of a future log offline after a disk error. A full disk only ends the move."""
        if error.errno not in _FULL:
            self._logs.take_offline(self._logs.dirs.of(log), error)

    # Creating and removing.

    def create(self, current: Log, directory: LogDir) -> FutureLog:
        """Creates the future log of a move to `directory`. Raises KafkaError if it can't be created."""
        logs, key = self._logs, (current.topic, current.partition)
        check(not current.is_moving, "a log has one future log at most")
        disk = logs.disk
        name = f"{current.topic}-{current.partition}"
        if directory.file(name) in self._retiring:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{directory.file(name)}, the old log of a move, is not removed yet: request the move again soon.",
            )
        if disk.exists(directory.file(name)):
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{directory.file(name)} exists already: move it away, and request the move again.",
            )
        path = directory.file(f"{name}.{logs.environment.random.randbytes(16).hex()}{FUTURE_SUFFIX}")
        place = LogPlace(directory.path, path, current.topic, current.partition, current.topic_id)
        try:
            if directory.remembers(key):
                logs.write_checkpoints([directory])  # without lines of a log that was here before
            disk.mkdir(path)
            log = create_log(self.environment, place, current.config, current.log_start_offset)
            if current.topic_id != ZERO_UUID:
                metadata = f"{path}/{PARTITION_METADATA_FILE}"
                disk.write_new(metadata, render_partition_metadata(current.topic_id))
                log.durability.note_unsynced(metadata)
        except OSError as error:
            if error.errno not in _FULL:
                logs.take_offline(directory, error)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{path} could not be created: {error.strerror or error}."
            ) from error
        return self.register(current, log)

    def register(self, current: Log, log: Log) -> FutureLog:
        future = FutureLog(current, log)
        current.on_truncation = future.note_truncation
        current.relocations += 1  # a compaction under way is dropped: see `Cleaner`
        cancel_swaps(current)
        self._by_current[current] = future
        return future

    def drop(self, future: FutureLog) -> None:
        """Removes the future log of a move that was cancelled or has failed. The current log stays in use."""
        self.detach(future)
        self.discard(future)

    def detach(self, future: FutureLog) -> None:
        """Detaches `future` from its current log, and keeps its files. No-op if the current log has another future
        log."""
        current = future.current
        if self._by_current.get(current) is future:
            current.on_truncation = None
            current.relocations += 1
            del self._by_current[current]

    def discard(self, future: FutureLog, *, keep_files: bool = False) -> None:
        """Closes a detached future log, and renames its files for removal unless `keep_files` is set."""
        log = future.log
        if not log.health.closed:
            log.close()
            if not keep_files:
                self._unmark_current(future.current)
                self.remove(self._logs.dirs.of(log), log.path)

    def _unmark_current(self, current: Log) -> None:
        """Removes the mark that `current` will leave its directory, because the log stays there (see `moved_mark`).

        No-op if another move of the log has begun, or if the log is offline.
        """
        if self.of(current) is None and not current.offline:
            try:
                moved_mark.remove_leaving(self._logs.disk, current.path)
            except OSError as error:
                current.health.failed(error)

    def remove(self, directory: LogDir, path: str) -> None:
        """Renames the directory of a future log, so that it is removed later."""
        if directory.offline:
            return
        name = path.rpartition("/")[2]
        target = self._logs.aside(directory, name.rpartition(".")[0], DELETE_SUFFIX)
        try:
            self._logs.disk.rename(path, target)
        except OSError as error:
            self._logs.take_offline(directory, error)
            return
        self._logs.removal.add_directory(target, 0)

    # Ending a move.

    async def prepare(self, future: FutureLog) -> None:
        """Makes the copy ready for the swap: syncs it, and writes its checkpoint and the marks of the move (see
        `moved_mark`).

        Raises KafkaError if a sync or a write fails.
        """
        logs, log = self._logs, future.log
        start = log.log_start_offset
        await future.make_durable()
        if not await logs.save_checkpoints([logs.dirs.of(log)]):
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"The checkpoints of {log.log_dir} could not be written: see the broker's log.",
            )
        await self.mark(future)
        future.note_prepared(start)

    async def mark(self, future: FutureLog) -> None:
        """Writes the leaving mark of the current log and the moved mark of the copy. Raises KafkaError if a write
        fails.

        Called before the broker reports the new directory to the controller. After that report, a node that starts
        without the old directory uses the copy as the replica's log. If a later start finds both directories, the marks
        tell which log is old.
        """
        logs, log = self._logs, future.log
        try:
            older = await finished(logs.disk.run(self._mark_current, future.current, logs.dirs.of(log)))
        except OSError as error:
            raise _refused_by_source(future.current, error) from error
        try:
            sources = older | {logs.dirs.of(future.current).directory_id}
            await logs.disk.run(moved_mark.write, logs.disk, log.path, sources)
        except OSError as error:
            raise log.health.failed(error) from error

    def _mark_current(self, current: Log, target: LogDir) -> frozenset[bytes]:
        """Writes the leaving mark of the current log, and removes outdated ids from its moved mark (see `moved_mark`).

        Returns the remaining ids in the moved mark. These directories may still hold an older log of the partition:
        they are offline, or their older log is not removed yet.
        """
        disk, dirs = self._logs.disk, self._logs.dirs
        older = moved_mark.read(disk, current.path)
        if older:
            waiting = {each.directory for each in list(self._retiring.values()) if each.log is current}
            older -= {each.directory_id for each in dirs if not each.offline and each not in waiting}
            moved_mark.write(disk, current.path, older)
        if target.directory_id not in moved_mark.read_leaving(disk, current.path):
            moved_mark.write_leaving(disk, current.path, target.directory_id)
        return older

    def swap(self, future: FutureLog, tail_bytes: int) -> Retired | None:
        """Makes the future log the current log, without yielding to the event loop.

        Returns None, and changes nothing, if more than `tail_bytes` are left to copy or the copy is not prepared.
        Raises KafkaError if an operation before the rename fails; then the current log stays in use.
        """
        current, log = future.current, future.log
        if not future.is_prepared or not future.copy_tail(tail_bytes) or not future.is_prepared:
            return None
        future.hand_over_state()
        logs = self._logs
        source, target = logs.dirs.of(current), logs.dirs.of(log)
        path = target.file(f"{current.topic}-{current.partition}")
        try:
            logs.disk.rename(log.path, path)
        except OSError as error:
            raise log.health.failed(error) from error
        retired = Retired(current, source, current.path, list(current.segments))
        self._retiring[retired.path] = retired
        self.detach(future)
        _take_over(current, log, path)
        logs.relocated(current, source)
        return retired

    async def retire(self, retired: Retired) -> None:
        """Renames the old log for removal, after the new log's name is on disk. Readers can still use the old segments.

        After a lack of descriptors or memory, `retire_postponed` tries again. After any other error, the next start of
        the node renames the old log.
        """
        logs = self._logs
        target, path = logs.dirs.of(retired.log), retired.log.path
        if not await self._sync_new_name(retired.log, target):
            if self._is_retiring(retired) and not target.offline:
                self._postponed.append(retired)
            return
        if not self._is_retiring(retired):
            return  # the log was deleted meanwhile, and the old log with it; another log may have its name
        self._rename_old(retired, DELETE_SUFFIX)
        if self._is_retiring(retired):
            if not retired.directory.offline:
                self._postponed.append(retired)
            return
        await self._forget_source(retired, path)

    async def retire_postponed(self) -> None:
        """Tries again to rename the old logs that `retire` could not rename for lack of descriptors or memory."""
        postponed, self._postponed = self._postponed, []
        for retired in postponed:
            if self._is_retiring(retired):
                await self.retire(retired)

    def put_old_aside(self, log: Log, suffix: str) -> None:
        """Renames the old logs that `log` has replaced in earlier moves, if they still have their original names.

        Called when `log` itself is renamed. The old logs are in other directories; normally `retire` has renamed them.
        """
        for retired in [each for each in self._retiring.values() if each.log is log]:
            self._rename_old(retired, suffix)
            self._retiring.pop(retired.path, None)

    def _is_retiring(self, retired: Retired) -> bool:
        return self._retiring.get(retired.path) is retired

    async def _sync_new_name(self, log: Log, target: LogDir) -> bool:
        logs = self._logs
        try:
            await logs.disk.run(logs.disk.sync_dir, target.path)
        except OSError as error:
            logs.take_offline(target, error)
            return False
        if not await logs.save_checkpoints([target]):
            return False
        await log.durability.old_path_released()
        return True

    def _rename_old(self, retired: Retired, suffix: str) -> None:
        """Renames the old log of a move, unless its directory is offline. After a failed rename, the old log stays in
        `_retiring`, the logs that are still to be renamed."""
        logs, log = self._logs, retired.log
        if retired.directory.offline:
            return
        aside = logs.aside(retired.directory, f"{log.topic}-{log.partition}", suffix)
        try:
            logs.disk.rename(retired.path, aside)
        except OSError as error:
            logs.take_offline(retired.directory, error)
            return
        del self._retiring[retired.path]
        for segment in retired.segments:
            segment.moved_to(aside)
        if suffix == DELETE_SUFFIX:
            logs.removal.add_directory(aside, log.config.file_delete_delay_ms, retired.segments)
        else:
            for segment in retired.segments:
                segment.close()

    async def _forget_source(self, retired: Retired, path: str) -> None:
        """Syncs the rename of the old log, then removes the old log from the checkpoints and its directory from the
        moved mark of the new log (see `moved_mark`)."""
        logs, log, disk = self._logs, retired.log, self._logs.disk
        try:
            await disk.run(disk.sync_dir, retired.directory.path)
        except OSError as error:
            logs.take_offline(retired.directory, error)
            return
        await logs.save_checkpoints([retired.directory])
        if logs.get(log.topic, log.partition) is log and log.path == path:
            try:
                await disk.run(moved_mark.forget, disk, path, [retired.directory.directory_id])
            except OSError as error:
                log.health.failed(error)


def _refused_by_source(current: Log, error: OSError) -> KafkaError:
    """Returns the error for a move that ends because the leaving mark of the current log can't be written.

    After a disk error, takes the current log offline. If the disk is only full, clients can still read the log.
    """
    if error.errno in _FULL:
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{current.log_dir} is full, and a move out of it needs a few bytes there: delete records, and ask again.",
        )
    return current.health.failed(error)


def _remove_segments(_: Log, segments: list[Segment]) -> None:
    for segment in segments:
        segment.remove_files()


def _take_over(current: Log, log: Log, path: str) -> None:
    """Gives the current log the files of the future log, whose directory was renamed to `path`."""
    old = log.path
    for segment in log.segments:
        segment.moved_to(path)
    log.snapshots.moved_to(path)
    current.segments = log.segments
    current.snapshots = log.snapshots
    current.epochs = log.epochs
    current.producers = log.producers
    current.log_dir, current.path = log.log_dir, path
    current.health.moved_to(log.log_dir)
    current.durability.take_over(
        log.durability, (path + each.removeprefix(old) for each in log.durability.unsynced_files)
    )
