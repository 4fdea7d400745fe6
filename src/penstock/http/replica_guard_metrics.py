"""Collects metrics of the replica guard, which compares the replicas of each partition, and of nodes in quarantine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.http.exposition import Family, counter, gauge
from penstock.metadata.quarantine import quarantined

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def replica_guard_families(broker: Broker) -> Iterator[Family]:
    held = gauge("penstock_node_quarantined", "Nodes in quarantine: always 1.")
    nodes = quarantined(broker.metadata.image)
    for node_id in nodes:
        held.add(1, node=node_id)
    yield gauge("penstock_nodes_quarantined", "Number of nodes in quarantine.", len(nodes))
    yield held
    guard = broker.guard
    if guard is None:
        return
    findings = counter("penstock_guard_findings_total", "Findings of the guard of this node by kind.")
    for kind, count in sorted(guard.findings.items(), key=lambda each: each[0].value):
        findings.add(count, finding=kind.value)
    yield findings
    counts, repairs = guard.scrubber.counts, guard.repairs
    yield counter("penstock_guard_compared_bytes_total", "Bytes read from replicas to compare them.", counts.bytes_read)
    yield counter("penstock_guard_partitions_total", "Partitions that the guard compared.", counts.partitions)
    yield counter("penstock_guard_passes_total", "Comparisons of all replicas of this node.", counts.passes)
    yield counter("penstock_guard_refilled_total", "Segments refilled from another replica.", repairs.refilled)
    yield counter("penstock_guard_refill_errors_total", "Segments that could not be refilled.", repairs.failed)
