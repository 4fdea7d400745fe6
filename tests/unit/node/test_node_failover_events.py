"""Tests the events and metrics of failovers and network partitions in a real cluster."""

from __future__ import annotations

import time
from typing import TypeVar

import pytest

from penstock.broker.events.kinds import (
    BrokerFenced,
    FirstWriteAfterFailover,
    MajorityLost,
    NetworkPartitionSuspected,
    NodeEvent,
)
from penstock.http.failover_metrics import failover_families
from penstock.testing import Cluster

E = TypeVar("E", bound=NodeEvent)
LIMIT_S = 120.0


def first_event(cluster: Cluster, nodes: list[int], kind: type[E]) -> tuple[int, E]:
    """Waits until one of the nodes has an event of this kind. Returns the node and its first such event."""

    async def look(node: int) -> E | None:
        entries = cluster.node(node).broker.events.entries
        return next((each.event for each in entries if isinstance(each.event, kind)), None)

    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for node in nodes:
            found = cluster.run(node, look(node))
            if found is not None:
                return node, found
    pytest.fail(f"no event {kind.KIND} on nodes {nodes}")


def values(cluster: Cluster, node: int) -> dict[tuple[str, str], float]:
    """Returns the failover metrics of a node by name and label."""

    async def read() -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = {}
        for family in failover_families(cluster.node(node).broker):
            for labels, value in family.samples:
                count = value if isinstance(value, int | float) else sum(value.counts)
                found[family.name, "".join(text for _, text in labels)] = count
        return found

    return cluster.run(node, read())


def test_events_and_metrics_cover_a_failover_from_its_detection_to_the_first_write() -> None:
    with Cluster(nodes=3, config={"penstock.request.timing.every": 0}) as cluster:
        cluster.create_topic("orders", replication_factor=3)
        with cluster.client() as client, client.producer() as producer:
            producer.send("orders", b"before", partition=0).result()
        cluster.wait_in_sync("orders")
        old = cluster.leader("orders")
        cluster.kill(old)
        with cluster.client() as client, client.producer() as producer:
            producer.send("orders", b"after", partition=0).result()
        leader, written = first_event(cluster, cluster.running, FirstWriteAfterFailover)
        assert (written.partition, written.broker_id, leader) == ("orders-0", old, cluster.leader("orders"))
        assert str(written).startswith(f"orders-0: the first write after broker {old} was fenced is committed")
        controller, fenced = first_event(cluster, cluster.running, BrokerFenced)
        assert (fenced.broker_id, fenced.broker_epoch) == (old, written.broker_epoch)
        found = values(cluster, controller)
        assert found["penstock_failovers_total", ""] == 1
        assert found["penstock_failovers_failed_total", ""] == 0
        assert found["penstock_failover_partitions_total", "elected"] >= 1
        assert found["penstock_failover_partitions_total", "leaderless"] == 0
        assert found["penstock_failover_seconds", "elected"] == 1
        assert values(cluster, leader)["penstock_failover_seconds", "first_write"] == 1


def test_nodes_on_both_sides_of_a_network_split_report_that_the_network_may_be_split() -> None:
    config = {"broker.session.timeout.ms": 1000, "broker.heartbeat.interval.ms": 100}
    with Cluster(nodes=3, config=config) as cluster:
        alone = cluster.controller
        others = [node for node in cluster.nodes if node != alone]
        cluster.split([alone], others)
        first_event(cluster, [alone], MajorityLost)
        first_event(cluster, [alone], NetworkPartitionSuspected)
        assert values(cluster, alone)["penstock_network_partitions_suspected_total", ""] >= 1
        node, suspected = first_event(cluster, others, NetworkPartitionSuspected)
        assert suspected.nodes == (alone,)
        assert str(suspected).startswith(f"the network may be split: broker {alone} was silent for 1000 ms")
        assert values(cluster, node)["penstock_network_partitions_suspected_total", ""] == 1
        cluster.heal()
