"""Tests that Kafka's own tools move replicas between log directories: kafka-log-dirs and kafka-reassign-partitions."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import Broker

pytestmark = [pytest.mark.java, pytest.mark.slow]

KafkaTool = Callable[..., "subprocess.CompletedProcess[str]"]

LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
LIMIT_S = 120.0
RECORDS = 3_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    directories = f"{tmp_path}/a,{tmp_path}/b"
    with Broker(data=tmp_path / "a", topics={"moved": 1}, config={"log.dirs": directories}) as started:
        yield started


def places(kafka_tool: KafkaTool, broker: Broker) -> list[dict[str, Any]]:
    """Returns the replicas of the topic that kafka-log-dirs shows, each with its directory."""
    shown = kafka_tool(LOG_DIRS, "--bootstrap-server", broker.bootstrap, "--describe", "--topic-list", "moved").stdout
    [one] = json.loads(shown.splitlines()[-1])["brokers"]
    return [{**part, "path": each["logDir"]} for each in one["logDirs"] for part in each["partitions"]]


def test_kafkas_tools_move_a_replica_to_another_log_directory(
    broker: Broker, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    kafka_tool(
        PRODUCER_PERFORMANCE,
        *("--topic", "moved", "--num-records", str(RECORDS), "--record-size", "1000", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={broker.bootstrap}"),
    )
    [before] = places(kafka_tool, broker)
    assert not before["isFuture"]
    target = next(str(tmp_path / name) for name in ("a", "b") if str(tmp_path / name) != before["path"])
    plan = tmp_path / "plan.json"
    wanted = {"topic": "moved", "partition": 0, "replicas": [1], "log_dirs": [target]}
    plan.write_text(json.dumps({"version": 1, "partitions": [wanted]}))

    def reassign(*args: str) -> str:
        done = kafka_tool(
            REASSIGN, "--bootstrap-server", broker.bootstrap, "--reassignment-json-file", str(plan), *args
        )
        return done.stdout + done.stderr

    begun = reassign("--execute", "--replica-alter-log-dirs-throttle", "1000")
    assert f"Successfully started moving log directory to {target} for replica moved-0 with broker 1" in begun
    listed = {part["isFuture"]: part for part in places(kafka_tool, broker)}
    assert listed[False]["path"] == before["path"]
    assert listed[True]["path"] == target
    assert 0 < listed[True]["offsetLag"] < RECORDS
    assert "is still in progress" in reassign("--verify", "--preserve-throttles")

    # With a higher throttle the move ends; the last verification removes the throttle.
    reassign("--execute", "--additional", "--replica-alter-log-dirs-throttle", "100000000")
    deadline = time.monotonic() + LIMIT_S
    while "completed successfully" not in (said := reassign("--verify")):
        assert time.monotonic() < deadline, said
    [after] = places(kafka_tool, broker)
    assert (after["path"], after["isFuture"], after["offsetLag"]) == (target, False, 0)
    assert after["size"] == before["size"]
    shown = kafka_tool(OFFSETS, "--bootstrap-server", broker.bootstrap, "--topic", "moved").stdout
    assert shown.strip() == f"moved:0:{RECORDS}"


def test_kafkas_tool_prints_an_error_if_a_log_directory_does_not_exist(
    broker: Broker, kafka_tool: KafkaTool, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    wanted = {"topic": "moved", "partition": 0, "replicas": [1], "log_dirs": [str(tmp_path / "elsewhere")]}
    plan.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
    done = kafka_tool(
        REASSIGN,
        *("--bootstrap-server", broker.bootstrap, "--reassignment-json-file", str(plan), "--execute"),
        *("--timeout", "2000"),
        ok=False,
    )
    assert "LogDirNotFoundException" in done.stdout + done.stderr
