"""Tests the background samples of rates and lags, from this node and from other nodes that may not answer."""

from __future__ import annotations

import time

import pytest
from rest_harness import HTTP, LIMIT_S, ask, commit

from penstock.client.admin import Admin, NewTopic
from penstock.http import cluster as cluster_module
from penstock.http import sampler as sampler_module
from penstock.http.history import PROPERTY, History
from penstock.http.sampler import Sampler
from penstock.http.view import View
from penstock.node.node import Node
from penstock.testing import Broker, Cluster


def view_of(node: Node) -> View:
    return View(node.broker, node._server, node._world.network, 0, list, history=History())


def produce(where: Broker | Cluster, topic: str, count: int) -> None:
    with where.client() as client, client.producer() as producer:
        producer.send_many(topic, [(None, b"x" * 100, (), None)] * count, partition=0)


def test_sampler_records_the_rate_between_two_samples_and_the_lag_of_each_group() -> None:
    with Broker(topics={"orders": 2, "idle": 1}) as broker:
        view = view_of(broker.node)
        sampler = Sampler(view, 1.0)
        commit(broker, "readers", {("orders", 0): 0, ("orders", 1): 0, ("idle", 0): 0})
        broker.run(sampler.sample())
        assert view.history.rates.of_all() == []
        produce(broker, "orders", 50)
        broker.run(sampler.sample())
        [point] = view.history.rates.of_topic("orders")
        assert point.records
        assert point.bytes
        assert point.bytes > 50 * point.records
        assert view.history.rates.of_topic("idle") == []
        assert [lag for _, lag in view.history.lags.samples("readers", ["orders", "idle"])] == [0, 50]
        broker.run(sampler.close())


def other_nodes_group(cluster: Cluster, node: int) -> str:
    """Creates a group whose coordinator is another node, and returns its name."""
    for number in range(100):
        name = f"group-{number}"
        commit(cluster, name, {("far", 0): 0})
        rows = ask(cluster, "GET", "/v1/groups").value["groups"]
        if any(row["group"] == name and row["coordinator"] != node for row in rows):
            return name
    raise AssertionError("one node coordinates a hundred groups")


def test_sampler_includes_partitions_and_groups_of_other_nodes_while_these_nodes_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config: dict[str, str | int] = {**HTTP, "offsets.topic.replication.factor": 1, "offsets.topic.num.partitions": 8}
    for module in (sampler_module, cluster_module):  # a busy machine takes longer to answer than a sample waits
        monkeypatch.setattr(module, "ASK_S", LIMIT_S)
    with Cluster(nodes=2, config=config) as cluster:
        with cluster.client() as client:
            client.run(Admin(client.asynchronous).create_topics([NewTopic("far", assignments=[[2]])]))
        name = other_nodes_group(cluster, 1)
        view = view_of(cluster.node(1))
        sampler = Sampler(view, 1.0)
        cluster.run(1, sampler.sample())
        produce(cluster, "far", 20)
        cluster.run(1, sampler.sample())
        [point] = view.history.rates.of_topic("far")
        assert point.records
        assert point.bytes
        assert [lag for _, lag in view.history.lags.samples(name, ["far"])] == [0, 20]
        monkeypatch.setattr(sampler_module, "GROUP_PARTITIONS_MAX", 0)
        cluster.run(1, sampler.sample())
        assert sampler._large >= {name}, "a large group is not asked for again"
        seen = len(view.history.lags.samples(name, ["far"]))
        cluster.run(1, sampler.sample())
        assert len(view.history.lags.samples(name, ["far"])) == seen
        cluster.kill(2)
        cluster.run(1, sampler.sample())
        assert view.history.rates.of_topic("far")[-1].records is None
        cluster.start(2)
        deadline = time.monotonic() + LIMIT_S
        while view.history.rates.of_topic("far")[-1].records is None:
            assert time.monotonic() < deadline, "the sampler does not ask node 2 again"
            cluster.run(1, sampler.sample())
        cluster.run(1, sampler.close())


def test_node_records_the_history_of_rates_and_lags_even_if_no_console_is_open() -> None:
    with Broker(topics={"orders": 1}, config={**HTTP, PROPERTY: 1000}) as broker:
        produce(broker, "orders", 10)
        commit(broker, "readers", {("orders", 0): 3})
        deadline = time.monotonic() + LIMIT_S
        while len(broker.node.http._history.lags.samples("readers", ["orders"])) < 2:
            assert ask(broker, "GET", "/livez").status == 200
            assert time.monotonic() < deadline
        history = ask(broker, "GET", "/v1/groups/readers").value["lag_history"]
        assert len(history) > 2
        assert {lag for _, lag in history} == {7}
        assert [at_ms for at_ms, _ in history] == sorted(at_ms for at_ms, _ in history)
        assert len(ask(broker, "GET", "/v1/cluster/overview").value["history"]) >= 2
        produce(broker, "orders", 10)
        while not (rates := ask(broker, "GET", "/v1/topics/orders").value["rate_history"]):
            assert time.monotonic() < deadline
        assert any(each["records_per_second"] for each in rates)


def test_node_without_an_http_listener_takes_no_samples() -> None:
    with Broker(config={PROPERTY: 1000}) as broker:
        assert broker.node.http._sampling is None
