"""Tests Kafka's own tools, unchanged, on a cluster of three nodes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.process_cluster import ProcessCluster
from waiting import until

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

KafkaTool = Callable[..., "subprocess.CompletedProcess[str]"]

TOPICS = "org.apache.kafka.tools.TopicCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CONFIGS = "kafka.admin.ConfigCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def tool(cluster: ProcessCluster, kafka_tool: KafkaTool) -> Callable[..., str]:
    def run(name: str, *args: str, ok: bool = True) -> str:
        done = kafka_tool(name, "--bootstrap-server", cluster.bootstrap, *args, ok=ok)
        return done.stdout + done.stderr

    return run


Tool = Callable[..., str]


def replicas(tool: Tool, topic: str) -> dict[int, list[int]]:
    shown = tool(TOPICS, "--describe", "--topic", topic)
    found = re.findall(r"Partition: (\d+)\s+Leader: \S+\s+Replicas: ([\d,]+)", shown)
    return {int(index): [int(each) for each in listed.split(",")] for index, listed in found}


def test_kafkas_quorum_tool_describes_the_quorum(tool: Tool) -> None:
    status = tool(QUORUM, "describe", "--status")
    assert re.search(r"LeaderId:\s+[123]\b", status)
    assert re.search(r"MaxFollowerLag:\s+\d+", status)
    assert len(re.findall(r'"id": [123],', status.split("CurrentVoters:")[1].split("CurrentObservers")[0])) == 3
    rows = tool(QUORUM, "describe", "--replication", "--human-readable").splitlines()
    assert sum("Leader" in row.split() for row in rows) == 1
    assert sum("Follower" in row.split() for row in rows) == 2


def test_kafkas_quorum_tool_removes_a_controller_and_adds_it_again(
    tool: Tool, cluster: ProcessCluster, kafka_tool: KafkaTool
) -> None:
    status = tool(QUORUM, "describe", "--status")
    leader = int(re.findall(r"LeaderId:\s+(\d+)", status)[0])
    victim = next(node for node in (1, 2, 3) if node != leader)
    properties = (cluster.nodes[victim].data / "meta.properties").read_text()
    directory = re.findall(r"directory.id=(\S+)", properties)[0]
    tool(QUORUM, "remove-controller", "--controller-id", str(victim), "--controller-directory-id", directory)

    def voters() -> set[int]:
        said = tool(QUORUM, "describe", "--replication")
        return {int(row.split()[0]) for row in said.splitlines() if row.split()[-1:] in (["Leader"], ["Follower"])}

    until(lambda: victim not in voters(), "it still votes")
    added = kafka_tool(
        QUORUM,
        *("--command-config", str(cluster.nodes[victim].properties)),
        *("--bootstrap-server", cluster.bootstrap, "add-controller"),
    )
    assert "Added" in added.stdout + added.stderr
    until(lambda: voters() == {1, 2, 3}, "it doesn't vote again")


def test_kafkas_tool_runs_a_throttled_reassignment_and_then_removes_the_throttle(tool: Tool, tmp_path: Path) -> None:
    tool(TOPICS, "--create", "--topic", "moved", "--replica-assignment", "1:2,2:3,3:1")
    subject = tmp_path / "topics.json"
    subject.write_text(json.dumps({"version": 1, "topics": [{"topic": "moved"}]}))
    generated = tool(REASSIGN, "--generate", "--topics-to-move-json-file", str(subject), "--broker-list", "1,2,3")
    assert "Proposed partition reassignment configuration" in generated
    plan = tmp_path / "plan.json"
    wanted = {0: [3, 1], 1: [1, 2], 2: [2, 3]}
    plan.write_text(
        json.dumps(
            {
                "version": 1,
                "partitions": [
                    {"topic": "moved", "partition": index, "replicas": brokers} for index, brokers in wanted.items()
                ],
            }
        )
    )
    begun = tool(REASSIGN, "--execute", "--reassignment-json-file", str(plan), "--throttle", "1000000")
    assert "Successfully started partition reassignment" in begun

    def complete() -> bool:
        said = tool(REASSIGN, "--verify", "--reassignment-json-file", str(plan))
        return said.count("is completed") == 3

    until(complete, "not moved")
    assert "Clearing" in tool(REASSIGN, "--verify", "--reassignment-json-file", str(plan))
    assert replicas(tool, "moved") == wanted
    assert "No partition reassignments found" in tool(REASSIGN, "--list")
    throttle = tool(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", "moved")
    assert "throttled.replicas=" not in throttle


def test_kafkas_tool_lists_and_cancels_a_slow_reassignment(
    tool: Tool, kafka_tool: KafkaTool, cluster: ProcessCluster, tmp_path: Path
) -> None:
    tool(TOPICS, "--create", "--topic", "slow", "--replica-assignment", "1:2")
    kafka_tool(
        PRODUCER_PERFORMANCE,
        *("--topic", "slow", "--num-records", "20000", "--record-size", "1000", "--throughput", "-1"),
        *("--command-property", f"bootstrap.servers={cluster.bootstrap}"),
    )
    plan = tmp_path / "plan.json"
    moved = {"topic": "slow", "partition": 0, "replicas": [3, 2]}
    plan.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    tool(REASSIGN, "--execute", "--reassignment-json-file", str(plan), "--throttle", "10000")
    listed = tool(REASSIGN, "--list")
    assert "slow-0: replicas: 3,2,1. adding: 3. removing: 1" in listed
    tool(REASSIGN, "--cancel", "--reassignment-json-file", str(plan))
    assert "No partition reassignments found" in tool(REASSIGN, "--list")
    assert sorted(replicas(tool, "slow")[0]) == [1, 2]


def test_kafkas_tool_elects_preferred_leaders_after_a_restart(tool: Tool, cluster: ProcessCluster) -> None:
    tool(TOPICS, "--create", "--topic", "led", "--replica-assignment", "1:2:3")
    cluster.kill(1)
    until(lambda: "Leader: 1" not in tool(TOPICS, "--describe", "--topic", "led"), "1 still leads")
    assert "led" in tool(TOPICS, "--describe", "--under-replicated-partitions")
    assert "led" not in tool(TOPICS, "--describe", "--unavailable-partitions")
    cluster.start(1)
    until(lambda: "led" not in tool(TOPICS, "--describe", "--under-replicated-partitions"), "1 is not in sync again")
    said = tool(ELECT, "--election-type", "PREFERRED", "--topic", "led", "--partition", "0")
    assert "completed" in said
    assert "Leader: 1" in tool(TOPICS, "--describe", "--topic", "led")
    again = tool(ELECT, "--election-type", "PREFERRED", "--topic", "led", "--partition", "0")
    assert "already elected" in again


def test_kafkas_tools_show_the_cluster_and_its_features_and_log_directories(
    tool: Tool, kafka_tool: KafkaTool, cluster: ProcessCluster
) -> None:
    shown = kafka_tool(CLUSTER, "cluster-id", "--bootstrap-server", cluster.bootstrap).stdout
    assert re.search(r"Cluster ID: \S+", shown)
    endpoints = kafka_tool(CLUSTER, "list-endpoints", "--bootstrap-server", cluster.bootstrap).stdout
    assert len(re.findall(r"^[123]\s", endpoints, re.MULTILINE)) == 3
    features = tool(FEATURES, "describe")
    assert re.search(r"Feature: metadata.version\s.*FinalizedVersionLevel: \S+", features)
    assert re.search(r"Feature: kraft.version\s.*FinalizedVersionLevel: 1", features)
    directories = json.loads(tool(LOG_DIRS, "--describe").splitlines()[-1])
    assert sorted(broker["broker"] for broker in directories["brokers"]) == [1, 2, 3]


def test_kafkas_tools_work_with_controllers_as_bootstrap_servers(
    tool: Tool, kafka_tool: KafkaTool, cluster: ProcessCluster
) -> None:
    """Checks that output and exit codes are the same as with controllers of Apache Kafka 4.3.1 (KIP-919)."""
    controllers = ",".join(f"{node.host}:{node.controller_port}" for node in cluster.nodes.values())
    tool(TOPICS, "--create", "--topic", "seen-by-controllers", "--partitions", "1")

    def ask(name: str, *args: str, ok: bool = True) -> str:
        done = kafka_tool(name, *args, "--bootstrap-controller", controllers, ok=ok)
        assert ok or done.returncode == 1
        return done.stdout + done.stderr

    def ask_first(name: str, *args: str) -> str:
        done = kafka_tool(name, "--bootstrap-controller", controllers, *args)
        return done.stdout + done.stderr

    def shows(value: int, *entity: str) -> None:
        """Waits until the config has this value. A controller that is not the leader applies a change a moment
        later."""
        until(lambda: f"ms={value}" in ask(CONFIGS, "--describe", *entity), f"{value} is not shown")

    assert re.search(r"LeaderId:\s+[123]\b", ask_first(QUORUM, "describe", "--status"))
    rows = ask_first(QUORUM, "describe", "--replication").splitlines()
    assert [sum(role in row.split() for row in rows) for role in ("Leader", "Follower")] == [1, 2]
    assert re.search(r"metadata.version\s.*FinalizedVersionLevel: 4.3-IV0", ask_first(FEATURES, "describe"))
    upgrade = ask_first(FEATURES, "upgrade", "--feature", "transaction.version=2", "--dry-run")
    assert "transaction.version can be upgraded to 2" in upgrade
    assert "Cluster ID: " in ask(CLUSTER, "cluster-id")
    endpoints = ask(CLUSTER, "list-endpoints")
    assert re.findall(r"^([123])\s.*\scontroller\s*$", endpoints, re.MULTILINE) == ["1", "2", "3"]
    assert "BrokerIdNotRegisteredException" in ask(CLUSTER, "unregister", "--id", "77", ok=False)

    brokers = ("--entity-type", "brokers")
    ask(CONFIGS, "--alter", *brokers, "--entity-default", "--add-config", "log.retention.ms=777777777")
    shows(777777777, *brokers, "--entity-default")
    ask(CONFIGS, "--alter", *brokers, "--entity-default", "--delete-config", "log.retention.ms")
    for node in cluster.nodes:
        own = (*brokers, "--entity-name", str(node))
        ask(CONFIGS, "--alter", *own, "--add-config", "log.cleaner.backoff.ms=20000")
        shows(20000, *own)
        ask(CONFIGS, "--alter", *own, "--delete-config", "log.cleaner.backoff.ms")
    topic = ("--entity-type", "topics", "--entity-name")
    ask(CONFIGS, "--alter", *topic, "seen-by-controllers", "--add-config", "retention.ms=100000")
    described = ("--describe", *topic, "seen-by-controllers")
    until(lambda: "retention.ms=100000" in tool(CONFIGS, *described), "the topic has no retention.ms")
    refused = ask(CONFIGS, "--alter", *topic, "nosuch", "--add-config", "retention.ms=1", ok=False)
    assert "UnknownTopicOrPartitionException" in refused
    assert "No partition reassignments found" in ask(REASSIGN, "--list")


def test_cordoned_broker_gets_no_new_replicas_until_it_is_uncordoned(tool: Tool) -> None:
    """Checks that the responses are the same as in Apache Kafka 4.3.1 (KIP-1066), except for the wording."""
    third = ("--alter", "--entity-type", "brokers", "--entity-name", "3")
    refused = tool(CONFIGS, *third, "--add-config", "cordoned.log.dirs=[*,/nosuch]", ok=False)
    assert "InvalidRequestException" in refused
    tool(CONFIGS, *third, "--add-config", "cordoned.log.dirs=*")
    new = ("--create", "--partitions", "1", "--replication-factor", "3", "--topic")
    attempts = iter(range(1000))

    def takes() -> bool:
        return "Created topic" in tool(TOPICS, *new, f"everywhere-{next(attempts)}", ok=False)

    until(lambda: not takes(), "a topic is still placed on a broker that is cordoned")
    tool(TOPICS, "--create", "--topic", "by-hand", "--replica-assignment", "3:1")
    assert replicas(tool, "by-hand") == {0: [3, 1]}
    tool(CONFIGS, *third, "--delete-config", "cordoned.log.dirs")
    until(takes, "the broker is not opened again")
