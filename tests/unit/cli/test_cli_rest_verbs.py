"""Tests that every REST operation has a command, and tests the commands that send REST requests."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.exit import Exit, Failure
from penstock.cli.main import build_parser, main
from penstock.http.rest.api import ROUTES
from penstock.testing import Broker, Cluster
from waiting import until

#: Every operation of the REST API, and the commands that do the same: noun, verb, and an option if it decides.
COMMANDS: dict[str, tuple[str, ...]] = {
    "cluster_health": ("cluster health",),
    "health_check": ("cluster health --degraded",),
    "cluster_status": ("cluster status",),
    "cluster_overview": ("cluster status --problems",),
    "list_pipelines": ("pipeline list", "pipeline status"),
    "list_nodes": ("cluster status",),
    "replication_status": ("cluster status --partitions",),
    "describe_quorum": ("quorum describe",),
    "force_election": ("quorum resign", "cluster elect"),
    "compact_log": ("quorum snapshot", "topic compact"),
    "list_directories": ("logdir list", "logdir describe"),
    "release_node": ("guard release",),
    "move_replicas": ("logdir move", "logdir cancel"),
    "list_reassignments": ("cluster moves",),
    "reassign": ("cluster reassign", "cluster cancel"),
    "drain_nodes": ("cluster drain",),
    "rebalance_cluster": ("cluster rebalance", "cluster add"),
    "balance_directories": ("logdir balance",),
    "evacuate_directory": ("logdir evacuate",),
    "list_operations": ("operation list",),
    "describe_operation": ("operation describe",),
    "cancel_operation": ("operation cancel",),
    "list_events": ("events",),
    "stream_events": ("events --follow",),
    "list_topics": ("topic list",),
    "create_topic": ("topic create",),
    "describe_topic": ("topic describe",),
    "delete_topic": ("topic delete",),
    "add_partitions": ("topic alter --partitions",),
    "trim_topic": ("topic trim",),
    "describe_configs": ("config describe",),
    "change_configs": ("config set", "config unset"),
    "list_groups": ("group list",),
    "describe_group": ("group describe",),
    "delete_group": ("group delete",),
    "reset_offsets": ("group reset-offsets",),
    "read_records": ("consume --offset",),
    "produce_records": ("produce",),
    "stream_records": ("consume --offset",),
    "search_records": ("consume --contains",),
    "list_share_groups": ("share list",),
    "describe_share_group": ("share describe",),
    "list_windows": ("share inspect",),
    "list_own_windows": ("share inspect",),
    "reset_share_offsets": ("share reset",),
    "change_records": ("share release", "share archive"),
    "drain_share_group": ("share drain",),
    "delete_share_group": ("share delete",),
    "delete_share_offsets": ("share delete --topic",),
    "list_transactions": ("txn list",),
    "describe_transaction": ("txn describe",),
    "terminate_transaction": ("txn terminate",),
    "list_hanging": ("txn hanging",),
    "abort_hanging": ("txn abort",),
    "list_users": ("user list",),
    "set_password": ("user set",),
    "remove_user": ("user remove",),
    "list_acls": ("acl list",),
    "create_acls": ("acl allow", "acl deny"),
    "delete_acls": ("acl remove",),
}
#: Operations without a command, and the reason.
WITHOUT_COMMAND = {
    "livez": "a probe for a supervisor of this one node, which has no use for a process",
    "readyz": "a probe for a load balancer of this one node, which has no use for a process",
    "openapi": "describes the REST API itself",
    "describe_caller": "tells a browser its own user; a command has its user in --command-config",
}


def options(command: str) -> set[str]:
    """Returns the options of a command. Fails if the command does not exist."""
    noun, *verbs = command.split()
    parser: argparse.ArgumentParser = build_parser(noun)
    for word in (noun, *verbs):
        (below,) = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        assert word in below.choices, f"there is no command {command}"
        parser = below.choices[word]
    return {option for action in parser._actions for option in action.option_strings}


def test_every_rest_route_has_a_command_or_is_listed_as_a_route_without_one() -> None:
    assert sorted([*COMMANDS, *WITHOUT_COMMAND]) == sorted(route.name for route in ROUTES)


@pytest.mark.parametrize("command", sorted({each for commands in COMMANDS.values() for each in commands}))
def test_every_command_in_the_table_of_rest_routes_exists(command: str) -> None:
    verb, dashes, option = command.partition(" --")
    assert not option or dashes.strip() + option in options(verb)


# --- commands that send REST requests


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {"penstock.http.listener": "127.0.0.1:0", "penstock.events.topic.enable": "true"}
    with Cluster(nodes=3, topics={"orders": 1}, config=config) as running:
        running.create_topic("latest", 1, cleanup_policy="compact")
        yield running


class Shell:
    def __init__(self, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._cluster = cluster
        self._captured = capsys

    def run(self, *words: str, code: int = Exit.OK) -> str:
        assert main(list(words)) == code, self._captured.readouterr().err
        captured = self._captured.readouterr()
        return captured.err if code else captured.out

    def rest(self, *words: str, node: int = 1, code: int = Exit.OK) -> Any:
        url = str(self._cluster.node(node).http.url)
        found = self.run(*words, "--http", url, "--json", code=code)
        return found if code else json.loads(found or "null")

    def kafka(self, *words: str, code: int = Exit.OK) -> Any:
        found = self.run(*words, "--bootstrap", self._cluster.bootstrap, "--json", code=code)
        return found if code else json.loads(found)


@pytest.fixture
def shell(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Shell:
    capsys.readouterr()
    return Shell(cluster, capsys)


def test_quorum_resign_makes_the_leader_resign_and_is_refused_by_other_nodes(cluster: Cluster, shell: Shell) -> None:
    leader = cluster.controller
    other = next(each for each in cluster.nodes if each != leader)
    refusal = shell.rest("quorum", "resign", "--yes", node=other, code=Exit.FAILED)
    assert f"Node {leader} leads the quorum" in refusal
    resigned = shell.rest("quorum", "resign", "--yes", node=leader)
    assert resigned["resigned"] == leader

    async def is_led_again() -> bool:
        quorum = cluster.node(other).broker.metadata.quorum()
        return quorum.leader_id >= 0 and quorum.leader_epoch > resigned["epoch"]

    until(lambda: cluster.run(other, is_led_again()), "the quorum has no new leader")


def test_quorum_resign_without_a_terminal_needs_the_yes_option(shell: Shell) -> None:
    assert "--yes" in shell.rest("quorum", "resign", code=Exit.USAGE)


def test_quorum_snapshot_writes_a_snapshot_of_the_metadata_log(cluster: Cluster, shell: Shell) -> None:
    written = shell.rest("quorum", "snapshot", node=2)
    assert written.keys() == {"snapshot"}
    assert written["snapshot"]


def test_topic_compact_compacts_a_topic_and_operation_list_shows_the_compaction(cluster: Cluster, shell: Shell) -> None:
    with cluster.client() as client, client.producer() as producer:
        for number in range(20):
            producer.send("latest", b"%d" % number, b"key")
            producer.flush()
    node = cluster.leader("latest")
    (row,) = shell.rest("topic", "compact", "latest", node=node)
    assert (row["topic"], row["partition"]) == ("latest", 0)
    newest = shell.rest("operation", "list", node=node)[0]
    assert (newest["kind"], newest["state"]) == ("compaction", "done")
    described = shell.rest("operation", "describe", str(newest["operation"]), node=node)
    assert described["result"]["partitions"] == [row]
    assert "has ended" in shell.rest("operation", "cancel", str(newest["operation"]), node=node, code=Exit.FAILED)
    assert "not compacted" in shell.rest("topic", "compact", "orders", node=node, code=Exit.FAILED)
    assert "no topic" in shell.rest("topic", "compact", "none", node=node, code=Exit.NOT_FOUND)
    assert "no operation" in shell.rest("operation", "describe", "999", node=node, code=Exit.NOT_FOUND)


def test_cluster_health_exits_with_another_code_while_a_node_is_dead(
    cluster: Cluster, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.create_topic("pair", 1, 2)
    cluster.wait_in_sync("pair", timeout_s=120.0)
    until(lambda: main(["cluster", "health", "-b", cluster.bootstrap]) == Exit.OK)
    victim = next(each for each in cluster.isr("pair") if each != cluster.controller)
    cluster.kill(victim)
    try:
        until(lambda: main(["cluster", "health", "-b", cluster.bootstrap]) == Exit.NEEDS_ATTENTION)
    finally:
        cluster.start(victim)
    cluster.wait_in_sync("pair", timeout_s=120.0)
    until(lambda: main(["cluster", "health", "-b", cluster.bootstrap]) == Exit.OK)
    capsys.readouterr()
    assert shell.kafka("cluster", "health")["status"] == "healthy"


def test_cluster_reassign_moves_partitions_to_the_given_nodes(cluster: Cluster, shell: Shell) -> None:
    cluster.create_topic("moved", 1, 1)
    (now,) = cluster.isr("moved")
    target = next(each for each in cluster.nodes if each != now)
    plan = shell.kafka("cluster", "reassign", f"moved-0={target}", "--dry-run")
    assert plan == [{"topic": "moved", "partition": 0, "from": [now], "to": [target]}]
    assert cluster.isr("moved") == [now]
    shell.kafka("cluster", "reassign", f"moved-0={target}", "--yes")
    until(lambda: cluster.isr("moved") == [target], "the partition is not moved")
    for wrong in ("moved-0", "moved=1", "moved-0=x", "moved-0="):
        shell.run("cluster", "reassign", wrong, "-n", "-b", cluster.bootstrap, code=Exit.USAGE)
    assert "no partition 7" in shell.kafka("cluster", "reassign", "moved-7=1", "-n", code=Exit.NOT_FOUND)


def test_events_command_with_the_follow_option_prints_new_events_as_they_happen(
    cluster: Cluster, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def show(*parts: str, **_: Any) -> None:
        seen.append(" ".join(parts))
        if any("topic created: followed" in line for line in seen):
            raise Failure("seen")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.cli.events.print", show, raising=False)
        words = ["events", "--follow", "--last", "5", "--kind", "topic", "--bootstrap", cluster.bootstrap]
        code: list[int] = []
        thread = threading.Thread(target=lambda: code.append(main(words)))
        thread.start()
        until(lambda: seen, "no kept event is printed")
        cluster.create_topic("followed")
        thread.join(120)
    assert code == [Exit.FAILED]
    assert "topic.changed" in seen[-1]


def test_consume_with_the_contains_option_prints_only_records_that_contain_the_text(
    cluster: Cluster, shell: Shell
) -> None:
    cluster.create_topic("mixed")
    with cluster.client() as client, client.producer() as producer:
        producer.send_many(
            "mixed", [(None, b"chaff", (), None), (b"needle-1", b"a", (), None), (None, b"a needle", (), None)]
        )
    found = shell.run("consume", "-t", "mixed", "-e", "--contains", "needle", "-f", "%o\n", "-b", cluster.bootstrap)
    assert found.split() == ["1", "2"]
    first = shell.run(
        "consume", "-t", "mixed", "-e", "--contains", "needle", "-c", "1", "-f", "%o\n", "-b", cluster.bootstrap
    )
    assert first.split() == ["1"]


# --- where REST requests go, and with which login


@pytest.mark.parametrize("url", ["127.0.0.1:9644", "ftp://h", "http://", "http://h:x", "http://u@h", "http://h/path"])
def test_http_option_with_an_invalid_url_is_refused(shell: Shell, url: str) -> None:
    assert "--http" in shell.run("operation", "list", "--http", url, code=Exit.USAGE)


def test_error_about_an_unreachable_http_listener_names_its_url(shell: Shell) -> None:
    said = shell.run("operation", "list", "--http", "http://127.0.0.1:1", code=Exit.CANNOT_CONNECT)
    assert "http://127.0.0.1:1 can't be reached" in said


def test_command_refuses_to_send_a_password_over_plain_http_to_another_machine(shell: Shell, tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=ann\nsasl.password=secret\n"
    )
    words = ("operation", "list", "--http", "http://192.0.2.1:9644", "--command-config", str(properties))
    assert "unprotected" in shell.run(*words, code=Exit.USAGE)


def test_rest_command_logs_in_with_the_password_from_the_client_properties(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "penstock.http.listener": "127.0.0.1:0",
        "listener.name.http.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.http.plain.sasl.jaas.config": 'x.PlainLoginModule required user_ann="secret";',
    }
    properties = tmp_path / "client.properties"
    text = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=ann\nsasl.password="
    with Broker(config=config) as broker:
        for password, code in (("secret", Exit.OK), ("wrong", Exit.FAILED)):
            properties.write_text(text + password + "\n")
            words = ["operation", "list", "--http", str(broker.node.http.url), "--command-config", str(properties)]
            assert main(words) == code, capsys.readouterr().err
