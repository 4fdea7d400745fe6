"""Opens the logs that a start finds on disk: locks each directory, finishes moves, and recovers the logs.

A directory that fails goes offline, and the other directories stay in use. A damaged log, or a log that may be the old
log of a move, is neither served nor changed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from penstock.disk.api import is_shortage
from penstock.log import moved_mark
from penstock.log.checkpoints import PARTITION_METADATA_FILE, parse_partition_metadata
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
    parse_log_name,
)
from penstock.log.loading import LogPlace, open_log
from penstock.log.scan import CorruptBatchError
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.uuid import ZERO_UUID
from penstock.protocol.vocabulary import METADATA_TOPIC

if TYPE_CHECKING:
    from penstock.disk.api import Disk
    from penstock.log.directories import LogDirectories
    from penstock.log.environment import LogEnvironment
    from penstock.log.log import Log
    from penstock.log.log_table import LogTable
    from penstock.protocol.vocabulary import TopicPartition

logger = logging.getLogger(__name__)

#: Logs handled before other tasks of the loop get a turn.
OPEN_SLICE = 64


class Logs(Protocol):
    """The interface of the log manager, with the methods that this module uses."""

    disk: Disk
    dirs: LogDirectories
    environment: LogEnvironment
    corruptions: dict[TopicPartition, str]

    def aside(self, directory: LogDir, name: str, suffix: str) -> str: ...

    def checkpoints(self, directory: LogDir) -> Checkpoints: ...

    def flush_soon(self, log: Log) -> None: ...

    def set_stray(self, topic: str, partition: int) -> None: ...

    def take_offline(self, directory: LogDir, error: OSError) -> None: ...


class StoredLogs:
    def __init__(self, logs: Logs, table: LogTable) -> None:
        self._logs = logs
        self._table = table

    def acquire(self, directory: LogDir, node_id: int, cluster_id: str) -> None:
        try:
            directory.acquire()
            directory.identify(node_id, cluster_id, self._logs.environment.random)
            directory.take_clean_mark()
        except OSError as error:
            self._failed_at_start(directory, error)

    def finish_moves(self) -> None:
        places: dict[str, list[LogDir]] = {}
        for directory in self._logs.dirs:
            if not directory.offline:
                try:
                    for name in directory.log_names():
                        places.setdefault(name, []).append(directory)
                except OSError as error:
                    self._failed_at_start(directory, error)
        try:
            disk, aside = self._logs.disk, self._logs.aside
            moved_mark.finish_moves(disk, places, lambda owner, name: aside(owner, name, DELETE_SUFFIX))
            moved_mark.put_replaced_logs_aside(
                disk, places, partial(read_topic_id, disk), lambda owner, name: aside(owner, name, STRAY_SUFFIX)
            )
        except OSError as error:
            raise DirectoryError(
                f"A move between log directories could not be finished ({error}): repair the disk that failed, or "
                "remove its directory from log.dirs."
            ) from error

    def _failed_at_start(self, directory: LogDir, error: OSError) -> None:
        if is_shortage(error):
            raise DirectoryError(
                f"{directory.path} can't be opened ({error.strerror or error}), though the disk did not fail: raise "
                "the process's limit of open files (ulimit -n, LimitNOFILE=), or give the process more memory."
            ) from error
        self._logs.take_offline(directory, error)

    async def load_directory(self, directory: LogDir, config_of: Callable[[str], LogConfig] | None) -> None:
        try:
            directory.remove_leftovers()
            recovery_points = directory.read_checkpoint(RECOVERY_POINT_FILE)
            log_starts = directory.read_checkpoint(LOG_START_FILE)
            high_watermarks = directory.read_checkpoint(HIGH_WATERMARK_FILE)
            cleaned = directory.read_checkpoint(CLEANER_FILE)
            damaged = False
            for count, name in enumerate(directory.log_names()):
                key = parse_log_name(name)
                assert key is not None
                if key[0] == METADATA_TOPIC:  # the metadata log opens, verifies and cuts this one itself
                    continue
                config = config_of(key[0]) if config_of is not None else LogConfig()
                log = self.load(directory, name, key, config, recovery_points.get(key, 0), log_starts.get(key, 0))
                if log is not None:
                    log.update_high_watermark(high_watermarks.get(key, 0))
                    log.note_compacted(cleaned.get(key, 0))
                    promised = max(recovery_points.get(key, 0), cleaned.get(key, 0))
                    damaged = damaged or log.log_end_offset < promised
                if count % OPEN_SLICE == OPEN_SLICE - 1:
                    await asyncio.sleep(0)
            if damaged:  # other records will get the offsets that the checkpoints promise
                directory.write_checkpoints(self._logs.checkpoints(directory))
        except OSError as error:
            self._failed_at_start(directory, error)

    def load(
        self,
        directory: LogDir,
        name: str,
        key: TopicPartition,
        config: LogConfig,
        recovery_point: int,
        log_start: int,
    ) -> Log | None:
        """Opens a log that is on disk. Returns None if it is damaged or set aside."""
        topic, partition = key
        path = directory.file(name)
        place = LogPlace(directory.path, path, topic, partition, read_topic_id(self._logs.disk, path))
        if key in self._table:
            self._refuse_second_copy(key, place)
        if not moved_mark.stays(self._logs.disk, path, self._logs.dirs):
            self._withhold(key, path)
            return None
        try:
            log = open_log(
                self._logs.environment,
                place,
                config,
                recovery_point=recovery_point,
                log_start_offset=log_start,
                clean=directory.clean,
            )
        except CorruptBatchError as error:
            # The log is neither served nor changed: the operator decides.
            known = self._table.get(key)
            if known is not None:
                raise DirectoryError(
                    f"{topic}-{partition} has two logs, one in {known.log_dir} and a damaged one in {directory.path}: "
                    "move one of them away."
                ) from error
            self._logs.corruptions[key] = str(error)
            logger.error(
                "%s is not served, because it is damaged; restore it from a replica or move it away: %s", path, error
            )
            return None
        if key in self._table:
            self._table.add_namesake(log)
        else:
            self._table.add(log)
        if directory.clean:
            return log
        if log.topic_id == ZERO_UUID and not recovery_point and log.log_end_offset:
            # The first sync of a log also syncs its topic id, so these records were never synced. They may belong to a
            # deleted topic, and a new topic may have its name.
            logger.warning(
                "%s has no topic id, because it was never synced before the crash: it is renamed to a stray directory",
                path,
            )
            self._logs.set_stray(topic, partition)
            return None
        if log.recovery_point < log.log_end_offset:
            self._logs.flush_soon(log)
        return log

    def _withhold(self, key: TopicPartition, path: str) -> None:
        """Keeps a log offline because it may be an old log: its partition may have been moved to a directory that is
        offline now."""
        offline = ", ".join(each.path for each in self._logs.dirs if each.offline)
        reason = f"the log may have been moved to {offline}, which is offline: repair the disk, or replace it"
        self._logs.corruptions[key] = reason
        logger.error("%s is not served: %s", path, reason)

    def _refuse_second_copy(self, key: TopicPartition, place: LogPlace) -> None:
        """Raises DirectoryError if the log in `place` may be a second copy of a partition that is already open.

        A log of the same name that belongs to another topic is allowed: a topic may be deleted and created again while
        one of its directories is offline.
        """
        for known in self._table.with_name(key):
            if ZERO_UUID in (known.topic_id, place.topic_id) or known.topic_id == place.topic_id:
                raise DirectoryError(
                    f"{key[0]}-{key[1]} has two logs, one in {known.log_dir} and one in {place.log_dir}: "
                    "move one of them away."
                )


def read_topic_id(disk: Disk, path: str) -> bytes:
    """Returns the topic id in the log directory `path`; ZERO_UUID if the directory has none."""
    try:
        data = disk.read_bytes(f"{path}/{PARTITION_METADATA_FILE}", 1 << 12)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return ZERO_UUID
        raise
    return parse_partition_metadata(data) or ZERO_UUID
