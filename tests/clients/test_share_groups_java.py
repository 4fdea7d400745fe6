"""Tests share consumers and tools of Kafka's own jars, unchanged, on one node, and on three nodes with a crash."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from penstock.testing.cluster import Cluster

pytestmark = [pytest.mark.java, pytest.mark.slow]

NewTopicName = Callable[..., str]
KafkaTool = Callable[..., "subprocess.CompletedProcess[str]"]

CONFIGS = "kafka.admin.ConfigCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
VERIFIABLE_SHARE_CONSUMER = "org.apache.kafka.tools.VerifiableShareConsumer"
SHARE_PERFORMANCE = "org.apache.kafka.tools.ShareConsumerPerformance"
SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"


def produce(kafka_tool: KafkaTool, bootstrap: str, topic: str, first: int, count: int) -> None:
    lines = "".join(f"v{number}\n" for number in range(first, first + count))
    kafka_tool(CONSOLE_PRODUCER, "--bootstrap-server", bootstrap, "--topic", topic, stdin=lines)


def start_at_earliest(kafka_tool: KafkaTool, bootstrap: str, group: str) -> None:
    where = ("--bootstrap-server", bootstrap, "--alter", "--entity-type", "groups", "--entity-name", group)
    kafka_tool(CONFIGS, *where, "--add-config", "share.auto.offset.reset=earliest")


def test_kafkas_console_share_consumer_reads_records_and_the_share_groups_tool_describes_the_group(
    bootstrap: str, topic: NewTopicName, kafka_tool: KafkaTool
) -> None:
    def share_groups(*args: str, ok: bool = True) -> str:
        answer = kafka_tool(SHARE_GROUPS, "--bootstrap-server", bootstrap, *args, ok=ok)
        return answer.stdout + answer.stderr

    name, group = topic(2), "java-share"
    start_at_earliest(kafka_tool, bootstrap, group)
    produce(kafka_tool, bootstrap, name, 0, 30)
    consumer = ("--bootstrap-server", bootstrap, "--topic", name, "--group", group, "--timeout-ms", "30000")
    first = kafka_tool(CONSOLE_SHARE_CONSUMER, *consumer, "--max-messages", "30").stdout.split()
    assert sorted(first) == sorted(f"v{number}" for number in range(30))
    produce(kafka_tool, bootstrap, name, 30, 5)
    second = kafka_tool(CONSOLE_SHARE_CONSUMER, *consumer, "--max-messages", "5", "--reject").stdout.split()
    assert sorted(second) == sorted(f"v{number}" for number in range(30, 35))
    assert group in share_groups("--list").split()
    assert "Empty" in share_groups("--describe", "--group", group, "--state")
    rows = [line.split() for line in share_groups("--describe", "--group", group).splitlines() if name in line]
    assert sum(int(row[3]) for row in rows) == 35, "accepted and rejected records are before the start offsets"
    assert {row[4] for row in rows} == {"0"}
    assert "share" in kafka_tool(GROUPS, "--bootstrap-server", bootstrap, "--list", "--share").stdout.lower()
    reset = ("--reset-offsets", "--group", group, "--topic", name, "--to-earliest", "--execute")
    assert name in share_groups(*reset)
    again = kafka_tool(CONSOLE_SHARE_CONSUMER, *consumer, "--max-messages", "35").stdout.split()
    assert len(again) == 35
    share_groups("--delete-offsets", "--group", group, "--topic", name)
    assert "successful" in share_groups("--delete", "--group", group).lower()
    assert group not in share_groups("--list").split()


def test_kafkas_verifiable_and_performance_share_consumers_read_all_records(
    bootstrap: str, topic: NewTopicName, kafka_tool: KafkaTool
) -> None:
    name = topic(3)
    produce(kafka_tool, bootstrap, name, 0, 200)
    for mode in ("auto", "sync", "async"):
        events = kafka_tool(
            VERIFIABLE_SHARE_CONSUMER,
            *("--bootstrap-server", bootstrap, "--topic", name, "--group-id", f"verifiable-{mode}"),
            *("--max-messages", "200", "--acknowledgement-mode", mode, "--offset-reset-strategy", "earliest"),
        ).stdout
        told = [json.loads(line) for line in events.splitlines() if line.startswith("{")]
        assert sum(each["count"] for each in told if each["name"] == "offsets_acknowledged") >= 200, mode
        assert not [each for each in told if each.get("success") is False], mode
    start_at_earliest(kafka_tool, bootstrap, "share-speed")
    where = ("--bootstrap-server", bootstrap, "--topic", name, "--group", "share-speed")
    shown = kafka_tool(SHARE_PERFORMANCE, *where, "--num-records", "200", "--timeout", "60000").stdout
    assert "200" in shown


def test_kafkas_features_tool_shows_share_version(bootstrap: str, kafka_tool: KafkaTool) -> None:
    shown = kafka_tool(FEATURES, "--bootstrap-server", bootstrap, "describe").stdout
    [line] = [line for line in shown.splitlines() if "share.version" in line]
    assert "FinalizedVersionLevel: 1" in line


def test_kafkas_share_consumer_continues_after_a_leader_is_killed(kafka_tool: KafkaTool) -> None:
    with Cluster(nodes=3, topics={"t": 3}) as cluster:
        start_at_earliest(kafka_tool, cluster.bootstrap, "g")
        produce(kafka_tool, cluster.bootstrap, "t", 0, 300)
        command = [
            *(sys.executable, "-m", "tools.kafka", "tool", VERIFIABLE_SHARE_CONSUMER, "--verbose"),
            *("--bootstrap-server", cluster.bootstrap, "--topic", "t", "--group-id", "g"),
            *("--max-messages", "600", "--acknowledgement-mode", "sync", "--offset-reset-strategy", "earliest"),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            acknowledged = 0
            seen: set[str] = set()
            for line in running.stdout:
                event = json.loads(line) if line.startswith("{") else {}
                if event.get("name") == "record_data":
                    seen.add(event["value"])
                if event.get("name") == "offsets_acknowledged":
                    acknowledged += event["count"]
                    if acknowledged >= 300 and len(cluster.running) == 3:
                        cluster.kill(cluster.leader("t", 0))
                        produce(kafka_tool, cluster.bootstrap, "t", 300, 300)
        assert seen == {f"v{number}" for number in range(600)}
