"""Rules for a clean restart of all nodes: the changes that it may and may not cause."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.sim.checks.history import FinalView, History
from penstock.sim.checks.replica_rules import Starts


def changes_by_restart(
    first: FinalView, again: FinalView, starts: Starts, history: History, compacted: set[str]
) -> Iterator[str]:
    """Yields each forbidden change that a clean restart of all nodes caused.

    One change is allowed. Replicas in sync can have different start offsets: a deletion moves the start of each replica
    separately, and a replica that was down, or was killed before it wrote its new start down, comes back with an older
    start. As a leader it shows deleted records again, as Kafka does, until the next leader is elected. So a partition's
    start may move forward to the start that another replica had before the restart, but not above the offset of a
    requested deletion. It never moves back: a follower in sync has at least its leader's start. Records above the
    start stay.
    """
    for partition, records in first.records.items():
        if partition in history.damaged or partition[0] in compacted:
            continue
        name, found = f"{partition[0]}-{partition[1]}", again.records.get(partition)
        if found is None:
            yield f"{name} changed with a clean restart"
            continue
        before, after = first.log_start[partition], again.log_start[partition]
        moved = before < after <= history.deleted_below(partition) and after in starts.get(partition, ())
        if after != before and not moved:
            yield f"{name} started at {before} and starts at {after} after a clean restart"
        kept = {offset: record for offset, record in records.items() if not moved or offset >= after}
        if kept != found:
            yield f"{name} changed with a clean restart"
