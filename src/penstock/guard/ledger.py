"""Counts the confirmed findings against each node, and says when they are enough for a quarantine.

Only findings that the active controller observed itself are entered. A damaged replica that is found again and again
counts once, because disks may fail on any node. A replica that still serves wrong data or makes a false claim counts
again after RECOUNT_MS, because a correct node would have corrected itself by then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.guard.findings import NOBODY, Finding, Kind

RECOUNT_MS = 60_000
#: Kinds and partitions kept for each node; more add nothing, because the threshold is far below.
MAX_SUBJECTS = 1000


@dataclass(slots=True)
class Ledger:
    threshold: int
    window_ms: int
    _times: dict[int, dict[tuple[Kind, str], list[int]]] = field(default_factory=dict)

    def enter(self, finding: Finding, now_ms: int) -> bool:
        """Enters a confirmed finding. Returns True if the accused node has reached the threshold."""
        if finding.accused == NOBODY or not finding.kind.counts:
            return False
        seen = self._times.setdefault(finding.accused, {})
        key = (finding.kind, finding.partition)
        if key in seen or len(seen) < MAX_SUBJECTS:
            self._note(seen.setdefault(key, []), finding.kind, now_ms)
        return self.count(finding.accused, now_ms) >= self.threshold

    def _note(self, times: list[int], kind: Kind, now_ms: int) -> None:
        if not times or (kind is not Kind.CHECKSUM and now_ms - times[-1] >= RECOUNT_MS):
            times.append(now_ms)
        elif kind is Kind.CHECKSUM:
            times[-1] = now_ms

    def count(self, node_id: int, now_ms: int) -> int:
        """Returns the number of findings against the node within the time window. Forgets older findings."""
        seen = self._times.get(node_id, {})
        for key, times in list(seen.items()):
            times[:] = [at_ms for at_ms in times if now_ms - at_ms <= self.window_ms]
            if not times:
                del seen[key]
        return sum(map(len, seen.values()))

    def forget(self, node_id: int) -> None:
        """Forgets the findings against a node, because an operator released it from quarantine."""
        self._times.pop(node_id, None)
