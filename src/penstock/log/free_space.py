"""Refuses records of clients before a log directory is full.

A timer reads the free space of every directory. Between two readings, the bytes that clients write are subtracted, so
that a burst can't fill the disk before the next reading. A move between directories stops before it fills the target.
All other writes continue: writes of followers, writes to the node's own topics, and writes that free space.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.disk.api import Disk
    from penstock.log.directory import LogDir

logger = logging.getLogger(__name__)

MIN_FREE_BYTES = "penstock.log.dirs.min.free.bytes"


@dataclass(slots=True)
class _Watched:
    usable: int
    min_free: int
    #: Free bytes from which on records are taken again; None while they are taken.
    resume_at: int | None = None


class FreeSpace:
    """Tracks the free bytes of each log directory, as last read from the disk.

    `watched` maps the paths of directories to their free bytes. It stays empty if no limit of free space is set.
    """

    __slots__ = ("_disk", "watched")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.watched: dict[str, _Watched] = {}

    async def look(self, directories: Iterable[LogDir], min_free: int) -> None:
        """Reads the free space of each directory from the disk, in threads, because a failing disk may take long to
        answer."""
        for directory in directories:
            if directory.offline:
                self.watched.pop(directory.path, None)
                continue
            _, usable = await self._disk.run(directory.space)
            if usable < 0:
                self.watched.pop(directory.path, None)
            else:
                self.note(directory.path, usable, min_free)

    def note(self, path: str, usable: int, min_free: int) -> None:
        """Stores the free bytes of a directory, and whether clients may write to it."""
        before = self.watched.get(path)
        refused = before is not None and before.resume_at is not None
        needed = min_free
        if before is not None and before.resume_at is not None and min_free >= before.min_free:
            needed = max(min_free, before.resume_at)
        self.watched[path] = now = _Watched(usable, min_free)
        if usable < needed:
            self._refuse(path, now, needed, was=refused)
        elif refused:
            logger.warning("log directory %s accepts records of clients again: it has %d bytes left", path, usable)

    def take(self, path: str, size: int) -> None:
        """Subtracts the bytes that a client is about to write. Raises KafkaError if less free space than the limit
        would be left."""
        watched = self.watched.get(path)
        if watched is None:
            return
        if watched.resume_at is None and watched.usable - size >= watched.min_free:
            watched.usable -= size
            return
        self._refuse(path, watched, watched.resume_at or watched.min_free + size, was=watched.resume_at is not None)
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{_reason(path, watched)}: delete records or topics, or move replicas to another directory "
            "(`penstock logdir`).",
        )

    def take_for_copy(self, path: str, size: int) -> None:
        """Subtracts the bytes that a move between directories is about to write. Raises KafkaError if less free space
        than the limit would be left.

        After such an error, clients may still write to the directory: their writes are smaller and may fit.
        """
        watched = self.watched.get(path)
        if watched is None:
            return
        if watched.usable - size < watched.min_free:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{_reason(path, watched)}: free some space, or choose another directory.",
            )
        watched.usable -= size

    def _refuse(self, path: str, watched: _Watched, resume_at: int, *, was: bool) -> None:
        watched.resume_at = resume_at
        if not was:
            logger.error("%s: records of clients are refused until space is freed", _reason(path, watched))

    def short(self) -> dict[str, str]:
        """Returns the directories that are too full for clients: path → reason."""
        return {path: _reason(path, each) for path, each in self.watched.items() if each.resume_at is not None}


def _reason(path: str, watched: _Watched) -> str:
    limit = f"the limit is {MIN_FREE_BYTES}={watched.min_free}"
    return f"Log directory {path} is nearly full: it has {watched.usable:,} bytes left, {limit}"
