"""Tests a cluster that is built as in docs/operations.md: separate roles; nodes join and leave under load."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client.sync import Client
from tools.kafka import free_ports
from tools.process_cluster import tail

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COMMAND = [sys.executable, "-m", "penstock.cli.main"]


class Machine:
    """Holds the properties, the directory and the process of one node."""

    def __init__(self, home: Path, node_id: int, port: int, **properties: str) -> None:
        self.home = home / f"machine-{node_id}"
        self.home.mkdir()
        self.node_id = node_id
        self.port = port
        self.log = self.home / "log"
        self.file = self.home / "server.properties"
        told = {"node.id": str(node_id), "log.dirs": str(self.home / "data"), "controller.listener.names": "CONTROLLER"}
        told |= {name.replace("__", "."): value for name, value in properties.items()}
        self.file.write_text("".join(f"{name}={value}\n" for name, value in told.items()))
        self.process: subprocess.Popen[str] | None = None

    def format(self, *words: str) -> None:
        run("storage", "format", "--config", str(self.file), "--cluster-id", "b3BlcmF0aW9ucy1ndWlkZQ", *words)

    def start(self) -> None:
        self.spawn()
        self.wait()

    def spawn(self) -> None:
        with self.log.open("a") as log:
            command = [*COMMAND, "start", str(self.file), "-v"]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def wait(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready "), tail(self.log)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        process, self.process = self.process, None
        process.send_signal(number)
        process.communicate(timeout=120)
        return process.returncode


def run(*words: str, code: int = 0) -> str:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def asked(bootstrap: str, *words: str) -> Any:
    return json.loads(run(*words, "-b", bootstrap, "--json"))


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    made: list[Machine] = []
    yield made
    for machine in made:
        if machine.process is not None:
            machine.end(signal.SIGKILL)


def controller(home: Path, node_id: int, port: int, quorum: str) -> Machine:
    return Machine(
        home,
        node_id,
        port,
        process__roles="controller",
        listeners=f"CONTROLLER://127.0.0.1:{port}",
        controller__quorum__bootstrap__servers=quorum,
        default__replication__factor="2",  # controllers place replicas, so the defaults are set on controllers
    )


def broker(home: Path, node_id: int, port: int, quorum: str) -> Machine:
    return Machine(
        home,
        node_id,
        port,
        process__roles="broker",
        listeners=f"PLAINTEXT://127.0.0.1:{port}",
        controller__quorum__bootstrap__servers=quorum,
        default__replication__factor="2",
        offsets__topic__replication__factor="2",
        transaction__state__log__replication__factor="2",
        transaction__state__log__min__isr="1",
    )


def test_controllers_and_brokers_join_and_leave_a_cluster_while_clients_write(
    tmp_path: Path, machines: list[Machine]
) -> None:
    ports = free_ports(5)
    quorum = f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
    first, second = (controller(tmp_path, 10 + index, ports[index], quorum) for index in (0, 1))
    brokers = [broker(tmp_path, 1 + index, ports[2 + index], quorum) for index in range(3)]
    machines += [first, second, *brokers]
    first.format("--standalone")
    for machine in (second, *brokers):
        machine.format("--no-initial-controllers")
    first.start()
    for machine in brokers[:2]:
        machine.start()
    bootstrap = f"127.0.0.1:{ports[2]}"
    assert [row["node"] for row in asked(bootstrap, "cluster", "status")["brokers"]] == [1, 2]

    # a second controller joins the quorum
    second.start()
    listener = ("--listener", f"CONTROLLER://127.0.0.1:{second.port}")
    assert sorted(asked(bootstrap, "quorum", "add-voter", "11", *listener)["voters"]) == [10, 11]

    # a third broker joins and gets its share; the first is drained
    run("topic", "create", "t", "-p", "6", "-b", bootstrap)
    with Client(bootstrap) as client, client.producer() as producer:
        producer.send_many("t", [(b"%d" % each, b"value", (), None) for each in range(1000)])
    brokers[2].start()
    run("cluster", "add", "3", "--yes", "-b", bootstrap)
    assert {row["node"]: row["replicas"] for row in asked(bootstrap, "cluster", "status")["brokers"]} == {
        1: 4,
        2: 4,
        3: 4,
    }
    run("cluster", "drain", "1", "--yes", "--throttle", "100M", "-b", bootstrap)
    assert brokers[0].end() == 0
    bootstrap = f"127.0.0.1:{ports[3]}"
    run("cluster", "forget", "1", "-b", bootstrap)
    status = asked(bootstrap, "cluster", "status")
    assert [row["node"] for row in status["brokers"]] == [2, 3]
    assert status["under_replicated"] == 0
    run("cluster", "verify", "t", "-b", bootstrap)
    with Client(bootstrap) as client:
        ends = client.list_offsets({("t", index): -1 for index in range(6)})
        assert sum(found.offset for found in ends.values()) == 1000

    # the first controller leaves the quorum
    left = asked(bootstrap, "quorum", "remove-voter", "10")
    assert left["voters"] == [11]
    assert first.end() == 0
    run("topic", "create", "later", "-b", bootstrap)


def test_replaced_disk_is_formatted_and_its_replicas_are_copied_from_other_nodes(
    tmp_path: Path, machines: list[Machine]
) -> None:
    ports = free_ports(6)
    quorum = ",".join(f"127.0.0.1:{port}" for port in ports[3:])
    machines += [
        Machine(
            tmp_path,
            index + 1,
            ports[index],
            process__roles="broker,controller",
            listeners=f"PLAINTEXT://127.0.0.1:{ports[index]},CONTROLLER://127.0.0.1:{ports[3 + index]}",
            controller__quorum__bootstrap__servers=quorum,
            default__replication__factor="3",
            min__insync__replicas="2",
        )
        for index in range(3)
    ]
    ids = [run("storage", "random-uuid").strip() for _ in machines]
    voters = ",".join(f"{index + 1}@127.0.0.1:{ports[3 + index]}:{ids[index]}" for index in range(3))
    for machine in machines:
        machine.format("--initial-controllers", voters)
        machine.spawn()
    for machine in machines:
        machine.wait()
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports[:3])
    run("topic", "create", "t", "-p", "3", "-b", bootstrap)
    with Client(bootstrap) as client, client.producer() as producer:
        producer.send_many("t", [(b"%d" % each, b"value", (), None) for each in range(1000)])
    lost = machines[2]
    lost.end(signal.SIGKILL)
    subprocess.run(["rm", "-rf", str(lost.home / "data")], check=True)
    refused = subprocess.run([*COMMAND, "start", str(lost.file)], capture_output=True, text=True, check=False)
    assert refused.returncode == 6
    assert "not formatted" in refused.stderr
    lost.format("--no-initial-controllers")
    run("quorum", "remove-voter", "3", "-b", bootstrap)
    lost.start()
    listener = ("--listener", f"CONTROLLER://127.0.0.1:{ports[5]}")
    assert sorted(asked(bootstrap, "quorum", "add-voter", "3", *listener)["voters"]) == [1, 2, 3]
    with Client(bootstrap) as client:
        for _ in range(600):
            (topic,) = client.describe_topics(["t"])
            if all(len(part.isr) == 3 for part in topic.partitions.values()):
                break
        else:
            pytest.fail("the replaced disk was not filled")
    assert re.search(r"t-0\s+same\s+1,2,3", run("cluster", "verify", "t", "-b", bootstrap))
