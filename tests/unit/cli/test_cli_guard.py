"""Tests `penstock guard` on three nodes, and how the cluster's displays show a node in quarantine."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

import pytest

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.testing import Cluster
from waiting import until

pytestmark = pytest.mark.programs

LIMIT_S = 120.0
CONFIG = {"penstock.http.listener": "127.0.0.1:0"}
REASON = "penstock.guard.quarantined=its disk was swapped"


class Operator:
    def __init__(self, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._cluster = cluster
        self._captured = capsys

    def run(self, *words: str, code: int = Exit.OK) -> str:
        left = main([*words, "--bootstrap", self._cluster.bootstrap])
        said = self._captured.readouterr()
        assert left == code, said.err
        return said.out + said.err

    def http(self, path: str, *, post: bool = False) -> str:
        url = f"{(self._cluster.node(1).http.url or '').rstrip(chr(47))}{path}"
        body = b"{}" if post else None
        with urlopen(Request(url, data=body, headers={"Content-Type": "application/json"}), timeout=LIMIT_S) as answer:
            text: str = answer.read().decode()
        return text

    def fenced(self, node: int) -> set[bool]:
        """Returns the set of `fenced` values of a node in the metadata of all nodes: two values while they differ."""
        return {self._cluster.node(each).broker.metadata.image.brokers[node].fenced for each in (1, 2, 3)}

    def nodes(self) -> dict[int, Any]:
        return {row["node"]: row for row in json.loads(self.http("/v1/cluster/nodes"))["nodes"]}


def test_commands_and_console_show_a_node_in_quarantine_until_it_is_released(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Cluster(topics={"t": 3}, config=CONFIG) as cluster:
        operator = Operator(cluster, capsys)
        assert "no node is in quarantine" in operator.run("guard", "list")
        assert "node 3 is not in quarantine" in operator.run("guard", "release", "3", code=Exit.NOT_FOUND)
        operator.run("config", "set", "broker", "3", REASON)
        until(lambda: operator.fenced(3) == {True})

        assert json.loads(operator.run("guard", "list", "--json")) == [{"node": 3, "reason": "its disk was swapped"}]
        status = operator.run("cluster", "status", code=Exit.NEEDS_ATTENTION)
        assert "node 3 quarantined" in status
        until(lambda: all(3 not in cluster.isr("t", index) for index in range(3)))
        assert (operator.nodes()[3]["state"], operator.nodes()[3]["quarantine"]) == (
            "quarantined",
            "its disk was swapped",
        )
        assert 'penstock_node_quarantined{node="3"} 1' in operator.http("/metrics")
        assert "is in quarantine (its disk was swapped)" in operator.http("/v1/cluster/overview")

        assert "node 3 is released" in operator.run("guard", "release", "3")
        until(lambda: operator.fenced(3) == {False})
        cluster.wait_in_sync("t", timeout_s=LIMIT_S)
        assert json.loads(operator.http("/v1/nodes/3/release", post=True)) == {"node": 3, "released": False}
        assert operator.nodes()[3]["quarantine"] is None
