"""The topic of events: every node of a cluster appends to it, and the history outlives the controller."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from penstock.protocol.errors import KafkaError
from penstock.protocol.vocabulary import EVENT_TOPIC
from penstock.testing import Broker, Cluster

ENABLED = {"penstock.events.topic.enable": "true"}
LIMIT_S = 60.0


def kept(cluster: Cluster, kind: str, **fields: Any) -> list[dict[str, Any]]:
    """Returns the events of a kind with these fields, once the topic has at least one."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            found = [json.loads(record.value or b"{}") for record in cluster.records(EVENT_TOPIC)]
        except KafkaError:  # the topic is not there yet, or its leader was just killed
            continue
        wanted = [each for each in found if each["kind"] == kind and fields.items() <= each["fields"].items()]
        if wanted:
            return wanted
    pytest.fail(f"no event {kind} with {fields} was kept")


def test_the_history_outlives_the_controller() -> None:
    with Cluster(nodes=3, config=ENABLED) as cluster:
        first = cluster.controller
        kept(cluster, "broker.unfenced")
        cluster.kill(first)
        (fenced,) = kept(cluster, "broker.fenced", broker_id=first)
        assert fenced["node"] == cluster.controller != first
        assert fenced["fields"]["elected_ms"] >= fenced["fields"]["detected_ms"]
        nodes = {each["node"] for each in kept(cluster, "quorum.role")}
        assert nodes == {1, 2, 3}, "events of the killed node are kept too"


def test_a_single_broker_has_no_topic_of_events() -> None:
    with Broker(topics={"t": 1}, config=ENABLED) as broker, broker.client() as client:
        assert [each.name for each in client.list_topics(internal=True)] == ["t"]
