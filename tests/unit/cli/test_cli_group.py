"""Tests `penstock group` with an embedded broker and a real group member in this process."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.client.connection import BrokerConnection
from penstock.net.network import RealNetwork
from penstock.protocol.messages import api_88_streams_group_heartbeat as wire
from penstock.protocol.messages.api_10_find_coordinator import FindCoordinatorRequest
from penstock.protocol.messages.api_44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.protocol.vocabulary import ResourceType
from penstock.testing import Broker

Run = Callable[..., str]


@pytest.fixture
def run(penstock_session: Broker, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str, code: int = Exit.OK) -> str:
        left = main(["group", *words, "--bootstrap", penstock_session.bootstrap])
        said = capsys.readouterr()
        assert left == code, said.err
        return said.out if code == Exit.OK else said.err

    return run


@pytest.fixture
def topic(penstock_session: Broker) -> str:
    """Returns a topic with ten records at times 1000, 2000, … in one partition, and an empty partition."""
    name = f"t-{secrets.token_hex(4)}"
    penstock_session.create_topic(name, 2)
    with penstock_session.client() as client, client.producer() as producer:
        for index in range(10):
            producer.send(name, value=b"v", partition=0, timestamp_ms=1000 * (index + 1))
    return name


@pytest.fixture
def group(run: Run, topic: str) -> str:
    """Returns a group without members whose committed offset in partition 0 is 4."""
    name = f"g-{secrets.token_hex(4)}"
    run("reset-offsets", name, "-t", f"{topic}:0", "--to-offset", "4")
    return name


def described(run: Run, group: str, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("describe", group, *words, "--output", "json"))
    return found


def offsets(run: Run, group: str) -> dict[int, int]:
    return {row["partition"]: row["committed"] for row in described(run, group) if "partition" in row}


def test_a_group_is_listed_and_described_with_its_lag(run: Run, group: str, topic: str) -> None:
    assert group in run("list")
    assert group in run("list", "--state", "Empty", "--type", "classic")
    assert group not in run("list", "--state", "Stable")
    [row] = described(run, group)
    assert (row["topic"], row["partition"], row["committed"], row["end"], row["lag"]) == (topic, 0, 4, 10, 6)
    assert row["state"] == "Empty"
    assert group in run("describe")


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-current"], 4),
        (["--to-offset", "7"], 7),
        (["--to-offset", "99"], 10),
        (["--shift-by", "-3"], 1),
        (["--shift-by", "-30"], 0),
        (["--shift-by", "5"], 9),
        (["--to-time", "3500"], 3),
        (["--to-time", "1970-01-01T00:00:05"], 4),
        (["--to-time", "2100-01-01"], 10),
        (["--by-duration", "1h"], 10),
    ],
)
def test_group_offsets_can_be_reset_to_a_position_or_to_a_time_or_by_a_number_of_records(
    run: Run, group: str, how: list[str], expected: int
) -> None:
    run("reset-offsets", group, *how)
    assert offsets(run, group) == {0: expected}


def test_group_reset_offsets_with_dry_run_shows_new_offsets_and_changes_none(run: Run, group: str) -> None:
    [row] = json.loads(run("reset-offsets", group, "--to-latest", "--dry-run", "--output", "json"))
    assert (row["before"], row["after"], row["result"]) == (4, 10, "would be reset")
    assert offsets(run, group) == {0: 4}


def test_group_reset_offsets_resets_the_named_topic_and_refuses_missing_topics_and_partitions(
    run: Run, group: str, topic: str
) -> None:
    run("reset-offsets", group, "-t", topic, "--to-earliest")
    assert offsets(run, group) == {0: 0, 1: 0}
    assert "no partition 9" in run("reset-offsets", group, "-t", f"{topic}:9", "--to-latest", code=Exit.NOT_FOUND)
    assert "TOPIC:0,1" in run("reset-offsets", group, "-t", f"{topic}:x", "--to-latest", code=Exit.USAGE)
    assert run("reset-offsets", group, "-t", "no-such-topic", "--to-latest", code=Exit.NOT_FOUND)
    assert "no committed offsets" in run("reset-offsets", "g-nobody", "--to-latest", code=Exit.NOT_FOUND)


@pytest.mark.parametrize("how", ["table", "json"])
def test_exported_group_offsets_can_be_restored(run: Run, group: str, tmp_path: Path, how: str) -> None:
    kept = tmp_path / "offsets"
    kept.write_text(run("export", group, "--output", how))
    run("reset-offsets", group, "--to-latest")
    run("reset-offsets", group, "--from-file", str(kept))
    assert offsets(run, group) == {0: 4}
    kept.write_text("nonsense")
    assert "as `export` writes" in run("reset-offsets", group, "--from-file", str(kept), code=Exit.USAGE)


def test_group_command_deletes_groups_and_offsets(run: Run, group: str, topic: str) -> None:
    run("delete", group, "-t", topic)
    assert offsets(run, group) == {}
    run("delete", group)
    assert "no such group" in run("delete", group, code=Exit.NOT_FOUND)
    assert "no group" in run("describe", group, code=Exit.NOT_FOUND)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_with_members_is_described_and_its_offsets_cannot_be_reset(
    run: Run, penstock_session: Broker, topic: str, protocol: str
) -> None:
    name = f"g-{secrets.token_hex(4)}"
    consumer = Consumer(
        {
            "bootstrap.servers": penstock_session.bootstrap,
            "group.id": name,
            "group.protocol": protocol,
            "client.id": "reader",
        }
    )
    try:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        [member] = described(run, name, "--members")
        assert (member["client"], member["partitions"]) == ("reader", [f"{topic}-0", f"{topic}-1"])
        assert {row["client"] for row in described(run, name)} == {"reader"}
        assert described(run, name)[0]["state"] == "Stable"
        words = ("reset-offsets", name, "-t", topic, "--to-latest")
        assert "stop them first" in run(*words, code=Exit.FAILED)
        assert "stop them first" in run("delete", name, code=Exit.FAILED)
    finally:
        consumer.close()


def test_description_of_a_streams_group_shows_the_partitions_of_its_members(
    run: Run, penstock_session: Broker, topic: str
) -> None:
    name = f"g-{secrets.token_hex(4)}"
    subtopology = wire.Subtopology(subtopology_id="0", source_topics=[topic])

    async def join() -> None:
        connection = await BrokerConnection.open(RealNetwork(), penstock_session.host, penstock_session.port)
        config = AlterableConfig(name="streams.initial.rebalance.delay.ms", config_operation=0, value="0")
        resource = AlterConfigsResource(resource_type=ResourceType.GROUP, resource_name=name, configs=[config])
        await connection.request(IncrementalAlterConfigsRequest(resources=[resource]), version=1)
        await connection.request(FindCoordinatorRequest(coordinator_keys=[name]), version=4)
        request = wire.StreamsGroupHeartbeatRequest(
            group_id=name,
            member_id="m",
            rebalance_timeout_ms=1000,
            topology=wire.Topology(subtopologies=[subtopology]),
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
        )
        async with asyncio.timeout(60):
            while not (await connection.request(request, version=0)).active_tasks:
                pass
        connection.close()
        await connection.wait_closed()

    asyncio.run(join())
    [member] = described(run, name, "--members")
    assert (member["member"], member["partitions"]) == ("m", [f"{topic}-0", f"{topic}-1"])
    assert {row["state"] for row in described(run, name)} == {"Stable"}
    assert name in run("list", "--type", "streams")
    assert "stop them first" in run("delete", name, code=Exit.FAILED)


COORDINATOR_ERRORS = ["NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"]


@pytest.mark.parametrize("error", COORDINATOR_ERRORS)
@pytest.mark.parametrize(
    ("words", "apis"),
    [
        (
            ["group", "describe", "{group}"],
            ["FindCoordinator", "ConsumerGroupDescribe", "DescribeGroups", "OffsetFetch"],
        ),
        (["group", "reset-offsets", "{group}", "--to-earliest"], ["OffsetFetch", "OffsetCommit"]),
        (["consume", "-t", "{topic}", "-G", "{group}", "-e", "--commit"], ["OffsetFetch", "OffsetCommit"]),
        (["group", "delete", "{group}"], ["DeleteGroups"]),
    ],
)
def test_group_command_repeats_a_request_until_the_coordinator_is_ready(
    penstock_session: Broker, topic: str, group: str, words: list[str], apis: list[str], error: str
) -> None:
    rules = [penstock_session.faults.add(api=api, times=1, error=error) for api in apis]
    wanted = [word.format(topic=topic, group=group) for word in words]
    assert main([*wanted, "--bootstrap", penstock_session.bootstrap]) == Exit.OK
    assert [rule.hits for rule in rules] == [1] * len(apis)
