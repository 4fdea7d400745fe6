"""Tests faults of machines instead of processes: a cut network and a full disk. Skipped if the system doesn't allow
them.

Each node runs in a network namespace of its own, joined by a bridge; a test cuts a node off by taking its link down, so
that no peer gets a TCP reset. The full disk is a small tmpfs.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tools.acknowledged_load import QUIET, WRITERS, Book, Load, judge
from tools.process_cluster import ProcessCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PARTITIONS = 3
NODES = (1, 2, 3)
NOTICED_SOON = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
HTTP_PORT = 9644
READ_URL = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=60).read().decode())"
SPARE_BYTES = 2 * 1024 * 1024


def command(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


class Cables:
    """Connects the nodes by a bridge. Each node has its own network namespace."""

    def __init__(self) -> None:
        self.name = f"p{secrets.token_hex(3)}"
        self.subnet = f"10.{secrets.randbelow(100) + 100}.{secrets.randbelow(200) + 20}"

    def host(self, node: int) -> str:
        return f"{self.subnet}.{node + 10}"

    def namespace(self, node: int) -> str:
        return f"{self.name}n{node}"

    def lay(self) -> bool:
        done = command("ip", "link", "add", self.name, "type", "bridge")
        done = done and command("ip", "addr", "add", f"{self.subnet}.1/24", "dev", self.name)
        done = done and command("ip", "link", "set", self.name, "up")
        return done and all(self._lay_one(node) for node in NODES)

    def _lay_one(self, node: int) -> bool:
        space, ours, theirs = self.namespace(node), f"{self.name}a{node}", f"{self.name}b{node}"
        inside = ("ip", "netns", "exec", space)
        return all(
            (
                command("ip", "netns", "add", space),
                command("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs),
                command("ip", "link", "set", theirs, "netns", space),
                command("ip", "link", "set", ours, "master", self.name, "up"),
                command(*inside, "ip", "addr", "add", f"{self.host(node)}/24", "dev", theirs),
                command(*inside, "ip", "link", "set", theirs, "up"),
                command(*inside, "ip", "link", "set", "lo", "up"),
            )
        )

    def pull(self, node: int) -> None:
        assert command("ip", "link", "set", f"{self.name}a{node}", "down")

    def plug(self, node: int) -> None:
        assert command("ip", "link", "set", f"{self.name}a{node}", "up")

    def remove(self) -> None:
        for node in NODES:
            command("ip", "netns", "del", self.namespace(node))
        command("ip", "link", "del", self.name)


@pytest.fixture
def cables() -> Iterator[Cables]:
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the program ip: install iproute2")
    laid = Cables()
    try:
        if not laid.lay():
            pytest.skip("network namespaces can't be made here: they need root")
        yield laid
    finally:
        laid.remove()


def create(cluster: ProcessCluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(timeout=60)


def leader_of(cluster: ProcessCluster, topic: str, not_by: int | None = None) -> int:
    hosts = [f"{node.host}:{node.port}" for node in cluster.nodes.values() if node.node_id != not_by]
    admin = AdminClient({"bootstrap.servers": ",".join(hosts), **QUIET})
    return int(admin.list_topics(topic, timeout=60).topics[topic].partitions[0].leader)


def test_a_leader_cut_off_from_the_network_is_replaced_without_loss(tmp_path: Path, cables: Cables) -> None:
    hosts = {node: cables.host(node) for node in NODES}
    prefixes = {node: ("ip", "netns", "exec", cables.namespace(node)) for node in NODES}
    with ProcessCluster(tmp_path, overrides=NOTICED_SOON, hosts=hosts, prefixes=prefixes) as cluster:
        book = Book("cut", PARTITIONS)
        create(cluster, book.topic)
        load = Load(cluster.bootstrap, book, WRITERS["confluent"])
        try:
            for _ in range(3):
                book.wait_for(200)
                victim = leader_of(cluster, book.topic)
                cables.pull(victim)
                deadline = time.monotonic() + 60
                while leader_of(cluster, book.topic, not_by=victim) == victim:
                    assert time.monotonic() < deadline, f"node {victim} is cut off and still leads"
                    time.sleep(0.2)
                book.wait_for(500)
                cables.plug(victim)
                book.wait_for(200)
        finally:
            load.stop()
        judge(cluster.bootstrap, book)
        print(f"cut: {len(book.acknowledged)} acknowledged, longest pause {book.longest_gap_s:.1f} s")


class Pages:
    """Reads the HTTP pages of each node from inside the node's namespace, so that a node that is cut off still
    answers."""

    def __init__(self, cables: Cables) -> None:
        self._cables = cables

    def read(self, node: int, path: str) -> str:
        inside = ("ip", "netns", "exec", self._cables.namespace(node), sys.executable, "-c", READ_URL)
        url = f"http://{self._cables.host(node)}:{HTTP_PORT}{path}"
        return subprocess.run((*inside, url), capture_output=True, check=True, text=True).stdout

    def suspected(self, node: int) -> int:
        """Returns how often the node suspected a network partition."""
        found = re.search(r"\npenstock_network_partitions_suspected_total (\d+)\n", self.read(node, "/metrics"))
        assert found is not None
        return int(found[1])

    def wait_for_event(self, node: int, kind: str) -> dict[str, Any]:
        """Returns the newest event of a kind that the node itself emitted, once there is one."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            events: list[dict[str, Any]] = json.loads(self.read(node, f"/v1/events?kind={kind}"))["events"]
            own = [each for each in events if each["node"] == node]
            if own:
                return own[0]
            time.sleep(0.2)
        pytest.fail(f"node {node} emitted no event {kind}: {self.read(node, '/v1/events')}")


