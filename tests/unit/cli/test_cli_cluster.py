"""Tests `penstock cluster` and `penstock quorum` on a single node, and the totals of `cluster status`."""

from __future__ import annotations

import argparse
import json
import secrets
from typing import Any

import pytest

from penstock.cli import cluster_status, output
from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.client.cluster_facts import (
    Facts,
    NodeFacts,
    PartitionFacts,
    node_rows,
    partition_rows,
    readable,
    troubles,
)
from penstock.testing import Broker


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = Exit.OK) -> str:
    left = main(list(words))
    captured = capsys.readouterr()
    assert left == code, captured.err
    return captured.out if code == Exit.OK else captured.err


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(said(capsys, *words, "--json"))


# --- one node -------------------------------------------------------------------------------------------------------


def test_quorum_command_shows_one_voter_for_a_single_node(
    penstock_session: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--bootstrap", penstock_session.bootstrap)
    status = asked(capsys, "quorum", "describe", *where)
    assert status["leader_id"] == 1
    assert status["voters"] == [1]
    assert status["max_follower_lag"] == 0
    (row,) = asked(capsys, "quorum", "describe", "--replication", *where)
    assert (row["node_id"], row["status"], row["lag"]) == (1, "leader", 0)
    assert "leader_epoch" in said(capsys, "quorum", "describe", *where)


def test_quorum_command_refuses_to_add_a_voter_twice_and_to_remove_a_node_that_is_not_a_voter(
    penstock_session: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--bootstrap", penstock_session.bootstrap)
    assert "is a voter already" in said(capsys, "quorum", "add-voter", "1", *where, code=Exit.EXISTS)
    assert "doesn't follow the quorum" in said(capsys, "quorum", "add-voter", "9", *where, code=Exit.NOT_FOUND)
    assert "is not a voter" in said(capsys, "quorum", "remove-voter", "9", *where, code=Exit.NOT_FOUND)
    wrong = said(capsys, "quorum", "add-voter", "9", "--directory-id", "!", *where, code=Exit.USAGE)
    assert "is not a directory id" in wrong


def test_cluster_status_shows_nodes_and_partitions(
    penstock_session: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"t-{secrets.token_hex(4)}"
    penstock_session.create_topic(name, 2)
    where = ("--bootstrap", penstock_session.bootstrap)
    status = asked(capsys, "cluster", "status", *where)
    (node,) = status["brokers"]
    assert (node["node"], node["state"], node["controller"], node["offline"]) == (1, "up", "active", 0)
    ours = [row for row in status["partition_states"] if row["topic"] == name]
    assert [(row["leader"], row["isr"], row["end_offset"], row["problem"]) for row in ours] == [(1, [1], 0, None)] * 2
    shown = said(capsys, "cluster", "status", *where)
    assert "all in sync" in shown
    assert "LEADS" in shown
    assert name in said(capsys, "cluster", "status", "--partitions", *where)
    assert name not in said(capsys, "cluster", "status", "--problems", *where)


def test_drain_and_rebalance_on_a_single_node_move_no_partition(
    penstock_session: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    penstock_session.create_topic(f"t-{secrets.token_hex(4)}")
    where = ("--bootstrap", penstock_session.bootstrap)
    assert asked(capsys, "cluster", "rebalance", "--dry-run", *where) == []
    assert asked(capsys, "cluster", "moves", *where) == []
    assert asked(capsys, "cluster", "cancel", *where) == []
    assert "add a broker first" in said(capsys, "cluster", "drain", "1", "--yes", *where, code=Exit.FAILED)
    assert "start the missing nodes first" in said(capsys, "cluster", "add", "7", "--yes", *where, code=Exit.NOT_FOUND)


def test_cluster_verify_reads_all_replicas_and_reports_missing_topics(
    penstock_session: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"t-{secrets.token_hex(4)}"
    penstock_session.create_topic(name)
    with penstock_session.client() as client, client.producer() as producer:
        producer.send_many(name, [(b"k", b"v%d" % index, (), None) for index in range(100)])
    where = ("--bootstrap", penstock_session.bootstrap)
    (found,) = asked(capsys, "cluster", "verify", name, "--range", "10", *where)
    assert (found["first_offset"], found["end_offset"], found["ranges"]) == (0, 100, 10)
    assert found["differences"] == []
    (again,) = asked(capsys, "cluster", "verify", f"{name}-0", "--range", "10", *where)
    assert again["digest"] == found["digest"]
    said(capsys, "cluster", "verify", "absent", *where, code=Exit.NOT_FOUND)


# --- sums -----------------------------------------------------------------------------------------------------------


def three_nodes() -> Facts:
    return Facts(
        "cluster",
        controller=1,
        controller_epoch=4,
        nodes=[NodeFacts(node, f"host:{node}", None, fenced=node == 3) for node in (1, 2, 3)],
        partitions={
            ("t", 0): PartitionFacts(1, 0, (1, 2, 3), (1, 2), min_isr=2),
            ("t", 1): PartitionFacts(2, 0, (2, 3, 1), (2,), min_isr=2),
            ("t", 2): PartitionFacts(-1, 0, (3,), (3,), min_isr=2),
        },
        voters=[1, 2, 3],
        sizes={1: {("t", 0): 100, ("t", 1): 50}, 2: {("t", 0): 100, ("t", 1): 60}},
        ends={1: {("t", 0): 10, ("t", 1): 5}, 2: {("t", 0): 8, ("t", 1): 7}},
    )


def test_cluster_status_shows_the_worst_problem_and_the_lag_of_each_partition() -> None:
    rows = partition_rows(three_nodes())
    assert [row["problem"] for row in rows] == ["under-replicated", "under min ISR", "offline"]
    assert [row["lag"] for row in rows] == [None] * 3
    assert rows[0]["lags"] == {"2": 2, "3": None}
    assert rows[2]["leader"] is None


def test_lag_of_a_replica_whose_node_does_not_respond_is_unknown() -> None:
    facts = three_nodes()
    asked_for = argparse.Namespace(partitions=True, problems=False)
    lags = [row["lag"] for row in cluster_status._table(facts, asked_for)[1]]
    assert lags == ["unknown", "unknown", None], "one of three replicas didn't answer; a single replica has no lag"
    facts.heard["t", 0] = {3: 6}
    assert partition_rows(facts)[0]["lag"] == 4, "the leader knows the follower's end offset"
    nodes = cluster_status._table(facts, argparse.Namespace(partitions=False, problems=False))[1]
    assert [row["lag"] for row in nodes] == [2, 2, "unknown"]


def test_cluster_status_shows_for_each_node_how_many_replicas_it_leads_and_how_many_are_out_of_sync() -> None:
    first, second, third = node_rows(three_nodes())
    assert (first["state"], first["controller"], first["leaders"], first["replicas"]) == ("up", "active", 1, 2)
    assert (first["out_of_sync"], first["bytes"], first["lag"]) == (1, 150, 2)
    assert (second["under_replicated"], second["under_min_isr"], second["offline"]) == (2, 1, 0)
    assert (third["state"], third["bytes"], third["offline"], third["out_of_sync"]) == ("fenced", None, 1, 2)
    assert troubles(three_nodes()) == ["1 offline", "1 under min ISR", "1 under-replicated", "node 3 fenced"]


def large_cluster(*, well: bool) -> Facts:
    """Returns facts about three nodes with a gigabyte each. Unless `well`, one partition lacks a replica."""
    return Facts(
        "MkU3OEVBNTcwNTJENDM2Qg",
        controller=1,
        controller_epoch=417,
        nodes=[NodeFacts(node, f"192.168.100.{node}:9092", None, fenced=not well and node == 3) for node in (1, 2, 3)],
        partitions={
            ("customer-orders", index): PartitionFacts(1, 0, (1, 2, 3), (1, 2, 3) if well or index else (1, 2))
            for index in range(100)
        },
        voters=[1, 2, 3],
        metadata_lag={1: 0, 2: 0, 3: 0 if well else 12345},
        sizes={node: dict.fromkeys([("customer-orders", index) for index in range(100)], 10**9) for node in (1, 2, 3)},
        ends={node: dict.fromkeys([("customer-orders", index) for index in range(100)], 10**9) for node in (1, 2, 3)},
    )


@pytest.mark.parametrize("well", [True, False])
@pytest.mark.parametrize("partitions", [True, False])
def test_cluster_status_of_a_large_cluster_fits_into_80_columns(
    well: bool, partitions: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = large_cluster(well=well)
    columns, rows = cluster_status._table(facts, argparse.Namespace(partitions=partitions, problems=False))
    output.rows("table", columns, rows)
    shown = [*cluster_status.headlines(facts), *capsys.readouterr().out.splitlines()]
    assert max(map(len, shown)) <= 80
    assert ("problem" in columns or "behind" in columns) == (not well)
    assert "rack" not in columns
    assert shown[1] == ("all in sync" if well else "1 under-replicated, node 3 fenced")


def test_cluster_status_on_a_terminal_has_colours_and_wraps_no_line() -> None:
    from rich.console import Console

    console = Console(width=80, force_terminal=True, color_system="standard", _environ={}, record=True)
    facts = large_cluster(well=False)
    with console.capture() as captured:
        console.print(cluster_status._drawn(facts, argparse.Namespace(partitions=True, problems=True)))
    assert "\x1b[1;31m1 under-replicated, node 3 fenced" in captured.get()
    assert "\x1b[31munder-replicated" in captured.get()
    assert "customer-orders-0" in captured.get()


@pytest.mark.parametrize(
    ("count", "text"), [(None, None), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1024**4 * 3, "3.0 TiB")]
)
def test_byte_counts_are_shown_with_units(count: int | None, text: str | None) -> None:
    assert readable(count) == text
