"""Deletes the files of removed segments and logs: renames them at once, and removes them after file.delete.delay.ms."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.disk.api import Disk
    from penstock.log.segment import Segment

logger = logging.getLogger(__name__)


class Removal:
    """Holds the queue of files to remove. Readers may use a queued segment until its files are removed."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        #: (when to remove, what).
        self._segments: deque[tuple[int, list[Segment]]] = deque()
        self._directories: deque[tuple[int, str, list[Segment]]] = deque()

    def add_segments(self, segments: list[Segment], delay_ms: int) -> None:
        self._segments.append((self._clock.wall_ms() + delay_ms, segments))

    def add_directory(self, path: str, delay_ms: int, segments: list[Segment] | None = None) -> None:
        """Queues a log's directory for removal after the delay. Readers may have the `segments` of this log open."""
        self._directories.append((self._clock.wall_ms() + delay_ms, path, segments or []))

    async def run(self, *, all_of_them: bool = False) -> None:
        """Removes the files whose delay is over; with `all_of_them`, removes all queued files."""
        now_ms = self._clock.wall_ms()
        segments: list[Segment] = []
        paths: list[str] = []
        while self._segments and (all_of_them or self._segments[0][0] <= now_ms):
            segments.extend(self._segments.popleft()[1])
        while self._directories and (all_of_them or self._directories[0][0] <= now_ms):
            _, path, readable = self._directories.popleft()
            for segment in readable:
                segment.close()
            paths.append(path)
        for segment in segments:
            segment.close()
            await self._try(segment.remove_files)
        for path in paths:
            await self._try(self._disk.remove_tree, path)

    async def _try(self, remove: Callable[..., None], *args: str) -> None:
        try:
            await self._disk.run(remove, *args)
        except OSError as error:
            logger.warning("a deleted file could not be removed; the next start removes it: %s", error)
