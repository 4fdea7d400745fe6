"""Defines the real clock of the machine, for nodes in production."""

import time


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def nanoseconds(self) -> int:
        return time.perf_counter_ns()
