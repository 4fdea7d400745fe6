"""Opens the future logs that the last process left, so that their moves can continue. Kafka's `-future` directories are
opened too.

A future log belongs to the current log with its name and its topic id. A future log without a current log is an
*orphan*. It may be the only copy of the records, because the current log may be in an offline directory or lost. The
broker adopts or removes orphans once it has the metadata.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.log import moved_mark, synced_mark
from penstock.log.directory import FUTURE_SUFFIX, LOG_START_FILE, RECOVERY_POINT_FILE, LogDir
from penstock.log.epochs import common_end
from penstock.log.loading import LogPlace, open_log
from penstock.log.scan import CorruptBatchError
from penstock.log.stored_logs import read_topic_id
from penstock.protocol.errors import KafkaError
from penstock.protocol.uuid import ZERO_UUID

if TYPE_CHECKING:
    from penstock.disk.api import Disk
    from penstock.log.directories import LogDirectories
    from penstock.log.environment import LogEnvironment
    from penstock.log.future_log import FutureLog
    from penstock.log.log import Log
    from penstock.metadata.configs.topic import LogConfig
    from penstock.protocol.vocabulary import TopicPartition

logger = logging.getLogger(__name__)

#: `topic-partition.id-future`.
_FUTURE_NAME = re.compile(r"(.+)-([0-9]+)\.[0-9a-f]{32}" + FUTURE_SUFFIX)


def parse_future_name(name: str) -> TopicPartition | None:
    matched = _FUTURE_NAME.fullmatch(name)
    return (matched[1], int(matched[2])) if matched else None


@dataclass(frozen=True, slots=True)
class Leftover:
    """Holds the directory of a future log that has no current log."""

    directory: LogDir
    path: str
    topic: str
    partition: int
    topic_id: bytes


class Logs(Protocol):
    """The interface of the log manager, with the methods that this module uses."""

    disk: Disk
    dirs: LogDirectories
    corruptions: dict[TopicPartition, str]

    def get(self, topic: str, partition: int) -> Log | None: ...

    def find(self, topic: str, partition: int, topic_id: bytes) -> Log | None: ...

    def take_offline(self, directory: LogDir, error: OSError) -> None: ...


class Futures(Protocol):
    """The interface of `FutureLogs`, with the methods that this module uses."""

    @property
    def environment(self) -> LogEnvironment: ...

    def of(self, current: Log) -> FutureLog | None: ...

    def register(self, current: Log, log: Log) -> FutureLog: ...

    def remove(self, directory: LogDir, path: str) -> None: ...


class LeftoverCopies:
    def __init__(self, logs: Logs, futures: Futures) -> None:
        self._logs = logs
        self._futures = futures
        #: Future logs without a current log.
        self.orphans: list[Leftover] = []

    def load(self, config: LogConfig) -> None:
        """Opens the future logs that the previous process left. A future log without a current log is added to
        `orphans`."""
        for directory in self._logs.dirs:
            if directory.offline:
                continue
            try:
                self._load_directory(directory, config)
            except OSError as error:
                self._logs.take_offline(directory, error)

    def _load_directory(self, directory: LogDir, config: LogConfig) -> None:
        logs = self._logs
        recovery_points = directory.read_checkpoint(RECOVERY_POINT_FILE)
        log_starts = directory.read_checkpoint(LOG_START_FILE)
        for name in sorted(logs.disk.listdir(directory.path)):
            key = parse_future_name(name)
            if key is None or not logs.disk.is_dir(directory.file(name)):
                continue
            path = directory.file(name)
            topic_id = read_topic_id(logs.disk, path)
            current = logs.find(*key, topic_id)
            if current is None:
                self._load_orphan(Leftover(directory, path, *key, topic_id))
                continue
            if self._futures.of(current) is not None or current.log_dir == directory.path:
                logger.warning("removing the future log %s: it does not belong to %s", path, current.path)
                self._futures.remove(directory, path)
                continue
            place = LogPlace(directory.path, path, *key, topic_id)
            self._open(current, place, config, recovery_points.get(key, 0), log_starts.get(key, 0), directory)

    def _load_orphan(self, leftover: Leftover) -> None:
        """Adds a future log that has no current log to `orphans`, because it may be the only copy of its records.

        There are two exceptions. If the current log could not be read, the future log stays on disk, unused. If the
        future log has no topic id, but the partition has another log, the future log is removed.
        """
        logs, key = self._logs, (leftover.topic, leftover.partition)
        other = logs.get(*key)
        if key in logs.corruptions:
            logger.warning("the future log %s is left as it is: its current log could not be read", leftover.path)
        elif other is not None and leftover.topic_id == ZERO_UUID:
            logger.warning("removing the future log %s: it does not belong to %s", leftover.path, other.path)
            self._futures.remove(leftover.directory, leftover.path)
        else:
            self.orphans.append(leftover)

    def _open(
        self, current: Log, place: LogPlace, config: LogConfig, recovery_point: int, log_start: int, directory: LogDir
    ) -> None:
        try:
            log = open_log(
                self._futures.environment,
                place,
                config,
                recovery_point=recovery_point,
                log_start_offset=log_start,
                clean=directory.clean,
            )
            end = common_end(
                current.epochs,
                current.log_end_offset,
                log.epochs,
                log.log_end_offset,
                max(current.log_start_offset, log.log_start_offset),
            )
            log.truncate_to(end)
        except (CorruptBatchError, KafkaError) as error:
            logger.warning("removing the future log %s, which is damaged: %s", place.path, error)
            self._futures.remove(directory, place.path)
            return
        future = self._futures.register(current, log)
        logger.info("resuming the move of %s to %s at offset %d", current.path, place.path, future.log.log_end_offset)

    def adopt(self, leftover: Leftover) -> str:
        """Turns a future log, whose current log is gone, into the current log. Returns its new name.

        Called if the controller has assigned the replica to the future log's directory: this means that the copy had
        caught up before the old directory was lost. Removes the copy's synced mark (see `synced_mark`), because the
        last records may be missing.
        """
        self.orphans.remove(leftover)
        name = f"{leftover.topic}-{leftover.partition}"
        logger.warning(
            "the future log %s becomes the log of its partition, because the directory with the original log is gone",
            leftover.path,
        )
        disk = self._logs.disk
        synced_mark.remove_file(disk, leftover.path)
        moved_mark.mark_adopted(disk, leftover.path)
        disk.rename(leftover.path, leftover.directory.file(name))
        disk.sync_dir(leftover.directory.path)
        return name

    def of(self, topic: str, partition: int) -> list[Leftover]:
        return [each for each in self.orphans if (each.topic, each.partition) == (topic, partition)]

    def remove(self, leftover: Leftover, why: str) -> None:
        self.orphans.remove(leftover)
        logger.warning("removing the future log %s: %s", leftover.path, why)
        self._futures.remove(leftover.directory, leftover.path)
