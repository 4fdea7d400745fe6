"""The log directories of a node: lists them, chooses the one for a new log, and tracks which have failed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, overload

from penstock.log.checkpoints import Incarnation
from penstock.log.directory import LogDir
from penstock.log.free_space import FreeSpace
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import ZERO_UUID
from penstock.protocol.vocabulary import METADATA_TOPIC

if TYPE_CHECKING:
    from penstock.disk.api import Disk
    from penstock.log.log import Log

logger = logging.getLogger(__name__)

#: Longer paths name no directory: the limit of Linux.
MAX_PATH_CHARACTERS = 4096


class LogDirectories(Sequence[LogDir]):
    """A sequence of the log directories that hold partitions. `metadata` is the directory of the metadata log; it is
    often one of these directories."""

    def __init__(self, disk: Disk, paths: Sequence[str], metadata_path: str | None, cordoned: frozenset[str]) -> None:
        self._disk = disk
        self._for_partitions = [LogDir(disk, _normal(path)) for path in paths]
        self.metadata = self._metadata_directory(disk, metadata_path)
        #: Paths of directories that get new logs only if no other directory can have them.
        self.cordoned = cordoned
        self.free_space = FreeSpace(disk)
        self._by_path = {directory.path: directory for directory in self.all}

    def _metadata_directory(self, disk: Disk, path: str | None) -> LogDir:
        if path is None:
            return self._for_partitions[0]
        path = _normal(path)
        return next((each for each in self._for_partitions if each.path == path), None) or LogDir(disk, path)

    def __len__(self) -> int:
        return len(self._for_partitions)

    @overload
    def __getitem__(self, slot: int) -> LogDir: ...
    @overload
    def __getitem__(self, slot: slice) -> list[LogDir]: ...
    def __getitem__(self, slot: int | slice) -> LogDir | list[LogDir]:
        return self._for_partitions[slot]

    @property
    def all(self) -> list[LogDir]:
        """Returns the directories for partitions, and the metadata log's directory if that is a separate one."""
        for_partitions = self._for_partitions
        return for_partitions if self.metadata in for_partitions else [*for_partitions, self.metadata]

    def of(self, log: Log) -> LogDir:
        return self._by_path[log.log_dir]

    def find(self, path: str) -> LogDir | None:
        """Returns the log directory at `path`, which may be a symbolic link or contain `..`; None if no directory for
        partitions is there."""
        if not path or "\0" in path or len(path) > MAX_PATH_CHARACTERS:
            return None
        wanted = self._disk.real_path(path)
        return next((each for each in self if self._disk.real_path(each.path) == wanted), None)

    def cordon(self, paths: frozenset[str]) -> None:
        """Cordons exactly these directories: a new log is created in a cordoned directory only if no other directory
        can hold it."""
        self.cordoned = paths

    def for_new_log(self, topic: str, directory_id: bytes | None, log_counts: Mapping[str, int]) -> LogDir:
        """Returns the directory for a new log: the one with `directory_id`; without an id, the one with the fewest
        logs.

        Offline directories are left out; without an id, cordoned ones are used only if no others remain. Raises
        KafkaError if no directory remains.
        """
        if topic == METADATA_TOPIC:
            candidates = [self.metadata]
        else:
            candidates = [each for each in self if directory_id is None or each.directory_id == directory_id]
        candidates = [each for each in candidates if not each.offline]
        if not candidates:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "No log directory is online: see the broker's log.")
        return min(candidates, key=lambda each: (each.path in self.cordoned, log_counts[each.path]))

    def note_incarnation(self, broker_epoch: int, asking: bytes = ZERO_UUID) -> None:
        """Writes a record of this process, with `broker_epoch`, into each directory for partitions.

        A process that is still registering has no epoch yet. Then `asking` is the incarnation id of its registration,
        and `broker_epoch` is the epoch of the process before it. Once any directory has failed, the records are removed
        from all directories instead, because unsynced writes to the failed directory may be lost.
        """
        incarnation = Incarnation(broker_epoch, asking)
        failed = any(directory.offline for directory in self.all)
        for directory in self:
            try:
                directory.forget_incarnation() if failed else directory.note_incarnation(incarnation)
            except OSError as error:  # safe: the next start takes this incarnation for one that lost something
                logger.warning("%s records no incarnation id, so the next start is slower: %s", directory.path, error)


def _normal(path: str) -> str:
    return path.rstrip("/") or "/"
