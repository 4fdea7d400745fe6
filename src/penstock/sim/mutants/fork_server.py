"""Runs in a process that imports the unit tests once and forks for each mutant.

The server reads one JSON line per mutant. It answers with the result of the fork, if there is one, and with a line that
tells how the fork ended. No other thread runs in the server, so a fork is safe.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from penstock.sim.mutants.forks import ended_by
from penstock.sim.mutants.hook import imported_functions, patch
from penstock.sim.mutants.worker import Reporter, UnitTask, limit_memory, run_tests, run_unit


def serve(files: Sequence[str], wall_s: float, reporter: Reporter) -> None:
    """Imports the test files, then tests one mutant per line of the standard input, until the input ends."""
    run_tests(UnitTask(files, 0), None, "--collect-only")
    functions = imported_functions()
    reporter.line("ready", {})
    for line in iter(sys.stdin.readline, ""):
        task = json.loads(line)
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            limit_memory()
            with suppress(ValueError):
                reached = patch(task["mutant"], functions)
                reporter.line("result", asdict(run_unit(reached, UnitTask(**task["task"]))))
            os._exit(0)  # threads that a mutant keeps alive must not keep the process alive
        reporter.line("end", {"how": _wait(child, wall_s)})


def _wait(child: int, wall_s: float) -> str:
    """Waits for the end of a fork. Returns the reason if a limit or a signal ended it; empty otherwise."""
    handle = os.pidfd_open(child)
    try:
        ended, _, _ = select.select([handle], [], [], wall_s)
        if not ended:
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.close(handle)
    if not ended:
        return f"no end within {wall_s:.0f} s of wall time"
    return ended_by(code) if code < 0 else ""


if __name__ == "__main__":
    serve(**json.loads(sys.stdin.readline()), reporter=Reporter())
