"""Tests the REST API and the console of real nodes over real sockets."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.http import cluster as cluster_facts
from penstock.http import view
from penstock.http.site import MOVED
from penstock.node.node import Node
from penstock.testing import Broker, Cluster
from waiting import until

HTTP = {"penstock.http.listener": "127.0.0.1:0"}
LIMIT_S = 120.0


def read(node: Node, path: str) -> bytes:
    assert node.http.url is not None
    with urllib.request.urlopen(node.http.url.rstrip("/") + path, timeout=LIMIT_S) as answer:
        found: bytes = answer.read()
    return found


def api(node: Node, path: str) -> Any:
    return json.loads(read(node, f"/v1/{path}"))


@pytest.fixture(autouse=True)
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns the cache off, so that every request reads the node's current state."""
    monkeypatch.setattr(view, "FRESH_S", 0.0)


def produce(running: Broker | Cluster, count: int) -> None:
    with running.client() as client, client.producer() as producer:
        producer.send_many("orders", [(None, b"%d" % number, (), None) for number in range(count)])


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 2}, config=HTTP) as running:
        yield running


def test_overview_and_topic_pages_show_the_offsets_and_leaders_of_the_broker(broker: Broker) -> None:
    produce(broker, 10)
    until(lambda: bool(api(broker.node, "topics")["topics"][0]["end_offset"] == 10), "the records are not shown")
    [node] = api(broker.node, "cluster/overview")["brokers"]
    assert (node["address"], node["leaders"]) == (broker.bootstrap, 2)
    assert sum(each["end_offset"] for each in api(broker.node, "topics/orders")["partition_states"]) == 10


def test_old_paths_are_redirected_and_unknown_paths_get_404(broker: Broker) -> None:
    for path in MOVED:
        assert json.loads(read(broker.node, path)), "the client follows the redirect"
    assert api(broker.node, "pipelines") == {"pipelines": []}
    for path in ("elsewhere", "topics/elsewhere", "topics/orders/0", "../secrets"):
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            api(broker.node, path)
        refused.value.close()


def test_every_node_shows_all_nodes_and_reports_a_killed_node() -> None:
    with Cluster(nodes=3, topics={"orders": 3}, config=HTTP) as cluster:
        produce(cluster, 30)
        for number in (1, 2, 3):
            node = cluster.node(number)

            def same(node: Node = node) -> bool:
                found = api(node, "cluster/overview")
                ends = api(node, "topics")["topics"][0]["end_offset"]
                rows = [
                    (each["state"], each["replicas"], each["lag"], each["metadata_lag"]) for each in found["brokers"]
                ]
                return rows == [("up", 3, 0, 0)] * 3 and ends == 30

            until(same, f"node {number} doesn't show all nodes in sync")
        victim = cluster.leader("orders", 0)
        cluster.kill(victim)
        other = cluster.node(victim % 3 + 1)

        def noticed() -> bool:
            seen = api(other, "cluster/overview")
            states = {row["node"]: row["state"] for row in seen["brokers"]}
            wrong = {row["topic"]: row["problem"] for row in seen["topics_that_need_attention"]}
            return states[victim] == "fenced" and wrong == {"orders": "under-replicated"}

        until(noticed, "the console doesn't show that a node is fenced")
        for number in {1, 2, 3} - {victim}:
            (failover,) = api(cluster.node(number), "cluster/overview")["failovers"]
            assert (failover["broker"], failover["partitions"]) == (victim, 3), (
                f"node {number} has no list of failovers"
            )
            assert f"Node {victim} (" in api(cluster.node(number), "cluster/overview")["causes"][0]
        produce(cluster, 300)
        leader = cluster.node(cluster.leader("orders", 0))
        late = re.compile(f'penstock_partition_follower_lag_seconds{{.*replica="{victim}"}} 0*[1-9.]')
        until(
            lambda: bool(late.search(read(leader, "/metrics").decode())),
            "the metrics don't show the dead replica's lag",
        )


def test_console_of_a_large_cluster_shows_metadata_and_sends_no_requests_to_other_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_facts, "ASK_MAX_PARTITIONS", 0)
    with Cluster(nodes=2, topics={"orders": 1}, config=HTTP) as cluster:
        rows = {row["node"]: row for row in api(cluster.node(1), "cluster/overview")["brokers"]}
        assert rows[2]["state"] == "up"
        assert rows[2]["bytes"] is None
        assert rows[1]["bytes"] is not None