def test_both_sides_of_a_network_split_report_the_split_and_no_acknowledged_record_is_lost(
    tmp_path: Path, cables: Cables
) -> None:
    hosts = {node: cables.host(node) for node in NODES}
    prefixes = {node: ("ip", "netns", "exec", cables.namespace(node)) for node in NODES}
    # The topic of events would need a majority, which the cut off node does not have: its own memory answers.
    overrides = {
        **NOTICED_SOON,
        "penstock.http.listener": f"0.0.0.0:{HTTP_PORT}",
        "penstock.events.topic.enable": "false",
    }
    pages = Pages(cables)
    with ProcessCluster(tmp_path, overrides=overrides, hosts=hosts, prefixes=prefixes) as cluster:
        book = Book("split", PARTITIONS)
        create(cluster, book.topic)
        load = Load(cluster.bootstrap, book, WRITERS["confluent"])
        try:
            book.wait_for(200)
            victim = json.loads(pages.read(1, "/v1/cluster/quorum"))["leader"]
            others = [node for node in NODES if node != victim]
            assert [pages.suspected(node) for node in NODES] == [0, 0, 0]
            cables.pull(victim)
            lost = pages.wait_for_event(victim, "quorum.majority_lost")
            assert "majority of the voters stopped fetching" in lost["text"]
            pages.wait_for_event(victim, "network.suspected")
            assert pages.suspected(victim) >= 1
            book.wait_for(500)  # a stock client goes on with the majority
            assert leader_of(cluster, book.topic, not_by=victim) != victim
            controller = json.loads(pages.read(others[0], "/v1/cluster/quorum"))["leader"]
            assert controller in others
            fenced = pages.wait_for_event(controller, "broker.fenced")
            assert fenced["fields"]["broker_id"] == victim
            suspected = pages.wait_for_event(controller, "network.suspected")
            assert suspected["fields"]["nodes"] == [victim]
            assert pages.suspected(controller) >= 1
            cables.plug(victim)
            pages.wait_for_event(victim, "quorum.majority_regained")
            book.wait_for(500)
        finally:
            load.stop()
        judge(cluster.bootstrap, book)
        print(f"split: {len(book.acknowledged)} acknowledged, longest pause {book.longest_gap_s:.1f} s")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    if not command("mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(path)):
        pytest.skip("tmpfs can't be mounted here")
    try:
        yield path
    finally:
        command("umount", "-l", str(path))


def fill(path: Path) -> None:
    left = os.statvfs(path)
    (path / "filler").write_bytes(bytes(max(0, left.f_bavail * left.f_frsize - SPARE_BYTES)))


def test_a_full_disk_stops_one_node_and_loses_no_record(tmp_path: Path, small_disk: Path) -> None:
    with ProcessCluster(tmp_path, overrides=NOTICED_SOON, data={3: small_disk / "data"}) as cluster:
        book = Book("full", PARTITIONS)
        create(cluster, book.topic)
        fill(small_disk)
        load = Load(cluster.bootstrap, book, WRITERS["confluent"])
        try:
            deadline = time.monotonic() + 120
            while (left := os.statvfs(small_disk)).f_bavail * left.f_frsize > 65536 and cluster.nodes[3].running:
                book.wait_for(100)
                assert time.monotonic() < deadline, "the disk doesn't fill up"
            book.wait_for(5_000)
            if cluster.nodes[3].running:
                cluster.kill(3)
            (small_disk / "filler").unlink()
            cluster.start(3)
            book.wait_for(500)
        finally:
            load.stop()
        judge(cluster.bootstrap, book)
        print(f"full: {len(book.acknowledged)} acknowledged, longest pause {book.longest_gap_s:.1f} s")
