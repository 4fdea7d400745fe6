"""Holds the log directories of a node, chooses the directory of a new log, and tracks failed directories."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, overload

from penstock.log.directory import LogDir
from penstock.log.free_space import FreeSpace
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import METADATA_TOPIC

if TYPE_CHECKING:
    from penstock.disk.api import Disk
    from penstock.log.log import Log

logger = logging.getLogger(__name__)

#: Longer paths name no directory: the limit of Linux, without the zero byte at the end.
MAX_PATH_BYTES = 4095
#: Paths that are resolved for one request; further paths have to be written as in log.dirs.
MAX_RESOLVED_PATHS = 1000


class LogDirectories(Sequence[LogDir]):
    """Holds the log directories for partitions, in the order of log.dirs.

    `metadata` is the directory of the metadata log; it may also be a directory for partitions.
    """

    def __init__(self, disk: Disk, paths: Sequence[str], metadata_path: str | None, cordoned: frozenset[str]) -> None:
        self._disk = disk
        self._for_partitions = [LogDir(disk, _normal(path)) for path in paths]
        self.metadata = self._metadata_directory(disk, metadata_path)
        #: Paths of directories that get new logs only if no other directory can have them.
        self.cordoned = cordoned
        self.free_space = FreeSpace(disk)
        self._by_path = {directory.path: directory for directory in self.all}
        #: The directories for partitions by their real paths, once a request has asked for one.
        self._by_real_path: dict[str, LogDir] | None = None

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
        """Returns all log directories: the directories for partitions, and the directory of the metadata log."""
        for_partitions = self._for_partitions
        return for_partitions if self.metadata in for_partitions else [*for_partitions, self.metadata]

    def of(self, log: Log) -> LogDir:
        return self._by_path[log.log_dir]

    def find(self, path: str) -> LogDir | None:
        """Returns the log directory at `path`; None if `path` is not a directory for partitions.

        `path` may be a symbolic link or contain `..`. May block the event loop: see `PathLookup`.
        """
        if not is_possible_path(path):
            return None
        if self._by_real_path is None:
            self._by_real_path = {self._disk.real_path(each.path): each for each in self}
        # A path that does not exist may be that of a lost disk. To resolve a long one would take milliseconds.
        real = self._disk.real_path(path) if self._disk.exists(path) else posixpath.normpath(path)
        return self._by_real_path.get(real)

    async def find_later(self, path: str) -> LogDir | None:
        """Returns the log directory at `path` as `find` does, without blocking the event loop."""
        return await self._disk.run(self.find, path)

    def named(self, path: str) -> LogDir | None:
        """Returns the directory for partitions whose path in log.dirs is exactly `path`; None if there is none."""
        directory = self._by_path.get(_normal(path))
        return directory if directory in self._for_partitions else None

    def cordon(self, paths: frozenset[str]) -> None:
        """Cordons the directories in `paths`, and no others.

        A cordoned directory gets a new log only if all directories that could hold the log are cordoned.
        """
        self.cordoned = paths

    def for_new_log(self, topic: str, directory_id: bytes | None, log_counts: Mapping[str, int]) -> LogDir:
        """Returns the online directory in which a new log is created. Raises KafkaError if there is none.

        With `directory_id`, returns the directory with this id. Otherwise returns the directory with the fewest logs; a
        cordoned directory is chosen only if no other directory is online.
        """
        if topic == METADATA_TOPIC:
            candidates = [self.metadata]
        else:
            candidates = [each for each in self if directory_id is None or each.directory_id == directory_id]
        candidates = [each for each in candidates if not each.offline]
        if not candidates:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "No log directory is online: see the broker's log.")
        return min(candidates, key=lambda each: (each.path in self.cordoned, log_counts[each.path]))

    @property
    def any_offline(self) -> bool:
        return any(directory.offline for directory in self.all)

    def forget_incarnation(self) -> None:
        """Removes the incarnation file from each directory for partitions.

        Called after a disk failure: some unsynced writes of this process may be lost, and the next process must know
        this.
        """
        for directory in self:
            try:
                directory.forget_incarnation()
            except OSError as error:  # several directories then differ, and the next start sees it
                logger.warning("the incarnation id could not be removed from %s: %s", directory.path, error)


class PathLookup:
    """Finds the log directories that one request names.

    Resolves each path once, in a thread, because a long path takes milliseconds. Resolves at most `MAX_RESOLVED_PATHS`
    paths.
    """

    def __init__(self, directories: LogDirectories) -> None:
        self._directories = directories
        self._resolved: dict[str, LogDir | None] = {}

    async def find(self, path: str) -> LogDir | None:
        """Returns the log directory at `path`; None if there is none."""
        if not is_possible_path(path):
            return None
        named = self._directories.named(path)
        if named is not None:
            return named
        if path not in self._resolved:
            if len(self._resolved) >= MAX_RESOLVED_PATHS:
                return None
            self._resolved[path] = await self._directories.find_later(path)
        return self._resolved[path]


def is_possible_path(path: str) -> bool:
    return 0 < len(path) <= MAX_PATH_BYTES and "\0" not in path and len(path.encode()) <= MAX_PATH_BYTES


def _normal(path: str) -> str:
    return path.rstrip("/") or "/"
