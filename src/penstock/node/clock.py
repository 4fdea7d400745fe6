"""Defines the machine's real clock, which nodes use in production."""

import time


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def nanoseconds(self) -> int:
        return time.perf_counter_ns()
