"""`penstock share` and the blocking share consumer, in this process against an embedded broker."""

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
    """Consumes and accepts this many records."""
    values: list[bytes] = []
    with broker.client() as client, client.share_consumer(group, [topic]) as consumer:
        while len(values) < count:
            for delivered in consumer.poll():
                values.append(delivered.record.value or b"")
                consumer.acknowledge(delivered)
            assert not any(consumer.commit().values())
    return values


def test_a_share_group_is_shown_moved_and_deleted(penstock_session: Broker, run: Run) -> None:
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
