"""Decides when the active segment of a log is full or old enough, so that the next batch opens a new segment."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from penstock.log.segment import MAX_RELATIVE_OFFSET, Segment

if TYPE_CHECKING:
    from penstock.metadata.configs.topic import LogConfig


class RollPolicy:
    """Holds the limits at which a segment is full.

    Each segment gets its own policy, because its age limit is shortened by a random time of up to segment.jitter.ms.
    """

    __slots__ = ("_index_bytes", "_roll_ms", "_segment_bytes")

    def __init__(self, config: LogConfig, random: Random) -> None:
        self._segment_bytes = config.segment_bytes
        self._index_bytes = config.segment_index_bytes
        limit = min(config.segment_ms, config.max_compaction_lag_ms) if config.compact else config.segment_ms
        jitter = min(config.segment_jitter_ms, config.segment_ms)
        self._roll_ms = limit - (random.randrange(jitter) if jitter > 0 else 0)

    def is_due(self, segment: Segment, size: int, timestamp: int, last_offset: int, now_ms: int) -> bool:
        """True if a batch of `size` bytes must go into a new segment, not into `segment`. May read the segment's first
        batch."""
        occupied = segment.size
        if not occupied:
            return last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        if occupied + size > self._segment_bytes or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            return True
        first = segment.first_timestamp
        waited = timestamp - first if first is not None and first >= 0 else now_ms - segment.created_ms
        return waited > self._roll_ms or segment.is_index_full(self._index_bytes)
