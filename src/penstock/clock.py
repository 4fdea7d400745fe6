"""Defines the clock of a node: wall time for timestamps and retention. Monotonic time comes from the event loop."""

from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Returns the machine's milliseconds since 1970; the value may jump forward or back."""
        ...

    def nanoseconds(self) -> int:
        """Returns a monotonic time for measuring durations. In the simulator it is constant, so that runs are
        repeatable."""
        ...


class ManualClock:
    """Implements a clock for tests and the simulator. It moves only when `advance` is called."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def nanoseconds(self) -> int:
        return self.now_ms * 1_000_000

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
