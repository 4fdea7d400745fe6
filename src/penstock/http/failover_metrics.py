"""Collects metrics of failovers: how many there were, how they ended, and how long they took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.http.exposition import Distribution, Family, counter, gauge, histogram

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.controlplane.failovers import Failover


def failover_families(broker: Broker) -> Iterator[Family]:
    """Yields failover metrics.

    Every node knows the last failover. The counts include only failovers that this node decided as the controller. The
    first write after a failover is measured by the node that took over.
    """
    controller, failovers = broker.controller, broker.controller.failovers
    yield gauge("penstock_controller_active", "Whether this node is the active controller.", int(controller.active))
    yield counter("penstock_failovers_total", "Brokers that this controller has failed over.", failovers.count)
    yield counter("penstock_failovers_failed_total", "Failovers that the quorum did not commit.", failovers.failed)
    partitions = counter("penstock_failover_partitions_total", "Partitions of failed brokers, by what became of them.")
    for outcome, count in sorted(failovers.partitions.items()):
        partitions.add(count, outcome=outcome)
    yield partitions
    times = histogram(
        "penstock_failover_seconds",
        "Time from the detection of a failure to the elections, and from the elections to the first write.",
    )
    times.add(Distribution.in_seconds(failovers.until_elected, 1000), stage="elected")
    times.add(Distribution.in_seconds(broker.replicas.takeovers.until_first_write, 1000), stage="first_write")
    yield times
    unclean = controller.unclean_elections
    yield counter("penstock_unclean_elections_total", "Leaders elected outside of the in-sync set.", unclean)
    if failovers.last is not None:
        yield from _last(failovers.last)
    suspected = broker.events.counts["network.suspected"]
    yield counter(
        "penstock_network_partitions_suspected_total",
        "How often this node lost contact with nodes that may still run.",
        suspected,
    )


def _last(last: Failover) -> Iterator[Family]:
    yield gauge(
        "penstock_failover_last_timestamp_seconds",
        "Time of the last failover's elections in seconds since 1970.",
        last.elected_ms / 1000,
    )
    yield gauge("penstock_failover_last_partitions", "Partitions that the last failover changed.", last.partitions)
    if last.detected_ms is not None:
        took_s = max(0, last.elected_ms - last.detected_ms) / 1000
        yield gauge(
            "penstock_failover_last_duration_seconds", "From detection to election in the last failover.", took_s
        )
