"""Tests `penstock logdir` on a node with several log directories."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cli import logdir_moves
from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.client import directory_moves
from penstock.client.cluster_admin import ClusterAdmin, FutureReplica, HeldReplica, Holdings
from penstock.metadata.directory_balance import DirectoryMove
from penstock.protocol.vocabulary import TopicPartition
from penstock.testing import Broker

A, B, C = "/data/a", "/data/b", "/data/c"
SLOW = str(20_000)


@pytest.fixture
def node() -> Iterator[Broker]:
    with Broker(config={"log.dirs": f"{A},{B},{C}"}) as broker:
        yield broker


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_moves, "LOOK_EVERY_S", 0.02)


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = Exit.OK) -> str:
    left = main(list(words))
    captured = capsys.readouterr()
    assert left == code, captured.err
    return captured.out if code == Exit.OK else captured.err


def asked(capsys: pytest.CaptureFixture[str], node: Broker, *words: str) -> Any:
    return json.loads(said(capsys, "logdir", *words, "-b", node.bootstrap, "--json"))


def filled(node: Broker, partitions: int = 1, records: int = 10) -> str:
    """Creates a topic with about 30 kB per record in each partition. Returns its name."""
    name = f"t-{secrets.token_hex(4)}"
    node.create_topic(name, partitions)
    with node.client() as client, client.producer() as producer:
        for partition in range(partitions):
            producer.send_many(name, [(None, bytes(30_000), (), None)] * records, partition=partition)
    return name


def directory_of(node: Broker, name: str, partition: int = 0) -> str:
    with node.client() as client:
        return client.run(ClusterAdmin(client.asynchronous).holdings(1)).replicas[name, partition].directory


def elsewhere(node: Broker, name: str) -> tuple[str, str]:
    """Returns the directory of the topic's first partition, and another directory."""
    source = directory_of(node, name)
    return source, next(each for each in (A, B, C) if each != source)


