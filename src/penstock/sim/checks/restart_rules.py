"""Rules for a clean restart of all nodes: what it may change and what it may not."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.sim.checks.history import FinalView, History
from penstock.sim.checks.replica_rules import Starts


def changes_by_restart(
    first: FinalView, again: FinalView, starts: Starts, history: History, compacted: set[str]
) -> Iterator[str]:
    """What a clean restart of everything has changed, and may not.

    One thing it may: replicas in sync can start at different offsets. A deletion moves each replica's start by itself,
    and one that was down then, or was killed before it had noted its start, comes back with an older one; leading, it
    shows again what others have deleted, as Kafka's does. With the next leader those records go. So the start may
    move forward to where another replica had it before the restart, no further than somebody asked to delete; it
    never goes back, for a follower in sync has at least its leader's, and what lies behind it stays as it was.
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
