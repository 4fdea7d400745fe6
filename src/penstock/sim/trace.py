"""What happened, in order: hashed always, kept as text when asked for. Two runs of a seed have the same hash."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from penstock.sim.loop import Timeline


class Trace:
    def __init__(self, timeline: Timeline, *, keep: bool = False) -> None:
        self._timeline = timeline
        self._digest = blake2b(digest_size=8)
        self._keep = keep
        self.count = 0
        self.lines: list[str] = []
        #: Called with each line as it is written.
        self.listener: Callable[[str], None] | None = None

    def note(self, who: str, what: str) -> None:
        line = f"{self._timeline.now:.6f} {who} {what}"
        self._digest.update(line.encode())
        self.count += 1
        if self._keep:
            self.lines.append(line)
        if self.listener is not None:
            self.listener(line)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()
