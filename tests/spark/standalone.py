"""A standalone Spark cluster of one master and two workers, from the pip package, each a process of this machine."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.spark.java import find_java

BARE_PATH = "/usr/local/bin:/usr/bin:/bin"
_DEPLOY = "org.apache.spark.deploy"
_EXECUTOR = b"CoarseGrainedExecutorBackend"
#: Settings of a session on this cluster, with an executor on each worker.
EXECUTORS = {"spark.executor.memory": "600m", "spark.cores.max": "2", "spark.executor.cores": "1"}


@dataclass(frozen=True, slots=True)
class Standalone:
    url: str
    workers: list[subprocess.Popen[bytes]]

    def executors(self) -> list[int]:
        """Returns the process ids of the running executors."""
        return [child for worker in self.workers for child in _children(worker.pid) if _EXECUTOR in _command(child)]

    def python_workers(self) -> list[int]:
        """Returns the process ids of the executors' Python workers, busy or idle."""
        daemons = [child for executor in self.executors() for child in _children(executor)]
        return [worker for daemon in daemons for worker in _children(daemon)]


@contextmanager
def standalone(place: Path, *, bare: bool = False) -> Iterator[Standalone]:
    """Runs a cluster. With `bare`, its processes have neither the Python path nor the commands of this environment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    master = _start(
        place, bare, f"{_DEPLOY}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"
    )
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for number in (1, 2):
            work = str(place / f"work-{number}")
            words = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0", "-d", work, url]
            workers.append(_start(place, bare, f"{_DEPLOY}.worker.Worker", *words))
        yield Standalone(url, workers)
    finally:
        for process in (master, *workers):
            process.terminate()
        for process in (master, *workers):
            process.wait(60)


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def bare_environment() -> dict[str, str]:
    """Returns an environment for Spark that has only the system's commands."""
    return {
        "PATH": BARE_PATH,
        "SPARK_HOME": str(spark_home()),
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }


def _start(place: Path, bare: bool, name: str, *words: str) -> subprocess.Popen[bytes]:
    home = spark_home()
    environment = bare_environment() if bare else {**os.environ, **bare_environment(), "PATH": os.environ["PATH"]}
    if not bare:
        environment["PYSPARK_PYTHON"] = sys.executable
    log = (place / f"{re.sub('[^a-z]', '', name.lower())}.log").open("ab")
    with log:
        return subprocess.Popen([home / "bin" / "spark-class", name, *words], stdout=log, stderr=log, env=environment)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:
            continue  # the thread ended meanwhile
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
