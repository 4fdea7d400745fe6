"""Checks that a clean restart of all nodes changes no data that clients read, with one exception."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.sim.checks.history import FinalView, History
from penstock.sim.checks.replica_rules import Starts


def changes_by_restart(
    first: FinalView, again: FinalView, starts: Starts, history: History, compacted: set[str]
) -> Iterator[str]:
    """Yields each forbidden change that a clean restart of all nodes caused.

    One change is allowed: a partition may start at a higher offset after the restart. The new start must be the start
    that another replica had before the restart, and must not be above the offset of a requested deletion. Records above
    the new start must stay.

    This happens because DeleteRecords moves the start of each replica separately. A replica that was down, or was
    killed before it stored the new start, keeps the old start. If this replica leads before the restart, clients see
    deleted records, as in Kafka. After the restart another replica may lead.

    A lower start is forbidden, because the start of an in-sync follower is never below the start of its leader.
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
