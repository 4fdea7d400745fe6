"""Collects metrics of share groups, for the partitions that this node leads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.http.exposition import Family, counter, gauge
from penstock.share.states import RecordState

if TYPE_CHECKING:
    from penstock.broker.share.share_partitions import SharePartitions

#: Groups with metrics of their own; the others are left out.
GROUPS_MAX = 100
_STATES = {
    RecordState.AVAILABLE: "available",
    RecordState.ACQUIRED: "acquired",
    RecordState.ARCHIVING: "archiving",
}


def share_families(shares: SharePartitions) -> Iterator[Family]:
    figures = shares.figures
    yield gauge("penstock_share_sessions", "Share sessions: members that fetch from this node.", len(shares.sessions))
    yield counter("penstock_share_deliveries_total", "Records delivered to share groups.", figures.deliveries)
    yield counter("penstock_share_locks_expired_total", "Deliveries whose lock expired.", figures.expired)
    yield counter(
        "penstock_share_failed_writes_total",
        "Writes that a share coordinator did not accept; the records are delivered again.",
        figures.failed_writes,
    )
    yield counter("penstock_share_dead_letters_total", "Dead letters written by share groups.", figures.dead_letters)
    yield counter(
        "penstock_share_failed_dead_letters_total",
        "Failed writes of dead letters; their records are not archived, and the writes are retried.",
        figures.failed_dead_letters,
    )
    records = gauge(
        "penstock_share_records",
        "Records in flight, by share group: available again, acquired, or given up without a dead letter yet.",
    )
    totals: dict[str, list[int]] = {}
    for led in shares:
        if led.state is not None and (led.key.group in totals or len(totals) < GROUPS_MAX):
            count = totals.setdefault(led.key.group, [0] * len(_STATES))
            for place, state in enumerate(_STATES):
                count[place] += led.state.window.totals[state]
    for group, count in sorted(totals.items()):
        for name, number in zip(_STATES.values(), count):
            records.add(number, group=group, state=name)
    yield records