def test_logdir_list_shows_each_directory_with_its_bytes_and_replicas(
    node: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(node, partitions=3)
    rows = asked(capsys, node, "list")
    assert [(row["node"], row["directory"], row["state"]) for row in rows] == [
        (1, each, "online") for each in (A, B, C)
    ]
    assert all(row["replicas"] >= 1 and row["bytes"] > 250_000 for row in rows)
    shown = said(capsys, "logdir", "list", "-b", node.bootstrap)
    assert "KiB" in shown or "MiB" in shown
    assert "is not among the running brokers" in said(
        capsys, "logdir", "list", "--node", "9", "-b", node.bootstrap, code=Exit.NOT_FOUND
    )


def test_logdir_move_moves_a_replica_and_keeps_its_records(node: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    name = filled(node)
    source, target = elsewhere(node, name)
    told = asked(capsys, node, "move", f"{name}-0", target, "--wait")
    assert (told["from"], told["directory"], told["result"]) == (source, target, "done")
    assert directory_of(node, name) == target


def test_throttled_logdir_move_can_be_watched_and_cancelled(node: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    name = filled(node, records=40)
    source, target = elsewhere(node, name)
    told = asked(capsys, node, "move", f"{name}-0@1", target, "--throttle", SLOW)
    assert told["result"] == "moving"
    (row,) = asked(capsys, node, "describe", "--over", "0.1")
    assert (row["topic"], row["node"], row["from"], row["to"]) == (name, 1, source, target)
    assert row["bytes_left"] > 0
    assert row["records_left"] > 0
    assert row["bytes_per_second"] is not None
    assert "ETA" in said(capsys, "logdir", "describe", "--over", "0.01", "-b", node.bootstrap)
    (row,) = asked(capsys, node, "cancel", f"{name}-0@1")
    assert (row["stays_in"], row["result"]) == (source, "cancelled")
    assert asked(capsys, node, "describe") == []
    assert asked(capsys, node, "cancel") == []  # also removes the throttle
    assert directory_of(node, name) == source
    assert asked(capsys, node, "move", f"{name}-0@1", target, "--wait")["directory"] == target


def test_refused_logdir_move_reports_the_cause(node: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    name = filled(node)
    where = ("-b", node.bootstrap)
    wrong = said(capsys, "logdir", "move", f"{name}-0@1", "/data/x", *where, code=Exit.NOT_FOUND)
    assert "it has /data/a, /data/b, /data/c" in wrong
    assert "has no replica" in said(capsys, "logdir", "move", f"{name}-7@1", B, *where, code=Exit.NOT_FOUND)
    assert "no partition" in said(capsys, "logdir", "move", f"{name}-7", B, *where, code=Exit.NOT_FOUND)
    assert "names no replica" in said(capsys, "logdir", "move", name.replace("-", ""), B, *where, code=Exit.USAGE)


def test_logdir_balance_asks_for_confirmation_and_evens_out_directories(
    node: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    name = filled(node, partitions=6)
    for partition in range(6):
        asked(capsys, node, "move", f"{name}-{partition}@1", A, "--wait")
    where = ("-b", node.bootstrap)
    plan = asked(capsys, node, "balance", "--dry-run")
    assert plan
    assert {row["from"] for row in plan} == {A}
    assert "add --yes" in said(capsys, "logdir", "balance", *where, code=Exit.USAGE)
    assert directory_of(node, name) == A
    asked(capsys, node, "balance", "--yes", "--at-once", "1")
    assert asked(capsys, node, "balance", "--dry-run") == []
    sizes = [row["bytes"] for row in asked(capsys, node, "list")]
    assert max(sizes) - min(sizes) <= 0.05 * max(sizes)


def test_logdir_move_fails_only_if_two_checks_in_a_row_find_the_replica_in_its_old_directory() -> None:
    """Kafka lists a replica in the middle of its swap only in the old directory."""
    move = DirectoryMove(("t", 0), A, B, 10)
    at = {path: Holdings([], {("t", 0): HeldReplica(path, 10)}) for path in (A, B)}
    copying = Holdings([], {("t", 0): HeldReplica(A, 10)}, {("t", 0): FutureReplica(B, 5, 1)})
    for looks, expected in (
        ((copying, at[A], at[B]), [(0, False), (0, False), (1, False)]),
        ((at[A], copying, at[A], at[A]), [(0, False), (0, False), (0, False), (1, True)]),
        ((Holdings([], {}),), [(1, False)]),  # the topic was deleted
    ):
        going, suspected = {move.partition: move}, set[TopicPartition]()
        steps = [directory_moves.ended(1, going, look, suspected) for look in looks]
        assert [(step.ended, bool(step.failures)) for step in steps] == expected
        assert going == {}


def test_second_run_of_an_interrupted_logdir_balance_completes_it(
    node: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = filled(node, partitions=6, records=20)
    for partition in range(6):
        asked(capsys, node, "move", f"{name}-{partition}@1", B, "--wait")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(logdir_moves, "note_step", interrupt)
        words = ("logdir", "balance", "--yes", "--at-once", "1", "--throttle", SLOW, "-b", node.bootstrap)
        assert "logdir cancel" in said(capsys, *words, code=Exit.INTERRUPTED)
    assert len(asked(capsys, node, "describe", "--over", "0.01")) == 1
    asked(capsys, node, "balance", "--yes", "--throttle", "1G")
    assert asked(capsys, node, "describe") == []
    assert asked(capsys, node, "balance", "--dry-run") == []


def test_logdir_evacuate_empties_and_cordons_a_directory(node: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    filled(node, partitions=3)
    where = ("-b", node.bootstrap)
    assert "no node has" in said(capsys, "logdir", "evacuate", "/data/x", "--yes", *where, code=Exit.NOT_FOUND)
    said(capsys, "logdir", "evacuate", f"{C}/../c//", "--yes", *where)
    rows = {row["directory"]: row for row in asked(capsys, node, "list")}
    assert (rows[C]["replicas"], rows[C]["state"]) == (0, "cordoned")
    later = filled(node, partitions=2)
    assert C not in {directory_of(node, later, index) for index in range(2)}
    said(capsys, "logdir", "evacuate", C, "--yes", *where)  # no replica is left: no-op
