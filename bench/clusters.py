"""Runs clusters of three nodes of each broker, through one interface and with the same properties."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.brokers import START_LIMIT_S, environment
from tools.kafka import (
    CLUSTER_ID,
    KafkaCluster,
    answers,
    end_process,
    free_ports,
    initial_controllers,
    node_properties,
    wait_until_serving,
)

NODES = 3


class ClusterPeer(Protocol):
    name: str

    @property
    def bootstrap(self) -> str: ...

    @property
    def ports(self) -> dict[int, int]:
        """Returns the client port of each node id."""
        ...

    @property
    def pids(self) -> list[int]:
        """Returns the process ids of the running nodes."""
        ...

    def start(self) -> float:
        """Starts all nodes; returns the seconds from the first spawn until every node answers."""
        ...

    def stop(self) -> None: ...

    def wipe(self) -> None: ...

    def kill_node(self, node_id: int) -> None: ...

    def start_node(self, node_id: int) -> None: ...


@dataclass(slots=True)
class PenstockNode:
    node_id: int
    port: int
    controller_port: int
    home: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def properties(self) -> Path:
        return self.home / "server.properties"

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "penstock.cli.main", *words]

    def format(self, voters: str) -> None:
        words = ("storage", "format", "--initial-controllers", voters, "--cluster-id", CLUSTER_ID, "--config")
        done = subprocess.run(self.command(*words, str(self.properties)), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"could not format node {self.node_id}: {done.stderr.strip()}")

    def spawn(self) -> None:
        with (self.home / "console.log").open("ab") as console:
            self.process = subprocess.Popen(
                self.command("start", str(self.properties)),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=environment(),
            )

    def wait(self, deadline: float) -> None:
        while not answers("127.0.0.1", self.port):
            if self.process is None or self.process.poll() is not None:
                raise RuntimeError(f"penstock node {self.node_id} stopped: see {self.home}/console.log")
            if time.monotonic() > deadline:
                raise RuntimeError(f"penstock node {self.node_id} does not answer: see {self.home}/console.log")
            time.sleep(0.005)

    def end(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        end_process(process, how)


@dataclass(slots=True)
class PenstockCluster:
    data: Path
    name: str = "penstock"
    nodes: list[PenstockNode] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def ports(self) -> dict[int, int]:
        return {node.node_id: node.port for node in self.nodes}

    @property
    def pids(self) -> list[int]:
        return [node.process.pid for node in self.nodes if node.process is not None]

    def start(self) -> float:
        if not self.nodes:
            self._lay_out()
        began = time.monotonic()
        for node in self.nodes:
            if node.process is None:
                node.spawn()
        for node in self.nodes:
            node.wait(began + START_LIMIT_S)
        return time.monotonic() - began

    def _lay_out(self) -> None:
        ports = free_ports(2 * NODES)
        controllers = {index + 1: ports[NODES + index] for index in range(NODES)}
        for index in range(NODES):
            home = self.data / f"node-{index + 1}"
            home.mkdir(parents=True, exist_ok=True)
            node = PenstockNode(index + 1, ports[index], controllers[index + 1], home)
            told = node_properties(
                node.node_id, node.port, node.controller_port, list(controllers.values()), home / "log"
            )
            node.properties.write_text("".join(f"{name}={value}\n" for name, value in told.items()))
            node.format(initial_controllers(controllers))
            self.nodes.append(node)

    def stop(self) -> None:
        for node in self.nodes:
            node.end(signal.SIGTERM)

    def wipe(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        self.nodes = []

    def kill_node(self, node_id: int) -> None:
        self.nodes[node_id - 1].end(signal.SIGKILL)

    def start_node(self, node_id: int) -> None:
        self.nodes[node_id - 1].spawn()
        self.nodes[node_id - 1].wait(time.monotonic() + START_LIMIT_S)


@dataclass(slots=True)
class ThreeKafkas:
    data: Path
    name: str = "kafka"
    cluster: KafkaCluster = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = KafkaCluster(self.data, NODES)

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def ports(self) -> dict[int, int]:
        return {node.node_id: node.port for node in self.cluster.members}

    @property
    def pids(self) -> list[int]:
        return [node.pid for node in self.cluster.members if node.process is not None]

    def start(self) -> float:
        return self.cluster.start()

    def stop(self) -> None:
        self.cluster.stop()

    def wipe(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        self.cluster = KafkaCluster(self.data, NODES)

    def kill_node(self, node_id: int) -> None:
        self.cluster.members[node_id - 1].end(signal.SIGKILL)

    def start_node(self, node_id: int) -> None:
        node = self.cluster.members[node_id - 1]
        node.spawn(self.cluster.heap)
        wait_until_serving(node, time.monotonic() + START_LIMIT_S)
