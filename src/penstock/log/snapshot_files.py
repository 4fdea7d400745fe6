"""Manages the `.snapshot` files of a log: producer state at segment boundaries, and at the log end after a clean
stop."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.log.snapshots import SnapshotError, parse_snapshot, render_snapshot

if TYPE_CHECKING:
    from penstock.disk.api import Disk
    from penstock.log.producers import ProducerStateManager

logger = logging.getLogger(__name__)

SNAPSHOT_SUFFIX = ".snapshot"
MAX_SNAPSHOT_BYTES = 1 << 28


class SnapshotFiles:
    __slots__ = ("_directory", "_disk", "offsets")

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self._directory = directory
        #: Offsets of the snapshots, ascending.
        self.offsets = offsets

    def path(self, offset: int) -> str:
        return f"{self._directory}/{offset:020d}{SNAPSHOT_SUFFIX}"

    def take(self, producers: ProducerStateManager) -> str | None:
        """Writes a snapshot of the producer state, under the offset of this state. Returns the path of the new file,
        which the caller has to sync.

        Writes nothing and returns None if there is a snapshot with this offset or a higher offset.
        """
        offset = producers.map_end_offset
        if self.offsets and self.offsets[-1] >= offset:
            return None
        path = self.path(offset)
        self._disk.write_atomic(path, render_snapshot(producers.snapshot()), sync=False)
        self.offsets.append(offset)
        return path

    def retake(self, producers: ProducerStateManager) -> str | None:
        """Writes a snapshot as `take` does, but replaces an existing snapshot at the same offset."""
        if self.offsets and self.offsets[-1] == producers.map_end_offset:
            self.offsets.pop()
        return self.take_last(producers)

    def moved_to(self, directory: str) -> None:
        """Updates the paths of the snapshots after the log's directory was renamed."""
        self._directory = directory

    def take_last(self, producers: ProducerStateManager) -> str | None:
        """Writes the snapshot for a clean stop. Writes no file if the log never had a producer id."""
        return self.take(producers) if self.offsets or len(producers) else None

    def load_latest(
        self, producers: ProducerStateManager, log_start: int, log_end: int, now_ms: int, expiration_ms: int
    ) -> int | None:
        """Loads the newest valid snapshot and returns its offset. If none is valid, leaves the state empty and returns
        None."""
        while self.offsets:
            offset = self.offsets[-1]
            if log_start <= offset <= log_end:
                try:
                    entries = parse_snapshot(self._disk.read_bytes(self.path(offset), MAX_SNAPSHOT_BYTES))
                except (SnapshotError, OSError) as error:
                    logger.warning(
                        "producer snapshot %s is damaged and removed; an older snapshot or the log is used instead: %s",
                        self.path(offset),
                        error,
                    )
                else:
                    producers.load(entries, offset, now_ms, expiration_ms)
                    return offset
            elif offset < log_start:
                break
            self._disk.remove(self.path(offset))
            self.offsets.pop()
        producers.clear(log_start)
        return None

    def remove_above(self, offset: int) -> bool:
        """Removes the snapshots above the offset. Returns False if there were no such snapshots."""
        found = bool(self.offsets) and self.offsets[-1] > offset
        while self.offsets and self.offsets[-1] > offset:
            self._disk.remove(self.path(self.offsets.pop()))
        return found

    def remove_all(self) -> None:
        self.remove_above(-1)

    def keep_only(self, bases: list[int]) -> None:
        """Removes all snapshots except the newest snapshot and the snapshots at segment boundaries."""
        wanted = {*bases, *self.offsets[-1:]}
        for offset in [each for each in self.offsets if each not in wanted]:
            self._disk.remove(self.path(offset))
            self.offsets.remove(offset)
