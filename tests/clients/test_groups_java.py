"""Tests consumer groups with Kafka's own Java client and tools, in both group protocols."""

from __future__ import annotations

import re
import secrets
import subprocess
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from conftest import RunningBroker

pytestmark = [pytest.mark.java]

NewTopicName = Callable[..., str]
KafkaTool = Callable[..., "subprocess.CompletedProcess[str]"]

CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for index in range(count):
        producer.produce(topic, value=str(index), partition=index % 2)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafkas_tools_can_describe_and_reset_and_delete_a_group_that_has_read_a_topic(
    bootstrap: str, topic: NewTopicName, kafka_tool: KafkaTool, protocol: str
) -> None:
    name, group = topic(partitions=2), f"g-{secrets.token_hex(4)}"
    produce(bootstrap, name, 10)
    at = ("--bootstrap-server", bootstrap)
    read = kafka_tool(
        CONSOLE_CONSUMER,
        *(*at, "--topic", name, "--group", group, "--from-beginning", "--max-messages", "10"),
        *("--command-property", f"group.protocol={protocol}"),
    )
    assert sorted(read.stdout.split(), key=int) == [str(index) for index in range(10)]

    described = kafka_tool(GROUPS, *at, "--describe", "--group", group).stdout
    rows = re.findall(rf"{group}\s+{name}\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", described)
    assert sorted(rows) == [("0", "5", "5", "0"), ("1", "5", "5", "0")]
    state = kafka_tool(GROUPS, *at, "--describe", "--group", group, "--state").stdout
    assert re.search(rf"{group}.*Empty\s+0", state)
    assert group in kafka_tool(GROUPS, *at, "--list", "--type", protocol, "--state", "empty").stdout

    reset = (*at, "--group", group, "--topic", name, "--reset-offsets", "--shift-by", "-2", "--execute")
    assert re.search(rf"{name}\s+0\s+3", kafka_tool(GROUPS, *reset).stdout)
    again = kafka_tool(
        CONSOLE_CONSUMER,
        *(*at, "--topic", name, "--group", group, "--max-messages", "4"),
        *("--command-property", f"group.protocol={protocol}"),
    )
    assert sorted(again.stdout.split(), key=int) == ["6", "7", "8", "9"]
    assert "was successful" in kafka_tool(GROUPS, *at, "--delete", "--group", group).stdout


def test_kafkas_dump_log_tool_prints_the_group_records_of_consumer_offsets(
    broker: RunningBroker, topic: NewTopicName, kafka_tool: KafkaTool
) -> None:
    if broker.data is None:
        pytest.skip("needs the broker's directory")
    name, group = topic(partitions=1), f"g-{secrets.token_hex(4)}"
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(name, value="0")
    assert producer.flush(30) == 0
    for protocol in ("classic", "consumer"):
        kafka_tool(
            CONSOLE_CONSUMER,
            *("--bootstrap-server", broker.bootstrap, "--topic", name, "--group", f"{group}-{protocol}"),
            *("--from-beginning", "--max-messages", "1", "--command-property", f"group.protocol={protocol}"),
        )
    logs = [
        str(path)
        for path in sorted(broker.data.glob("**/__consumer_offsets-*/*.log"))
        if group.encode() in path.read_bytes()
    ]
    printed = kafka_tool(DUMP_LOG, "--offsets-decoder", "--files", ",".join(logs)).stdout
    kinds = {
        int(kind)
        for kind, named in re.findall(r'"type":"(\d+)","data":\{"group(?:Id)?":"([^"]+)', printed)
        if group in named
    }
    assert {1, 2, 3, 5, 6, 7, 8} <= kinds
    assert f'"group":"{group}-classic","topic":"{name}"' in printed
    assert "isvalid: false" not in printed
