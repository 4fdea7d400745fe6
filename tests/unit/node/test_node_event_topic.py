"""Tests the event topic: every node appends to it, and its events survive the death of the controller."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from functools import partial
from typing import Any

import pytest

from penstock.broker.controlplane.event_topic import last_slot
from penstock.broker.events.kinds import MajorityLost
from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.client.event_records import event_rows
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.vocabulary import EVENT_TOPIC, ConfigOperation, ResourceType
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.testing import Broker, Cluster
from waiting import until

ENABLED = {"penstock.events.topic.enable": "true"}
LIMIT_S = 60.0


def kept(cluster: Cluster, kind: str, **fields: Any) -> list[dict[str, Any]]:
    """Waits until the event topic has an event of this kind with these fields. Returns all such events."""
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


def test_event_topic_keeps_earlier_events_after_the_controller_was_killed() -> None:
    with Cluster(nodes=3, config=ENABLED) as cluster:
        first = cluster.controller
        until(lambda: {each["node"] for each in kept(cluster, "quorum.role")} == {1, 2, 3})
        cluster.kill(first)
        (fenced,) = kept(cluster, "broker.fenced", broker_id=first)
        assert fenced["node"] == cluster.controller != first
        assert fenced["fields"]["elected_ms"] >= fenced["fields"]["detected_ms"]
        nodes = {each["node"] for each in kept(cluster, "quorum.role")}
        assert nodes == {1, 2, 3}, "events of the killed node are kept too"


def test_event_topic_is_internal_and_clients_cannot_write_to_it() -> None:
    with Cluster(nodes=2, config=ENABLED) as cluster, cluster.client() as client:
        kept(cluster, "broker.unfenced")
        assert client.list_topics() == []
        assert [each.name for each in client.list_topics(internal=True)] == [EVENT_TOPIC]
        producer = client.producer()
        with pytest.raises(KafkaError, match="internal"), producer:
            producer.send(EVENT_TOPIC, b"{}").result()


def test_events_after_a_restart_do_not_overwrite_events_before_the_restart() -> None:
    assert last_slot(1, []) == 0
    assert last_slot(1, [b"1/7", b"2/9", b"1/8", None, b"x", b"1/y", b"11/3"]) == 8
    with Cluster(nodes=2, config=ENABLED) as cluster:
        kept(cluster, "broker.unfenced")
        cluster.restart(2)
        kept(cluster, "broker.registered", broker_id=2)
        keys = [record.key for record in cluster.records(EVENT_TOPIC) if (record.key or b"").startswith(b"2/")]
        assert len(keys) == len(set(keys)), "an event after the restart replaced one before it"


def test_events_are_read_and_written_after_the_oldest_events_were_deleted() -> None:
    with Cluster(nodes=2, config=ENABLED) as cluster, cluster.client() as client:
        kept(cluster, "broker.unfenced")
        policy = ("cleanup.policy", int(ConfigOperation.SET), "compact,delete")
        client.alter_configs(ResourceType.TOPIC, EVENT_TOPIC, [policy])

        def oldest_is_deleted() -> bool:
            try:
                return client.delete_records({(EVENT_TOPIC, 0): 1}) == {(EVENT_TOPIC, 0): 1}
            except KafkaError as error:
                if error.code is not ErrorCode.POLICY_VIOLATION:  # the log does not have the new policy yet
                    raise
                return False

        until(oldest_is_deleted)
        for number in cluster.nodes:
            topic = cluster.node(number).broker.event_topic
            assert topic is not None
            assert event_rows(cluster.run(number, topic.read())).rows
        cluster.restart(2)

        async def emit() -> None:
            cluster.node(2).broker.events.observe(MajorityLost(epoch=777))

        cluster.run(2, emit())  # a node reads the topic before its first write
        kept(cluster, "quorum.majority_lost", epoch=777)


def test_single_node_creates_no_event_topic() -> None:
    with Broker(topics={"t": 1}, config=ENABLED) as broker, broker.client() as client:
        assert [each.name for each in client.list_topics(internal=True)] == ["t"]


def test_every_node_and_the_command_line_list_the_events_of_all_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(nodes=2, config={**ENABLED, "penstock.http.listener": "127.0.0.1:0"}) as cluster:
        cluster.create_topic("orders")
        kept(cluster, "topic.changed", topics=["orders"])
        for number in cluster.nodes:
            url = cluster.node(number).http.url
            assert url is not None
            with urllib.request.urlopen(f"{url}api/events?kind=topic", timeout=LIMIT_S) as answer:
                texts = [row["text"] for row in json.loads(answer.read())["events"]]
            assert "topic created: orders" in texts
            with urllib.request.urlopen(f"{url}metrics", timeout=LIMIT_S) as answer:
                assert b'penstock_events_total{kind="quorum.role"}' in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(f"{url}api/events?limit=0", timeout=LIMIT_S)
        assert main(["events", "--bootstrap", cluster.bootstrap, "--kind", "topic"]) == 0
        assert "topic created: orders" in capsys.readouterr().out


def test_the_command_line_says_why_a_single_broker_keeps_no_events(capsys: pytest.CaptureFixture[str]) -> None:
    with Broker() as broker:
        assert main(["events", "--bootstrap", broker.bootstrap]) == Exit.NOT_FOUND
    assert "it has one broker" in capsys.readouterr().err


def event(**changed: object) -> bytes:
    return json.dumps({"at_ms": 1, "node": 2, "kind": "k", "text": "t", "fields": {}} | changed).encode()


def nested(levels: int) -> object:
    value: object = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize(
    "value",
    [
        b'{"at_ms":1000000000000000000,"node":1,"kind":"k","text":"t","fields":{}}',
        b"",
        b"{",
        b"[1]",
        b"{}",
        b"[" * 100_000,
        b"\xff",
        event(at_ms="1"),
        event(at_ms=True),
        event(node=-1),
        event(node=10**400),
        event(fields={"lag": float("nan")}),
        event(fields={"lag": [float("-inf")]}),
        event(fields={"lag": 1}).replace(b": 1}", b": 1e999}"),
        event(text="half a character: \ud800"),
        event(fields={"\udfff": 1}),
        event(more=[float("inf")]),
        event(fields={"deep": nested(4)}),
        event(fields={"deep": nested(900)}),
        event(fields={"many": list(range(1000))}),
        event(text="x" * 70_000),
    ],
)
def test_list_of_events_omits_malformed_records_of_the_event_topic_and_counts_them(value: bytes) -> None:
    good = event(fields={"isr": [1, 2], "deep": nested(3)}, more=3)
    (row,), left_out = event_rows([value, None, good])
    assert row == {"at_ms": 1, "node": 2, "kind": "k", "text": "t", "fields": {"isr": [1, 2], "deep": nested(3)}}
    assert left_out == 1


def test_malformed_records_in_the_event_topic_do_not_hide_valid_events(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Cluster(nodes=2, config={**ENABLED, "penstock.http.listener": "127.0.0.1:0"}) as cluster:
        cluster.create_topic("orders")
        kept(cluster, "topic.changed", topics=["orders"])
        forged = [
            build_batch([(1, b"a", event(fields={"lag": float("nan")}), ())]),
            build_batch([(1, b"b", event(fields={"deep": nested(900)}), ())], compression=Codec.ZSTD),
            build_batch([(1, b"c", bytes(100_000), (("", None),) * 200_000)], compression=Codec.GZIP),
            build_batch([(1, b"d", bytes(10**7), ())], compression=Codec.LZ4),
            build_batch([(1, b"%d" % number, b"{}", ()) for number in range(150)]),
        ]
        for batch in forged:
            write_as_broker(cluster, batch)
        cluster.create_topic("later")

        def is_complete(number: int) -> bool:
            with urllib.request.urlopen(f"{cluster.node(number).http.url}v1/events", timeout=LIMIT_S) as answer:
                found = json.loads(answer.read(), parse_constant=refuse_constant)
            texts = {row["text"] for row in found["events"]}
            return found["left_out"] >= len(forged) and {"topic created: orders", "topic created: later"} <= texts

        for number in cluster.nodes:
            until(partial(is_complete, number))

        def printed() -> str:
            assert main(["events", "--bootstrap", cluster.bootstrap, "--kind", "topic"]) == 0
            return capsys.readouterr().out

        until(lambda: "topic created: later" in printed())


def write_as_broker(cluster: Cluster, batch: bytes) -> None:
    """Appends a batch to the event topic as a node does; clients may not write to the topic."""
    node = cluster.node(1).broker
    events = node.event_topic
    assert events is not None

    def written() -> bool:
        topic = node.metadata.image.topics.get(EVENT_TOPIC)  # node 1 may learn of the topic after the others
        if topic is None:
            return False
        part = PartitionProduceData(index=0, records=batch)
        data = TopicProduceData(name=EVENT_TOPIC, topic_id=topic.topic_id, partition_data=[part])
        request = ProduceRequest(acks=-1, timeout_ms=9000, topic_data=[data])
        try:
            answer = cluster.run(1, events._peers.ask(topic.partitions[0].leader, request, lane="lies"))
        except KafkaError:
            return False
        return bool(answer.responses[0].partition_responses[0].error_code == 0)

    until(written)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
