"""Tests `penstock cluster` and `penstock quorum` on three nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.client.admin import NewTopic
from penstock.client.cluster_admin import ClusterAdmin
from penstock.records.build import build_batch
from penstock.records.header import HEADER_SIZE, parse_header
from penstock.records.record import read_records
from penstock.testing import Cluster
from waiting import until

pytestmark = pytest.mark.programs


class Shell:
    def __init__(self, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
        self.cluster = cluster
        self._captured = capsys
        self.err = ""

    def run(self, *words: str, code: int = Exit.OK) -> str:
        left = main([*words, "--bootstrap", self.cluster.bootstrap])
        said = self._captured.readouterr()
        self.err = said.err
        assert left == code, said.err
        return said.out

    def json(self, *words: str, code: int = Exit.OK) -> Any:
        return json.loads(self.run(*words, "--json", code=code))

    def status(self) -> Any:
        """Returns the status, also while the cluster needs attention because replicas are catching up."""
        left = main(["cluster", "status", "--json", "--bootstrap", self.cluster.bootstrap])
        said = json.loads(self._captured.readouterr().out)
        assert left == (Exit.NEEDS_ATTENTION if said["troubles"] else Exit.OK)
        return said


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def shell(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(cluster, capsys)


def create(cluster: Cluster, name: str, *replicas: tuple[int, ...]) -> None:
    with cluster.client() as client:
        client.create_topics([NewTopic(name, assignments=replicas)])
        with client.producer() as producer:
            producer.send_many(name, [(b"key", b"value %d" % each, (), None) for each in range(100)])


def replicas_of(cluster: Cluster, topic: str) -> dict[int, tuple[int, ...]]:
    with cluster.client() as client:
        (found,) = client.describe_topics([topic])
        return {index: part.replicas for index, part in found.partitions.items()}


def test_replicas_are_identical_after_a_node_was_drained_and_added_again(shell: Shell, cluster: Cluster) -> None:
    create(cluster, "moved", (1, 2), (2, 3), (3, 1))
    before = shell.json("cluster", "verify", "moved")
    assert all(len(found["compared"]) == 2 and found["differences"] == [] for found in before)
    plan = shell.json("cluster", "drain", "3", "--topic", "moved", "--dry-run")
    assert [(row["partition"], row["removing"]) for row in plan] == [(1, [3]), (2, [3])]
    assert replicas_of(cluster, "moved")[1] == (2, 3)
    shell.run("cluster", "drain", "3", "--topic", "moved", "--yes", "--throttle", "50M", "--at-once", "1")
    assert all(3 not in replicas for replicas in replicas_of(cluster, "moved").values())
    shell.run("cluster", "drain", "3", "--topic", "moved", "--yes")
    assert "nothing to move" in shell.err
    shell.run("cluster", "add", "3", "--topic", "moved", "--yes")
    assert sum(3 in replicas for replicas in replicas_of(cluster, "moved").values()) == 2
    cluster.wait_in_sync("moved")
    after = shell.json("cluster", "verify", "moved")
    assert [found["digest"] for found in after] == [found["digest"] for found in before]
    assert all(found["differences"] == [] for found in after)
    configs = shell.json("config", "describe", "topic", "moved")
    assert not any("throttled" in str(row) and row.get("source") == "topic" for row in configs)


def test_a_drained_node_gets_no_new_topics_until_it_is_added_again(capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster() as cluster:  # a topic of its own, which doesn't need all three nodes
        shell = Shell(cluster, capsys)
        create(cluster, "emptied", (3, 1), (1, 2))

        def states() -> dict[int, str]:
            return {row["node"]: row["state"] for row in shell.status()["brokers"]}

        shell.json("cluster", "drain", "3", "--dry-run")
        assert "node 3 to get no new replicas until `penstock cluster add 3`" in shell.err
        assert states()[3] == "up"
        shell.run("cluster", "drain", "3", code=Exit.USAGE)
        shell.run("cluster", "drain", "3", "--yes")
        assert states() == {1: "up", 2: "up", 3: "cordoned"}
        until(lambda: bool(cluster.node(cluster.controller).broker.metadata.image.brokers[3].cordoned_log_dirs))
        with cluster.client() as client:
            client.create_topics([NewTopic("later", partitions=8, replication_factor=2)])
        for topic in ("emptied", "later"):
            assert all(3 not in replicas for replicas in replicas_of(cluster, topic).values())
        shell.run("cluster", "forget", "3", code=Exit.FAILED)
        assert "node 3 is running" in shell.err
        shell.run("cluster", "add", "3", "--yes")
        assert states()[3] == "up"
        assert any(3 in replicas for replicas in replicas_of(cluster, "later").values())


def test_cluster_drain_without_a_terminal_moves_nothing_and_mentions_the_yes_option(
    shell: Shell, cluster: Cluster
) -> None:
    create(cluster, "asked", (1, 2))
    shell.run("cluster", "drain", "2", "--topic", "asked", code=Exit.USAGE)
    assert "--yes" in shell.err
    assert replicas_of(cluster, "asked") == {0: (1, 2)}


def test_rebalance_returns_leadership_to_preferred_replicas(shell: Shell, cluster: Cluster) -> None:
    create(cluster, "led", (1, 2, 3))
    cluster.restart(1)
    cluster.wait_in_sync("led")
    assert cluster.leader("led") != 1
    status = shell.status()
    assert status["not_led_by_preferred"] >= 1
    shell.run("cluster", "rebalance", "--topic", "led", "--yes")
    assert cluster.leader("led") == 1


def test_cluster_status_shows_a_fenced_node_and_its_under_replicated_partitions(shell: Shell, cluster: Cluster) -> None:
    create(cluster, "lacking", (1, 2, 3))
    gone = next(node for node in cluster.nodes if node != cluster.controller)
    cluster.kill(gone)
    try:
        with cluster.client() as client, client.producer() as producer:
            producer.send("lacking", b"after").result()
        status = shell.status()
        assert [row["node"] for row in status["brokers"] if row["state"] != "up"] == [gone]
        (row,) = [row for row in status["partition_states"] if row["topic"] == "lacking"]
        assert row["problem"] == "under-replicated"
        assert "lacking-0" in shell.run("cluster", "status", "--problems", code=Exit.NEEDS_ATTENTION)
        assert shell.err.startswith("penstock: the cluster needs attention: ")
        assert f"node {gone} fenced" in shell.err
    finally:
        cluster.start(gone)
    cluster.wait_in_sync("lacking")


def test_quorum_command_removes_a_voter_and_adds_it_again(shell: Shell, cluster: Cluster) -> None:
    leader = shell.json("quorum", "describe")["leader_id"]
    voter = next(node for node in cluster.nodes if node != leader)
    listener = cluster.node(voter).controller_bootstrap
    assert voter not in shell.json("quorum", "remove-voter", str(voter))["voters"]
    after = shell.json("quorum", "add-voter", str(voter), "--listener", f"CONTROLLER://{listener}")
    assert sorted(after["voters"]) == [1, 2, 3]
    rows = shell.json("quorum", "describe", "--replication")
    assert sorted(row["status"] for row in rows) == ["leader", "voter", "voter"]


def test_cluster_verify_finds_a_damaged_replica_and_cluster_reset_copies_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(data=tmp_path) as cluster:
        shell = Shell(cluster, capsys)
        create(cluster, "t", (1, 2))
        cluster.wait_in_sync("t")
        cluster.stop(2)
        falsify(tmp_path / "2" / "t-0" / "00000000000000000000.log")
        cluster.start(2)
        cluster.wait_in_sync("t")
        (found,) = shell.json("cluster", "verify", "t", "--range", "10", code=Exit.FAILED)
        (difference,) = found["differences"]
        assert (difference["replica"], difference["at_offset"]) == (2, 0)
        assert "other bytes" in difference["what"]
        reset = shell.json("cluster", "reset", "t-0", "--replica", "2", "--yes")
        assert reset["in_sync"]
        assert reset["dropped_end_offset"] == reset["copied_end_offset"] == 100
        shell.run("cluster", "verify", "t")
        shell.run("cluster", "reset", "t-0", "--replica", "3", "--yes", code=Exit.NOT_FOUND)


def falsify(path: Path) -> None:
    """Replaces the first batch of a file by a batch with other values, the same length and a valid CRC."""
    data = bytearray(path.read_bytes())
    header = parse_header(data)
    assert header.size > HEADER_SIZE
    batch = bytes(data[: header.size])
    records = [(each.timestamp, each.key, (each.value or b"").upper(), ()) for each in read_records(batch)]
    other = build_batch(
        records,
        base_offset=header.base_offset,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.partition_leader_epoch,
    )
    assert len(other) == header.size
    data[: header.size] = other
    path.write_bytes(data)


def test_topic_trim_deletes_records_below_the_given_offset_and_a_dry_run_shows_their_number(
    cluster: Cluster, shell: Shell
) -> None:
    create(cluster, "trimmed", (1, 2))
    plan = shell.json("topic", "trim", "trimmed", "--before", "40", "--dry-run")
    assert plan == [{"partition": 0, "start": 0, "new_start": 40, "records": 40}]
    assert "add --yes" in _refusal(shell, "topic", "trim", "trimmed", "--before", "40", code=Exit.USAGE)
    shell.run("topic", "trim", "trimmed", "--before", "40", "--yes")
    assert shell.json("topic", "trim", "trimmed", "--before", "40", "--yes") == [], "no record is that old"
    assert shell.json("topic", "trim", "trimmed", "--before", "-1", "--partition", "0", "--yes")[0]["new_start"] == 100
    assert "has no partition 7" in _refusal(
        shell, "topic", "trim", "trimmed", "--before", "1", "--partition", "7", code=Exit.NOT_FOUND
    )
    assert "can't be -2" in _refusal(shell, "topic", "trim", "trimmed", "--before", "-2", code=Exit.USAGE)


def test_cluster_elect_makes_the_preferred_replicas_lead_again(cluster: Cluster, shell: Shell) -> None:
    create(cluster, "elected", (1, 2), (2, 1))
    with cluster.client() as client:
        client.run(ClusterAdmin(client.asynchronous).reassign({("elected", 0): (2, 1)}))
    wanted = [{"topic": "elected", "partition": 0}]
    until(lambda: bool(shell.json("topic", "describe", "elected")[0]["partitions"][0]["replicas"] == [2, 1]))
    assert shell.json("cluster", "elect", "elected-0") == wanted
    until(lambda: bool(shell.json("topic", "describe", "elected")[0]["partitions"][0]["leader"] == 2))
    assert shell.json("cluster", "elect", "elected") == []
    assert shell.json("cluster", "elect", "elected", "--unclean") == [], "every partition has a leader"
    assert "there is no topic" in _refusal(shell, "cluster", "elect", "nowhere", code=Exit.NOT_FOUND)


def _refusal(shell: Shell, *words: str, code: int) -> str:
    shell.run(*words, code=code)
    return shell.err
