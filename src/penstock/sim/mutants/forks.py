"""Tests many mutants with unit tests, each in a fork of a server that has imported the code and the tests already.

A fork needs no imports, which would take longer than the few tests of a mutant. In a fork, the mutant replaces the code
of its function (`hook.patch`). If the function runs at import, the mutant needs a fresh process instead.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.sim.mutants.results import WATCHDOG
from penstock.sim.mutants.worker import UNIT_CPU_S, Outcome, UnitTask


def ended_by(code: int) -> str:
    """Returns the signal that ended a process, from its negative exit code."""
    return "too much CPU time" if code == -signal.SIGPROF else f"ended by {signal.Signals(-code).name}"


def start_worker(repository: Path, module: str = "worker", stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Starts a process that waits for its task on its standard input (`main` of the module)."""
    words = [sys.executable, "-m", f"penstock.sim.mutants.{module}"]
    return subprocess.Popen(  # noqa: S603 - our own module
        words, cwd=repository, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
    )


class ForkServers:
    """Keeps idle servers for the threads of a measurement. Each server runs one mutant at a time."""

    def __init__(self, repository: Path, files: Sequence[str], wall_s: float) -> None:
        self._task = {"files": list(files), "wall_s": wall_s}
        self._repository = repository
        self._idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()

    def run(self, name: str, task: UnitTask) -> Outcome | None:
        """Tests a mutant. Returns None if the mutant needs a fresh process, because its code runs at import."""
        try:
            server = self._idle.get_nowait()
        except queue.Empty:
            server = start_worker(self._repository, "fork_server", stderr=subprocess.DEVNULL)
            _ask(server, self._task, until="ready")
        lines = _ask(server, {"mutant": name, "task": task._asdict()})
        self._idle.put(server)
        if lines[-1]["how"]:
            return Outcome(True, f"{WATCHDOG}: {lines[-1]['how']}", "", UNIT_CPU_S, 0, 0)
        results = [line for line in lines if line.pop("kind") == "result"]
        return Outcome(**results[0]) if results else None

    def close(self) -> None:
        while not self._idle.empty():
            server = self._idle.get_nowait()
            server.communicate()  # the end of its input ends it


def _ask(server: subprocess.Popen[str], task: dict[str, Any], until: str = "end") -> list[dict[str, Any]]:
    """Sends a line, and returns the lines of the answer."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(task) + "\n")
    server.stdin.flush()
    lines: list[dict[str, Any]] = []
    while not lines or lines[-1]["kind"] != until:
        line = server.stdout.readline()
        if not line:
            raise RuntimeError("the process that has imported the unit tests ended: run the measurement again")
        lines.append(json.loads(line))
    return lines
