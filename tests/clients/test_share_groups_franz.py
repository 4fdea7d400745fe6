"""Tests the share consumer of franz-go, unchanged, on one node, and on three nodes with a crash.

Needs Go, and franz-go in the module cache or a module proxy; the tests are skipped without them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import FranzBuilder
from penstock.client.sync import Client
from penstock.protocol.vocabulary import ResourceType
from penstock.testing.cluster import Cluster

pytestmark = pytest.mark.slow

NewTopicName = Callable[..., str]
RUN_S = 120


@pytest.fixture(scope="module")
def member(franz: FranzBuilder) -> Path:
    return franz(".")


def fill(bootstrap: str, group: str, topic: str, values: list[str]) -> None:
    with Client(bootstrap) as client:
        client.alter_configs(ResourceType.GROUP, group, [("share.auto.offset.reset", 0, "earliest")])
        with client.producer() as producer:
            for value in values:
                producer.send(topic, value.encode())


def deliveries(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_franz_go_share_consumer_accepts_and_releases_and_rejects_records(
    bootstrap: str, topic: NewTopicName, member: Path
) -> None:
    name = topic(3)
    values = [f"{kind}-{number}" for number in range(20) for kind in ("good", "again", "bad")]
    fill(bootstrap, f"g-{name}", name, values)
    done = subprocess.run(
        [member, bootstrap, f"g-{name}", name, str(len(values))],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    seen = [(each["value"], each["answer"]) for each in deliveries(done.stdout)]
    expected = [(value, "reject" if value.startswith("bad") else "accept") for value in values]
    released = [(value, "release") for value in values if value.startswith("again")]
    assert sorted(seen) == sorted(expected + released)
    with Client(bootstrap) as client, client.share_consumer(f"g-{name}", [name]) as rest:
        while not rest.assignment:
            rest.poll()
        assert rest.poll() == [], "all records are done"


def test_franz_go_share_consumer_continues_after_a_leader_is_killed(member: Path) -> None:
    with Cluster(nodes=3, topics={"t": 3}) as cluster:
        values = [f"good-{number}" for number in range(300)]
        fill(cluster.bootstrap, "g", "t", values[:200])
        command = [str(member), cluster.bootstrap, "g", "t", "300"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            first = [json.loads(running.stdout.readline()) for _ in range(150)]
            cluster.kill(cluster.leader("t", 0))
            fill(cluster.bootstrap, "g", "t", values[200:])
            seen = {each["value"] for each in first} | {each["value"] for each in deliveries(running.stdout.read())}
        assert running.returncode == 0
        assert seen == set(values)
