"""Tests `penstock up --nodes`: it runs one process per node, merges their logs, and stops all nodes together."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.client.cluster_admin import ClusterAdmin
from penstock.client.sync import Client
from waiting import until

pytestmark = pytest.mark.programs

COMMAND = [sys.executable, "-m", "penstock.cli.main", "up", "--nodes", "3", "--port", "0", "--output", "json"]
LIMIT_S = 120.0

Begin = Callable[..., tuple["subprocess.Popen[str]", Any]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    begun: list[subprocess.Popen[str]] = []

    def start(*words: str) -> tuple[subprocess.Popen[str], Any]:
        with (tmp_path / "stderr").open("a") as stderr:
            process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=stderr, text=True)
        begun.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (tmp_path / "stderr").read_text()
        return process, json.loads(line)

    yield start
    for process in begun:
        if process.returncode is None:
            process.kill()  # the nodes stop when their stdin ends
            process.communicate()


def end(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> int:
    process.send_signal(number)
    process.communicate(timeout=LIMIT_S)
    return process.returncode


def nodes_of(process: subprocess.Popen[str]) -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


def unfenced(bootstrap: str) -> int:
    with Client(bootstrap) as client:
        found = client.run(ClusterAdmin(client.asynchronous).describe_brokers())
        return sum(not broker.is_fenced for broker in found.brokers)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_local_cluster_restarts_killed_nodes_and_keeps_its_data(begin: Begin, tmp_path: Path) -> None:
    data = tmp_path / "data"
    process, said = begin("--data", str(data))
    bootstrap = said["bootstrap"]
    assert len(bootstrap.split(",")) == 3
    assert unfenced(bootstrap) == 3
    with Client(bootstrap) as client:
        client.create_topic("t")
        (topic,) = client.describe_topics(["t"])
        assert len(topic.partitions[0].replicas) == 3
    victim = nodes_of(process)[0]
    os.kill(victim, signal.SIGKILL)
    log = tmp_path / "stderr"
    until(lambda: "is back" in log.read_text(), "the dead node is not replaced")
    assert re.search(r"node [123] was killed by SIGKILL; restarting it", log.read_text())
    assert len(nodes_of(process)) == 3
    assert end(process) == Exit.OK
    assert all((data / "nodes" / node / ".kafka_cleanshutdown").exists() for node in "123")
    assert main(["up", "--nodes", "2", "--data", str(data)]) == Exit.STORAGE


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_local_cluster_keeps_its_topics_after_a_restart_and_ends_when_its_parent_process_ends(
    begin: Begin, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    process, said = begin("--data", str(data))
    with Client(said["bootstrap"]) as client:
        client.create_topic("kept")
    assert end(process, signal.SIGTERM) == Exit.OK
    process, said = begin("--data", str(data))
    with Client(said["bootstrap"]) as client:
        assert [topic.name for topic in client.list_topics()] == ["kept"]
    nodes = nodes_of(process)
    process.kill()
    process.communicate()
    until(lambda: not any(_is_running(pid) for pid in nodes), "nodes outlive the command that started them")


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_up_refuses_a_node_count_that_differs_from_the_existing_data_and_writes_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for node in "123":
        (tmp_path / "nodes" / node).mkdir(parents=True)
        (tmp_path / "nodes" / node / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    assert main(["up", "--nodes", "5", "--data", str(tmp_path)]) == Exit.STORAGE
    assert "holds a cluster of 3 nodes: use --nodes 3" in capsys.readouterr().err


def test_up_with_several_nodes_refuses_a_port_number_too_close_to_the_largest_port_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--nodes", "3", "--port", "65534", "--data", str(tmp_path / "data")]) == Exit.USAGE
    assert "leaves too few ports above it for" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
