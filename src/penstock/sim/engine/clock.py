"""Simulates the wall clock of one machine: virtual time at this clock's rate, plus this clock's error."""

from __future__ import annotations

from penstock.sim.engine.loop import Timeline

EPOCH_MS = 1_700_000_000_000


class SimClock:
    def __init__(self, timeline: Timeline, *, offset_ms: int = 0, rate: float = 1.0) -> None:
        self._timeline = timeline
        self._rate = rate
        self.offset_ms = offset_ms
        self._latest_before_jump_ms = 0

    def wall_ms(self) -> int:
        return EPOCH_MS + self.offset_ms + int(self._timeline.now * 1000 * self._rate)

    def nanoseconds(self) -> int:
        return 0

    @property
    def latest_ms(self) -> int:
        """Returns the latest time that this clock has shown. It is later than now if the clock has jumped back."""
        return max(self._latest_before_jump_ms, self.wall_ms())

    def jump(self, milliseconds: int) -> None:
        """Sets the clock forward, or back if `milliseconds` is negative."""
        self._latest_before_jump_ms = self.latest_ms
        self.offset_ms += milliseconds
