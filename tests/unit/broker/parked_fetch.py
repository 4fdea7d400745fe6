"""A stand-in for a parked fetch, for tests of the waits at a partition."""

from __future__ import annotations


class ParkedFetch:
    """Stands for a parked fetch, and notes what the partition tells it."""

    def __init__(self) -> None:
        self.notified: list[int] = []
        self.abandoned = 0

    def notify(self, appended_bytes: int) -> None:
        self.notified.append(appended_bytes)

    def abandon(self) -> None:
        self.abandoned += 1
