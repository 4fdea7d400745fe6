"""Tests the overview of a cluster: nodes, topics and problems, its health, and the causes in sentences."""

from __future__ import annotations

from penstock.broker.controlplane.failovers import Failover
from penstock.client.cluster_facts import Facts, NodeFacts, PartitionFacts
from penstock.http.causes import NodeContext, causes, health, move_row
from penstock.http.overview import ATTENTION_MAX, Overview, one_topic, overview, topic_sums
from penstock.http.rates import Rate
from penstock.replication.directory_move import MoveFigures, MoveState


def facts(topics: int = 1, *, isr: tuple[int, ...] = (1, 2), leader: int = 1, rack: str | None = None) -> Facts:
    partitions = {
        (f"topic{number:04}", index): PartitionFacts(leader, 3, (1, 2), isr)
        for number in range(topics)
        for index in range(2)
    }
    nodes = [NodeFacts(1, "10.0.0.1:9092", rack, False), NodeFacts(2, "10.0.0.2:9092", None, 2 not in isr)]
    found = Facts("the-cluster", 1, 7, nodes, partitions, [1])
    for node in (1, 2):
        found.sizes[node] = dict.fromkeys(partitions, 1024)
        found.ends[node] = dict.fromkeys(partitions, 50)
    return found


def seen(found: Facts, rates: dict[str, Rate] | None = None) -> Overview:
    return overview(found, topic_sums(found), rates or {})


def told(found: Facts, context: NodeContext | None = None) -> list[str]:
    return list(causes(seen(found).nodes, context or NodeContext(1)))


def test_overview_shows_state_and_sizes_and_rates_of_nodes_and_topics() -> None:
    found = seen(facts(), {"topic0000": Rate(1234.4, 2048.0)})
    node, topic = found.nodes[0], found.topics[0]
    assert (node["state"], node["controller"], node["leaders"], node["replicas"], node["bytes"]) == (
        "up",
        "active",
        2,
        2,
        2048,
    )
    assert (topic["partitions"], topic["replicas"], topic["end_offset"], topic["bytes"]) == (2, 2, 100, 2048)
    assert (topic["records_per_second"], topic["bytes_per_second"]) == (1234.4, 2048.0)
    assert health(found.summary, NodeContext(1)) == {"mood": "good", "text": "all in sync"}
    assert told(facts()) == []


def test_topics_that_need_attention_show_their_worst_problem() -> None:
    found = seen(facts(isr=(1,)))
    assert found.wrong_topics == [
        {"topic": "topic0000", "problem": "under-replicated", "partitions": 2, "of": 2, "out_of_sync": [2], "lag": 0}
    ]
    assert health(found.summary, NodeContext(1)) == {"mood": "warn", "text": "2 under-replicated, 1 node fenced"}
    found = seen(facts(leader=-1, isr=()))
    assert found.wrong_topics[0]["problem"] == "offline"
    assert health(found.summary, NodeContext(1))["mood"] == "bad"


def test_problems_of_users_topics_come_before_problems_of_internal_topics() -> None:
    found = facts(2, isr=(1,))
    found.partitions |= {("__consumer_offsets", index): PartitionFacts(1, 3, (1, 2), (1,)) for index in range(50)}
    rows = seen(found).wrong_topics
    assert [row["topic"] for row in rows] == ["topic0000", "topic0001", "__consumer_offsets"]
    assert (rows[2]["partitions"], rows[2]["of"], rows[2]["lag"]) == (50, 50, None)
    assert [row["topic"] for row in seen(found).attention[:5]] == [
        *["topic0000"] * 2,
        *["topic0001"] * 2,
        "__consumer_offsets",
    ]


def test_failed_node_is_named_as_a_cause_with_the_time_and_the_reason() -> None:
    context = NodeContext(1, [Failover(2, 1_700_000_000_000, 54, "was silent for 9000 ms")])
    assert told(facts(isr=(1,)), context) == [
        "Node 2 (10.0.0.2:9092) was fenced at 2023-11-14 22:13:20 UTC: it was silent for 9000 ms."
    ]


def test_node_in_quarantine_is_named_as_a_cause_with_a_remedy() -> None:
    found = facts()
    found.nodes[1] = NodeFacts(2, "10.0.0.2:9092", None, True, "two leaders in one epoch")
    assert told(found) == [
        "Node 2 (10.0.0.2:9092) is in quarantine (two leaders in one epoch): penstock guard release 2 releases it."
    ]
    assert "1 in quarantine" in health(seen(found).summary, NodeContext(1))["text"]


def test_stopped_and_unreachable_nodes_are_named_as_causes() -> None:
    stopped, silent = facts(isr=(1,)), facts()
    del silent.sizes[2], silent.ends[2]
    [sentence] = told(stopped)
    assert sentence.startswith("Node 2 (10.0.0.2:9092) is fenced: it was stopped")
    assert told(silent) == ["Node 2 (10.0.0.2:9092) does not answer node 1."]


def test_damaged_replica_and_failed_directory_are_named_as_causes() -> None:
    damage = {"topic": "t", "partition": 3, "reason": "the checksum does not match"}
    context = NodeContext(1, (), {"/data/2": "Input/output error"}, [damage])
    disk, replica = told(facts(), context)
    assert disk.startswith("Directory /data/2 of node 1 has failed (Input/output error): replace the disk")
    assert replica.startswith("t-3 on node 1 is damaged (the checksum does not match)")
    assert health(seen(facts()).summary, context) == {"mood": "warn", "text": "a directory has failed, 1 damaged"}


def test_directory_short_of_space_and_configuration_warning_are_named_as_causes() -> None:
    context = NodeContext(1, short_of_space=["Log directory /d has 5 bytes left"], warnings=["HTTP has no TLS."])
    assert told(facts(), context) == [
        "Node 1: HTTP has no TLS.",
        "Log directory /d has 5 bytes left: records of clients are refused until space is freed.",
    ]
    assert health(seen(facts()).summary, context)["text"] == "a directory is short of space"


def test_overview_shows_remaining_bytes_and_time_of_a_move_between_log_directories() -> None:
    row = move_row(MoveFigures("t", 0, "/a", "/b", MoveState.COPYING, 1024, 2048, 7, 1024.0))
    assert (row["from"], row["to"], row["state"], row["records_left"], row["bytes_left"]) == (
        "/a",
        "/b",
        "copying",
        7,
        2048,
    )
    assert row["seconds_left"] == 2.0


def test_overview_of_a_large_cluster_lists_a_limited_number_of_problems() -> None:
    assert len(seen(facts(2000, isr=(1,))).attention) == ATTENTION_MAX


def test_partitions_of_one_topic_are_returned_in_pages() -> None:
    found = facts()
    for start, limit, expected in ((0, 10, [0, 1]), (1, 1, [1]), (2, 5, [])):
        shown = one_topic(found, "topic0000", found.partitions, start, limit)
        assert (shown["partitions"], [row["partition"] for row in shown["partition_states"]]) == (2, expected)
