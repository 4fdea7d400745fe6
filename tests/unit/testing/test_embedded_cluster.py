"""Tests `penstock.testing.Cluster`: its nodes are killed, paused, restarted and split."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from penstock.broker.events.kinds import MajorityLost
from penstock.client.sync import Client
from penstock.testing import Cluster


def write(cluster: Cluster, topic: str, values: range) -> None:
    with cluster.client() as client, client.producer() as producer:
        producer.send_many(topic, [(None, b"%d" % value, (), None) for value in values])


def values(cluster: Cluster, topic: str) -> list[int]:
    return sorted(int(record.value or b"") for record in cluster.records(topic))


@pytest.mark.penstock(topics={"orders": 3})
def test_cluster_fixture_has_three_nodes_and_three_replicas(penstock_cluster: Cluster) -> None:
    assert penstock_cluster.running == [1, 2, 3]
    assert penstock_cluster.controller in penstock_cluster.nodes
    assert {penstock_cluster.leader("orders", index) for index in range(3)} == {1, 2, 3}
    write(penstock_cluster, "orders", range(100))
    assert values(penstock_cluster, "orders") == list(range(100))
    assert penstock_cluster.isr("orders") == [1, 2, 3]


def test_records_survive_the_loss_of_each_node_in_turn() -> None:
    with Cluster(topics={"t": 1}) as cluster:
        for index, node in enumerate(cluster.nodes):
            write(cluster, "t", range(index * 10, index * 10 + 10))
            cluster.kill(node)
            assert values(cluster, "t") == list(range(index * 10 + 10))
            cluster.start(node)
            cluster.wait_in_sync("t")


def test_a_killed_leader_is_replaced_and_rejoins_as_a_follower() -> None:
    with Cluster(topics={"t": 1}) as cluster:
        old = cluster.leader("t")
        write(cluster, "t", range(10))
        cluster.kill(old)
        assert cluster.running == [node for node in cluster.nodes if node != old]
        write(cluster, "t", range(10, 20))
        assert cluster.leader("t") != old
        cluster.start(old)
        cluster.wait_in_sync("t")
        assert values(cluster, "t") == list(range(20))


def test_the_cluster_survives_the_loss_of_the_active_controller() -> None:
    with Cluster() as cluster:
        old = cluster.controller
        cluster.kill(old)
        assert cluster.controller != old
        cluster.create_topic("t", 2, replication_factor=2)
        write(cluster, "t", range(10))
        assert values(cluster, "t") == list(range(10))


def test_writes_succeed_while_a_follower_is_paused_and_the_follower_catches_up() -> None:
    config = {"replica.lag.time.max.ms": "500", "broker.session.timeout.ms": "5000"}
    with Cluster(topics={"t": 1}, config=config) as cluster:
        follower = next(node for node in cluster.nodes if node not in (cluster.leader("t"), cluster.controller))
        cluster.pause(follower)
        write(cluster, "t", range(10))
        cluster.resume(follower)
        cluster.wait_in_sync("t")
        assert values(cluster, "t") == list(range(10))


def test_data_directory_of_a_stopped_cluster_can_be_used_by_the_next_cluster(tmp_path: Path) -> None:
    with Cluster(data=tmp_path, topics={"t": 1}) as cluster:
        write(cluster, "t", range(10))
    with Cluster(data=tmp_path) as cluster:
        assert values(cluster, "t") == list(range(10))


def test_using_an_unknown_or_stopped_node_of_a_cluster_raises_an_error() -> None:
    cluster = Cluster(nodes=2)
    with pytest.raises(ValueError, match="there is no node 7"):
        cluster.kill(7)
    with pytest.raises(RuntimeError, match="node 1 is not running"):
        cluster.kill(1)
    with pytest.raises(RuntimeError, match="no node is running"):
        cluster.create_topic("t")
    with pytest.raises(ValueError, match="nodes is 0: write 1 or more"):
        Cluster(nodes=0)


SHORT_SESSIONS = {"broker.session.timeout.ms": 1000, "broker.heartbeat.interval.ms": 100}


def test_smaller_group_of_a_split_cluster_loses_its_leaders_and_rejoins_after_the_split_heals() -> None:
    with Cluster(topics={"t": 1}, config=SHORT_SESSIONS) as cluster:
        write(cluster, "t", range(10))
        alone = cluster.controller
        others = [node for node in cluster.nodes if node != alone]
        lost = threading.Event()
        events = cluster.node(alone).broker.events
        events.listeners.append(lambda entry: lost.set() if entry.event.KIND == MajorityLost.KIND else None)
        cluster.split([alone])
        with Client(",".join(cluster.node(node).bootstrap for node in others)) as client:
            client.create_topic("made-by-the-majority")
            deadline = time.monotonic() + 60
            while client.describe_topics(["t"])[0].partitions[0].leader == alone:
                assert time.monotonic() < deadline, "the isolated node is still the leader"
            with client.producer() as producer:
                producer.send_many("t", [(None, b"%d" % value, (), None) for value in range(10, 20)])
        assert lost.wait(60), "the isolated controller does not see that it lost its majority"
        with pytest.raises(TimeoutError, match="t-0"):  # the isolated node may not know it
            cluster.wait_in_sync("t", timeout_s=0.1)
        cluster.heal()
        cluster.wait_in_sync("t")
        assert values(cluster, "t") == list(range(20))


def test_node_cut_off_by_a_split_finishes_its_start_after_the_split_heals() -> None:
    with Cluster(topics={"t": 1}, config=SHORT_SESSIONS) as cluster:
        cluster.kill(3)
        cluster.split([3])
        starting = threading.Thread(target=cluster.start, args=(3,))
        starting.start()
        write(cluster, "t", range(10))
        assert starting.is_alive(), "a node can't register without the controller"
        cluster.heal()
        starting.join()
        cluster.wait_in_sync("t")
        assert values(cluster, "t") == list(range(10))


def test_split_refuses_a_node_in_two_groups_and_an_unknown_node() -> None:
    with Cluster(nodes=2) as cluster:
        with pytest.raises(ValueError, match=r"nodes \[1\] are in two groups: name each node once"):
            cluster.split([1], [1, 2])
        with pytest.raises(ValueError, match="no node 9"):
            cluster.split([9])
