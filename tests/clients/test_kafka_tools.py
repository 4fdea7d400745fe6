"""Tests Kafka's own command-line tools, unchanged, from its jars.

A tool takes a second to start, so each test checks many things.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import RunningBroker
from tools import kafka

pytestmark = [pytest.mark.java]

NewTopicName = Callable[..., str]
KafkaTool = Callable[..., "subprocess.CompletedProcess[str]"]

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"


def test_kafkas_tool_can_create_and_describe_and_alter_and_list_and_delete_topics(
    bootstrap: str, kafka_tool: KafkaTool
) -> None:
    def topics(*args: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        return kafka_tool(TOPICS, "--bootstrap-server", bootstrap, *args, ok=ok)

    name = "tools-topic"
    topics("--create", "--topic", name, "--partitions", "3", "--config", "retention.ms=100000")
    shown = topics("--describe", "--topic", name).stdout
    assert "PartitionCount: 3" in shown
    assert "retention.ms=100000" in shown
    assert len(re.findall(r"Partition: \d\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", shown)) == 3
    topics("--alter", "--topic", name, "--partitions", "5")
    assert "PartitionCount: 5" in topics("--describe", "--topic", name).stdout
    again = topics("--create", "--topic", name, ok=False)
    assert again.returncode != 0
    assert "already exists" in again.stdout + again.stderr
    topics("--delete", "--topic", name)
    assert name not in topics("--list").stdout.split()


def test_kafkas_tool_changes_and_describes_configs_of_topics_and_brokers(
    bootstrap: str, topic: NewTopicName, kafka_tool: KafkaTool
) -> None:
    def configs(*args: str) -> str:
        return kafka_tool(CONFIGS, "--bootstrap-server", bootstrap, *args).stdout

    name = topic()
    entity = ("--entity-type", "topics", "--entity-name", name)
    configs("--alter", *entity, "--add-config", "cleanup.policy=[compact,delete],segment.bytes=1048576")
    shown = configs("--describe", *entity)
    assert "cleanup.policy=compact,delete" in shown
    assert "segment.bytes=1048576" in shown
    configs("--alter", *entity, "--delete-config", "segment.bytes")
    assert "segment.bytes" not in configs("--describe", *entity)
    everything = configs("--describe", *entity, "--all")
    assert "segment.bytes=1073741824" in everything
    defaults = ("--entity-type", "brokers", "--entity-default")
    configs("--alter", *defaults, "--add-config", "log.cleaner.threads=2")
    assert "log.cleaner.threads=2" in configs("--describe", *defaults)
    configs("--alter", *defaults, "--delete-config", "log.cleaner.threads")


def test_kafkas_tool_sets_and_shows_client_quotas(bootstrap: str, kafka_tool: KafkaTool) -> None:
    entity = ("--entity-type", "clients", "--entity-name", "somebody")
    kafka_tool(
        CONFIGS, "--bootstrap-server", bootstrap, "--alter", *entity, "--add-config", "producer_byte_rate=1000000"
    )
    shown = kafka_tool(CONFIGS, "--bootstrap-server", bootstrap, "--describe", *entity).stdout
    assert "producer_byte_rate=1000000" in shown


def test_the_console_producer_and_consumer_pass_keys_and_headers(
    bootstrap: str, topic: NewTopicName, kafka_tool: KafkaTool
) -> None:
    name = topic()
    parse = ["--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"]
    lines = "h1:a,h2:b\tkey1\tvalue1\nh1:c\tkey2\tvalue2\n"
    kafka_tool(CONSOLE_PRODUCER, "--bootstrap-server", bootstrap, "--topic", name, *parse, stdin=lines)
    shown = kafka_tool(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", bootstrap, "--topic", name, "--partition", "0", "--offset", "earliest"),
        *("--max-messages", "2", "--timeout-ms", "20000"),
        *("--formatter-property", "print.key=true", "--formatter-property", "print.headers=true"),
    ).stdout
    assert shown.splitlines() == ["h1:a,h2:b\tkey1\tvalue1", "h1:c\tkey2\tvalue2"]


def test_kafkas_tools_show_offsets_and_log_dirs_and_delete_records(
    bootstrap: str, topic: NewTopicName, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    name = topic()
    kafka_tool(CONSOLE_PRODUCER, "--bootstrap-server", bootstrap, "--topic", name, stdin="a\nb\nc\n")
    asked = ("--bootstrap-server", bootstrap, "--topic", name)
    assert kafka_tool(OFFSETS, *asked).stdout.strip() == f"{name}:0:3"
    assert kafka_tool(OFFSETS, *asked, "--time", "earliest").stdout.strip() == f"{name}:0:0"
    # The first record with the largest timestamp: lines of one millisecond share a timestamp.
    assert re.fullmatch(rf"{name}:0:[012]", kafka_tool(OFFSETS, *asked, "--time", "max-timestamp").stdout.strip())
    shown = kafka_tool(LOG_DIRS, "--bootstrap-server", bootstrap, "--describe", "--topic-list", name).stdout
    described = json.loads(shown.splitlines()[-1])
    replica = described["brokers"][0]["logDirs"][0]["partitions"][0]
    assert replica["partition"] == f"{name}-0"
    assert replica["size"] > 0
    wanted = tmp_path / "delete.json"
    wanted.write_text(json.dumps({"partitions": [{"topic": name, "partition": 0, "offset": 2}], "version": 1}))
    kafka_tool(DELETE_RECORDS, "--bootstrap-server", bootstrap, "--offset-json-file", str(wanted))
    assert kafka_tool(OFFSETS, *asked, "--time", "earliest").stdout.strip() == f"{name}:0:2"


def test_kafkas_dump_log_tool_prints_penstocks_files_without_an_error(
    broker: RunningBroker, topic: NewTopicName, kafka_tool: KafkaTool
) -> None:
    if broker.data is None:
        pytest.skip("the broker's files are not ours to read")
    name = topic()
    kafka_tool(CONSOLE_PRODUCER, "--bootstrap-server", broker.bootstrap, "--topic", name, stdin="a\nb\nc\n")
    segment = broker.data / f"{name}-0" / "00000000000000000000.log"
    shown = kafka_tool(DUMP_LOG, "--files", str(segment), "--deep-iteration", "--print-data-log").stdout
    assert "lastOffset: 2" in shown
    assert "isvalid: true" in shown
    assert [line.rpartition("payload: ")[2] for line in shown.splitlines() if "payload: " in line] == ["a", "b", "c"]
    metadata = broker.data / "__cluster_metadata-0" / "00000000000000000000.log"
    shown = kafka_tool(DUMP_LOG, "--cluster-metadata-decoder", "--files", str(metadata)).stdout
    assert f'"name":"{name}"' in shown
    assert "isvalid: false" not in shown


def test_verifiable_consumer_reads_the_records_of_the_verifiable_producer(
    bootstrap: str, topic: NewTopicName, kafka_jars: None
) -> None:
    name = topic(partitions=2)
    # In separate processes, because they finish their work in the JVM's shutdown.
    produced = kafka.run_tool(
        VERIFIABLE_PRODUCER, "--bootstrap-server", bootstrap, "--topic", name, "--max-messages", "200", "--acks", "-1"
    ).stdout
    acked = {json.loads(line)["value"] for line in produced.splitlines() if '"producer_send_success"' in line}
    assert len(acked) == 200
    consumed = kafka.run_tool(
        VERIFIABLE_CONSUMER,
        *("--bootstrap-server", bootstrap, "--topic", name, "--group-id", f"group-{name}"),
        *("--max-messages", "200", "--reset-policy", "earliest", "--verbose"),
    ).stdout
    seen = {json.loads(line)["value"] for line in consumed.splitlines() if '"record_data"' in line}
    assert seen == acked


def test_kafkas_performance_tools_write_and_read_all_records(
    bootstrap: str, topic: NewTopicName, kafka_tool: KafkaTool
) -> None:
    name = topic(partitions=3)
    produced = kafka_tool(
        PRODUCER_PERFORMANCE,
        *("--topic", name, "--num-records", "20000", "--record-size", "100", "--throughput", "-1"),
        *("--command-property", f"bootstrap.servers={bootstrap}", "acks=all", "compression.type=lz4"),
    ).stdout
    assert "20000 records sent" in produced
    consumed = kafka_tool(
        CONSUMER_PERFORMANCE,
        *("--bootstrap-server", bootstrap, "--topic", name, "--num-records", "20000", "--timeout", "20000"),
        *("--hide-header",),
    ).stdout
    assert consumed.strip().splitlines()[-1].split(", ")[4] == "20000"


def test_kafkas_tools_describe_features_and_quorum_and_cluster_and_api_versions(
    bootstrap: str, kafka_tool: KafkaTool
) -> None:
    server = ("--bootstrap-server", bootstrap)
    features = kafka_tool(FEATURES, *server, "describe").stdout
    assert re.search(r"Feature: metadata.version\s+SupportedMinVersion: \S+\s+SupportedMaxVersion: \S+", features)
    quorum = kafka_tool(QUORUM, *server, "describe", "--status").stdout
    assert re.search(r"LeaderId:\s+\d+", quorum)
    assert re.search(r"CurrentVoters:\s+\[\{?.*\d", quorum)
    replication = kafka_tool(QUORUM, *server, "describe", "--replication").stdout
    assert "Leader" in replication
    assert re.search(r"Cluster ID: \S+", kafka_tool(CLUSTER, "cluster-id", *server).stdout)
    versions = kafka_tool(API_VERSIONS, *server).stdout
    assert "Produce(0): 0 to 13" in versions or "Produce(0): 3 to 13" in versions


def test_kafkas_tool_stores_client_metrics_subscriptions(bootstrap: str, kafka_tool: KafkaTool) -> None:
    server = ("--bootstrap-server", bootstrap)
    alter = ("--alter", "--name", "basic", "--metrics", "org.apache.kafka.producer.", "--interval", "60000")
    kafka_tool(CLIENT_METRICS, *server, *alter)
    shown = kafka_tool(CLIENT_METRICS, *server, "--describe", "--name", "basic").stdout
    assert "interval.ms=60000" in shown
    assert "basic" in kafka_tool(CLIENT_METRICS, *server, "--list").stdout
    kafka_tool(CLIENT_METRICS, *server, "--delete", "--name", "basic")
