"""Tests Kafka's own `kafka-streams-groups` and `kafka-groups`, unchanged, on a streams group of a real application."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from streams_application import GROUP, PARTITIONS, QUICK, TOPICS, Output, application, counts, produce

from penstock.testing import Broker
from tools import kafka
from tools.java_tests import require_jars

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(240)]

KafkaTool = Callable[..., "subprocess.CompletedProcess[str]"]

STREAMS_GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
RECORDS = 200


def test_kafkas_streams_groups_tool_can_list_and_describe_and_reset_and_delete_a_group(
    tmp_path: Path, kafka_tool: KafkaTool
) -> None:
    require_jars(kafka.install_streams)
    with Broker(topics=TOPICS, config=QUICK) as broker:

        def tool(*args: str) -> str:
            answer = kafka_tool(STREAMS_GROUPS, "--bootstrap-server", broker.bootstrap, *args)
            return answer.stdout + answer.stderr

        def rows(*args: str) -> list[list[str]]:
            return [line.split() for line in tool("--describe", "--group", GROUP, *args).splitlines() if GROUP in line]

        produce(broker.bootstrap, RECORDS)
        output = Output(broker.bootstrap)
        try:
            with application(broker.bootstrap, tmp_path / "a", "streams") as running:
                output.read_until(RECORDS, running)
                assert tool("--list").split() == [GROUP]
                [[_, _, _, state, members]] = rows("--state")
                assert (state, members) == ("Stable", "2"), "two threads are two members"
                assert all("ACTIVE:" in row for row in rows("--members", "--verbose"))
                lags = {(row[1].rsplit("-")[-1], row[2]) for row in rows("--offsets")}
                assert lags == {(name, str(index)) for name in ("source", "repartition") for index in range(PARTITIONS)}
                running.stop()
        finally:
            output.close()
        assert sorted(output.values) == counts(RECORDS)
        assert GROUP in kafka_tool(GROUPS, "--bootstrap-server", broker.bootstrap, "--list", "--streams").stdout
        assert rows("--state")[-1][3:] == ["Empty", "0"]
        one_topic = ("--group", GROUP, "--input-topic", "source")
        reset = tool("--reset-offsets", *one_topic, "--to-earliest", "--execute")
        assert sum(line.split()[-1:] == ["0"] for line in reset.splitlines()) == PARTITIONS
        assert tool("--delete-offsets", *one_topic).count("Successful") == PARTITIONS
        assert "successful" in tool("--delete", "--group", GROUP)
        assert tool("--list").split() == []
