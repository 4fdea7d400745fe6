"""Wall time, injected. Monotonic time is the event loop's; record timestamps, retention and leases need this one."""

from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the epoch, as the machine believes them. May jump."""
        ...

    def nanoseconds(self) -> int:
        """A fine clock that never goes back, to measure work with. It stands still where runs have to repeat."""
        ...


class ManualClock:
    """A clock that stands still until told otherwise: for tests and the simulator."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def nanoseconds(self) -> int:
        return self.now_ms * 1_000_000

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
