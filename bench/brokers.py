"""Runs the two brokers under test through one interface: start, stop, kill, and the process ids."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tools.kafka import KafkaCluster, answers, end_process, free_ports

START_LIMIT_S = 120.0


class Peer(Protocol):
    name: str

    @property
    def bootstrap(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def pid(self) -> int: ...

    def start(self) -> float:
        """Starts the broker; returns the seconds from spawning the process to its first response."""
        ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def wipe(self) -> None:
        """Deletes all data of a stopped broker."""
        ...


@dataclass(slots=True)
class Penstock:
    data: Path
    name: str = "penstock"
    directories: int = 1
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    overrides: dict[str, str] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "not running"
        return self.process.pid

    def start(self) -> float:
        self.port = self.port or free_ports(1)[0]
        self.data.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "penstock.cli.main",
            "up",
            "--port",
            str(self.port),
            "--data",
            str(self.data / "log"),
            *("--override", f"log.dirs={_log_dirs(self.data, self.directories)}"),
            *(word for name, value in self.overrides.items() for word in ("--override", f"{name}={value}")),
        ]
        with (self.data / "console.log").open("ab") as console:
            began = time.monotonic()
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, env=environment()
            )
        while not answers("127.0.0.1", self.port):
            if self.process.poll() is not None:
                raise RuntimeError(f"penstock stopped: see {self.data}/console.log")
            if time.monotonic() - began > START_LIMIT_S:
                raise RuntimeError(f"penstock does not answer: see {self.data}/console.log")
            time.sleep(0.002)
        return time.monotonic() - began

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def wipe(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        end_process(process, how)


def _log_dirs(data: Path, count: int) -> str:
    """Returns log.dirs: `log`, `log2` and so on."""
    return ",".join(str(data / f"log{number if number > 1 else ''}") for number in range(1, count + 1))


def environment() -> dict[str, str]:
    """Returns the environment without PYTHONDONTWRITEBYTECODE, so that Python compiles a checkout once, like an
    installed package; otherwise every start would be slower."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(slots=True)
class Kafka:
    data: Path
    name: str = "kafka"
    directories: int = 1
    cluster: KafkaCluster = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = self._cluster()

    def _cluster(self) -> KafkaCluster:
        # The one node of a cluster has its data in `node-1`.
        log_dirs = _log_dirs(self.data / "node-1", self.directories)
        return KafkaCluster(self.data, overrides={"log.dirs": log_dirs})

    def secure(self, overrides: Callable[[dict[str, int]], dict[str, str]]) -> None:
        """Sets properties that depend on the ports of the listeners, before the start."""
        self.cluster.place()
        node = self.cluster.members[0]
        more = overrides({"PLAINTEXT": node.port, "CONTROLLER": node.controller_port})
        self.cluster.overrides = {**self.cluster.overrides, **more}

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def port(self) -> int:
        return self.cluster.members[0].port

    @property
    def pid(self) -> int:
        return self.cluster.members[0].pid

    def start(self) -> float:
        return self.cluster.start()

    def stop(self) -> None:
        self.cluster.stop()

    def kill(self) -> None:
        self.cluster.kill()

    def wipe(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        self.cluster = self._cluster()
