"""Tests `penstock share` and the blocking share consumer with an embedded broker in this process."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any

import pytest

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.protocol.vocabulary import ResourceType
from penstock.testing import Broker

Run = Callable[..., str]


@pytest.fixture
def run(penstock_session: Broker, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str, code: int = Exit.OK) -> str:
        left = main([*words, "--bootstrap", penstock_session.bootstrap])
        said = capsys.readouterr()
        assert left == code, said.err
        return said.out if code == Exit.OK else said.err

    return run


def rows(run: Run, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("share", *words, "--output", "json"))
    return found


def consumed(broker: Broker, group: str, topic: str, count: int) -> list[bytes]:
    """Consumes and accepts `count` records. Returns their values."""
    values: list[bytes] = []
    with broker.client() as client, client.share_consumer(group, [topic]) as consumer:
        while len(values) < count:
            for delivered in consumer.poll():
                values.append(delivered.record.value or b"")
                consumer.acknowledge(delivered)
            assert not any(consumer.commit().values())
    return values


def test_share_group_can_be_described_reset_and_deleted_with_the_share_command(
    penstock_session: Broker, run: Run
) -> None:
    topic, group = (f"{kind}-{secrets.token_hex(4)}" for kind in "ts")
    penstock_session.create_topic(topic, 1)
    with penstock_session.client() as client:
        client.alter_configs(ResourceType.GROUP, group, [("share.auto.offset.reset", 0, "earliest")])
        with client.producer() as producer:
            for number in range(5):
                producer.send(topic, f"{number}".encode())
        assert len(consumed(penstock_session, group, topic, 5)) == 5
        assert group in [row["group"] for row in rows(run, "list")]
        [shown] = rows(run, "describe", group)
        assert (shown["state"], shown["topic"], shown["start"], shown["lag"]) == ("Empty", topic, 5, 0)
        run("share", "reset", group, "--to-offset", "2", "--dry-run")
        assert rows(run, "describe", group)[0]["start"] == 5
        run("share", "reset", group, "--to-offset", "2")
        assert consumed(penstock_session, group, topic, 3) == [b"2", b"3", b"4"]
        run("share", "reset", group, "-t", topic, "--to-earliest")
        with client.share_consumer(group, [topic]) as consumer:
            while not consumer.assignment:
                consumer.poll()
            [member] = rows(run, "describe", group, "--members")
            assert member["partitions"] == [f"{topic}-0"]
            assert "member" in run("share", "delete", group, code=Exit.FAILED)
            assert "member" in run("share", "reset", group, "--to-latest", code=Exit.FAILED)
    run("group", "describe")
    run("share", "delete", group, "-t", topic)
    assert rows(run, "describe", group)[0].get("topic") is None
    run("share", "delete", group)
    assert "there is no share group" in run("share", "describe", group, code=Exit.NOT_FOUND)


def held(broker: Broker, group: str, topic: str, count: int) -> None:
    """Creates a topic with `count` records, and configures the group to start at the first record."""
    broker.create_topic(topic, 1)
    with broker.client() as client:
        client.alter_configs(ResourceType.GROUP, group, [("share.auto.offset.reset", 0, "earliest")])
        with client.producer() as producer:
            for number in range(count):
                producer.send(topic, f"{number}".encode())


def polled(consumer: Any, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found += consumer.poll()
    return found


def test_share_reset_limits_the_start_offset_to_the_log_of_each_partition(penstock_session: Broker, run: Run) -> None:
    topic, group = (f"{kind}-{secrets.token_hex(4)}" for kind in "ts")
    penstock_session.create_topic(topic, 2)
    with penstock_session.client() as client:
        with client.producer() as producer:
            for partition, count in ((0, 4), (1, 6)):
                for number in range(count):
                    producer.send(topic, f"{number}".encode(), partition=partition)
        client.delete_records({(topic, 0): 2, (topic, 1): 1})
    for offset, starts in ((0, [2, 1]), (3, [3, 3]), (5, [4, 5]), (2**63 - 1, [4, 6])):
        reset = rows(run, "reset", group, "-t", topic, "--to-offset", str(offset))
        assert [(row["partition"], row["start"]) for row in reset] == list(enumerate(starts))
        assert [row["start"] for row in rows(run, "describe", group)] == starts


def test_records_in_flight_can_be_shown_released_archived_and_drained_with_the_share_command(
    penstock_session: Broker, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, group = (f"{kind}-{secrets.token_hex(4)}" for kind in "ts")
    held(penstock_session, group, topic, 6)
    with penstock_session.client() as client, client.share_consumer(group, [topic]) as consumer:
        polled(consumer, 6)
        [shown] = rows(run, "inspect", group)
        assert (shown["topic"], shown["first"], shown["last"], shown["state"]) == (topic, 0, 5, "acquired")
        assert shown["deliveries"] == 1
        assert shown["member"]
        assert 0 <= shown["held_ms"] < shown["lock_ms"] <= 30_050
        run("share", "archive", group, topic, "0", "0-1")
        run("share", "release", group, topic, "0", "3")
        states = [(row["first"], row["last"], row["state"]) for row in rows(run, "inspect", group, "-t", topic)]
        assert states == [(2, 2, "acquired"), (3, 3, "available"), (4, 5, "acquired")]
        [again] = polled(consumer, 1)
        assert (again.record.offset, again.deliveries) == (3, 1)
        assert "in flight" in run("share", "release", group, topic, "0", "1", code=Exit.FAILED)
        assert rows(run, "drain", group, "--dry-run") == [{"topic": topic, "partition": 0, "records": 4}]
        run("share", "drain", group)
        [window] = rows(run, "inspect", group, "--windows")
        assert (window["state"], window["start_offset"], window["end_offset"]) == ("active", 6, 6)
        assert main(["share", "drain", group, "--bootstrap", penstock_session.bootstrap]) == Exit.OK
        assert "no records in flight" in capsys.readouterr().err
    assert rows(run, "describe", group)[0]["lag"] == 0


def test_share_drain_of_a_group_without_members_fails_with_the_reason(penstock_session: Broker, run: Run) -> None:
    topic, group = (f"{kind}-{secrets.token_hex(4)}" for kind in "ts")
    held(penstock_session, group, topic, 2)
    consumed(penstock_session, group, topic, 1)
    assert rows(run, "inspect", group) == []
    while rows(run, "inspect", group, "--windows")[0]["state"] != "idle":
        pass  # the leader drops the state soon after the last session is closed
    for more in ([], ["--dry-run"]):
        assert f"no member of {group} fetches" in run("share", "drain", group, *more, code=Exit.FAILED)
    assert "check the name" in run("share", "inspect", group, "-t", "elsewhere", code=Exit.NOT_FOUND)
    assert "5-9" in run("share", "release", group, topic, "0", "x", code=Exit.USAGE)
    assert "in flight" in run("share", "archive", group, topic, "0", "7", code=Exit.FAILED)
