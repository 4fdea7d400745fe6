"""Counts the confirmed findings against each node, and says when they are enough for a quarantine.

Only findings that the active controller observed itself are entered. Each kind of finding counts once for each
partition, so that a damaged replica that is found again and again is one finding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.guard.findings import NOBODY, Finding, Kind

#: Findings kept for each node; more add nothing, because the threshold is far below.
MAX_FINDINGS = 1000


@dataclass(slots=True)
class Ledger:
    threshold: int
    window_ms: int
    _seen: dict[int, dict[tuple[Kind, str], int]] = field(default_factory=dict)

    def enter(self, finding: Finding, now_ms: int) -> bool:
        """Enters a confirmed finding. Returns True if the accused node has reached the threshold."""
        if finding.accused == NOBODY or not finding.kind.counts:
            return False
        seen = self._seen.setdefault(finding.accused, {})
        if len(seen) < MAX_FINDINGS:
            seen[finding.kind, finding.partition] = now_ms
        return self.count(finding.accused, now_ms) >= self.threshold

    def count(self, node_id: int, now_ms: int) -> int:
        """Returns the number of findings against the node within the window. Forgets older findings."""
        seen = self._seen.get(node_id, {})
        for key in [key for key, at_ms in seen.items() if now_ms - at_ms > self.window_ms]:
            del seen[key]
        return len(seen)

    def forget(self, node_id: int) -> None:
        """Forgets the findings against a node, because an operator released it from quarantine."""
        self._seen.pop(node_id, None)
