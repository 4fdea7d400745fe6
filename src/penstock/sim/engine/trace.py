"""Writes the trace: one line for each event of a run. The trace is always hashed, and kept as text on request.

Two runs of a seed have the same hash.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from penstock.sim.engine.loop import Timeline

#: Number of lines that are hashed at once.
DIGEST_LINES = 1000


class Trace:
    def __init__(self, timeline: Timeline, *, keep: bool = False) -> None:
        self._timeline = timeline
        self._digest = blake2b(digest_size=8)
        self._unhashed: list[str] = []
        self._keep = keep
        self.count = 0
        self.lines: list[str] = []
        #: Called with each line as it is written.
        self.listener: Callable[[str], None] | None = None

    def note(self, who: str, what: str) -> None:
        line = f"{self._timeline.now:.6f} {who} {what}"
        self._unhashed.append(line)
        if len(self._unhashed) >= DIGEST_LINES:
            self._hash_lines()
        self.count += 1
        if self._keep:
            self.lines.append(line)
        if self.listener is not None:
            self.listener(line)

    def _hash_lines(self) -> None:
        self._digest.update("".join(self._unhashed).encode())
        self._unhashed.clear()

    @property
    def digest(self) -> str:
        self._hash_lines()
        return self._digest.hexdigest()
