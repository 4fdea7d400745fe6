"""Formats, starts and stops a Penstock cluster of real processes, for tests that kill and stop nodes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.disk.real import RealDisk
from penstock.metadata.names import random_uuid
from penstock.node.storage import FormatPlan, format_storage
from penstock.raft.voters import Voter
from tools.kafka import answers, free_ports

START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0
CLUSTER_ID = "cGVuc3RvY2stY2hhb3MtMQ"


@dataclass(slots=True)
class NodeProcess:
    node_id: int
    host: str
    port: int
    controller_port: int
    home: Path
    prefix: tuple[str, ...] = ()  # in front of the command, e.g. to enter a network namespace
    process: subprocess.Popen[bytes] | None = None

    @property
    def properties(self) -> Path:
        return self.home / "server.properties"

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "node.log"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def spawn(self) -> None:
        assert not self.running, f"node {self.node_id} runs already"
        command = [*self.prefix, sys.executable, "-m", "penstock.cli.main", "start", str(self.properties), "-v"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: int) -> int:
        """Sends the signal and waits; kills a process that does not end."""
        assert self.process is not None
        process, self.process = self.process, None
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        try:
            return process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


@dataclass(slots=True)
class ProcessCluster:
    """Runs a cluster: `with ProcessCluster(tmp_path) as cluster: cluster.kill(1); cluster.start(1)`."""

    home: Path
    count: int = 3
    overrides: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    prefixes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    data: Mapping[int, Path] = field(default_factory=dict)  # instead of a directory under `home`
    nodes: dict[int, NodeProcess] = field(default_factory=dict)

    def __enter__(self) -> ProcessCluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{node.host}:{node.port}" for node in self.nodes.values())

    def lay_out(self) -> None:
        """Writes the properties files and formats the directories."""
        ports = free_ports(2 * self.count)
        for index in range(self.count):
            node_id = index + 1
            home = self.home / f"node-{node_id}"
            home.mkdir(parents=True, exist_ok=True)
            host = self.hosts.get(node_id, "127.0.0.1")
            prefix = tuple(self.prefixes.get(node_id, ()))
            self.nodes[node_id] = NodeProcess(node_id, host, ports[index], ports[self.count + index], home, prefix)
        quorum = ",".join(f"{node.host}:{node.controller_port}" for node in self.nodes.values())
        for node in self.nodes.values():
            self._write(node, quorum)
        self._format()

    def _format(self) -> None:
        """Formats a node like `penstock storage format --initial-controllers`, without starting another process."""
        chance = random.Random(1)
        voters = tuple(
            Voter(node.node_id, random_uuid(chance), (("CONTROLLER", node.host, node.controller_port),))
            for node in self.nodes.values()
        )
        for node in self.nodes.values():
            directory = str(self.data.get(node.node_id, node.data))
            plan = FormatPlan((directory,), node.node_id, cluster_id=CLUSTER_ID, initial_controllers=voters)
            format_storage(RealDisk(), plan, random=chance, now_ms=time.time_ns() // 1_000_000)

    def _write(self, node: NodeProcess, quorum: str) -> None:
        factor, in_sync = (3, 2) if self.count >= 3 else (self.count, 1)
        told = {
            "process.roles": "broker,controller",
            "node.id": str(node.node_id),
            "listeners": f"PLAINTEXT://{node.host}:{node.port},CONTROLLER://{node.host}:{node.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": quorum,
            "log.dirs": str(self.data.get(node.node_id, node.data)),
            "default.replication.factor": str(factor),
            "min.insync.replicas": str(in_sync),
            "offsets.topic.replication.factor": str(factor),
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": str(factor),
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.min.isr": str(in_sync),
            "group.initial.rebalance.delay.ms": "0",
            **self.overrides,
        }
        node.properties.write_text("".join(f"{name}={value}\n" for name, value in told.items()))

    # --- start and stop -----------------------------------------------------------------------------------------

    def start(self, *node_ids: int) -> None:
        """Starts the given nodes, all by default, and waits until they answer."""
        if not self.nodes:
            self.lay_out()
        wanted = [self.nodes[each] for each in node_ids or self.nodes]
        for node in wanted:
            if not node.running:
                node.spawn()
        self.wait(wanted)

    def wait(self, nodes: Iterable[NodeProcess]) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        for node in nodes:
            while not answers(node.host, node.port):
                assert node.running, f"node {node.node_id} stopped: {tail(node.log)}"
                assert time.monotonic() < deadline, f"node {node.node_id} does not answer: {tail(node.log)}"
                time.sleep(0.01)

    def kill(self, node_id: int) -> None:
        self.nodes[node_id].end(signal.SIGKILL)

    def stop(self, node_id: int) -> None:
        code = self.nodes[node_id].end(signal.SIGTERM)
        assert code == 0, f"node {node_id} left with {code}: {tail(self.nodes[node_id].log)}"

    def pause(self, node_id: int) -> None:
        self.nodes[node_id].signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        self.nodes[node_id].signal(signal.SIGCONT)

    def close(self) -> None:
        for node in self.nodes.values():
            if node.running:
                node.end(signal.SIGKILL)


def tail(path: Path, lines: int = 15) -> str:
    if not path.exists():
        return "no log"
    return os.linesep.join(path.read_text(errors="replace").splitlines()[-lines:])
