"""Runs in the process that tests one mutant, with unit tests or with the simulator.

The process reads a JSON object from its parent on its standard input, see `main`. It prints a JSON line before each
simulated run. Its last line is the result. If it dies without a result (an endless loop, too much memory), its parent
uses its exit status instead. No module of the node is imported before the hook is installed.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from penstock.sim.mutants.hook import ROOT, ReachFinder, install
from penstock.sim.mutants.runs import Kind, Run, rotation, simulate

#: A mutant that needs more is killed by its limit.
MEMORY_BYTES = 3 << 30
#: Simulated runs take one to five seconds of CPU.
RUN_CPU_S = 60
#: The unit tests of a mutant take at most forty seconds of CPU (`covering.MOST_TEST_CPU_S`), and their import ten.
UNIT_CPU_S = 120
#: The unit tests of a directory, with every function observed.
COVERING_CPU_S = 600
#: One unit test that waits longer for something that never comes is killed.
UNIT_WALL_S = 120
#: The most specific tests kill most mutants: the modules of the other tests are imported only for the survivors.
FIRST_TESTS = 25
NO_MUTANT = "none"
#: The result if pytest does not find a test, which says nothing about the mutant.
NOT_FOUND = "pytest ended with 4"


@dataclass(frozen=True, slots=True)
class Outcome:
    killed: bool
    how: str
    """The failing test or the broken rule; empty for a survivor."""
    command: str
    """The command line of the run that failed, to repeat it without the mutant's hook."""
    cpu_s: float
    runs: int
    reached: int
    """How often the mutated function ran."""


class Reporter:
    """Writes JSON lines to the parent. All other output of this process is thrown away."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)

    def line(self, kind: str, value: dict[str, Any]) -> None:
        rest = json.dumps({"kind": kind, **value}).encode() + b"\n"
        os.set_blocking(self._out, True)  # a test may have changed it: its standard output was the same pipe
        while rest:
            rest = rest[os.write(self._out, rest) :]


def limit(cpu_s: float) -> None:
    """Sets a CPU time limit: a signal ends this process when it has used `cpu_s` more seconds."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _install(name: str) -> list[int]:
    """Puts the mutant into this process. Returns the counter of its function's calls."""
    return [0] if name == NO_MUTANT else install(name).reached


class UnitTask(NamedTuple):
    """Holds the unit tests to run for one mutant."""

    paths: Sequence[str]
    most_failures: int = 1
    """The test run stops after this many failures; 0 runs all tests."""


def run_unit(reached: Sequence[int], task: UnitTask) -> Outcome:
    """Runs the unit tests with the mutant that is in this process; `reached` counts the calls of its function.

    Returns the outcome; its field `how` lists the failing tests, one per line.
    """
    limit(UNIT_CPU_S)
    failures = _Failures()
    code = 0
    for paths in (task.paths[:FIRST_TESTS], task.paths[FIRST_TESTS:]):
        if paths and (not code or task.most_failures != 1):
            code = run_tests(task._replace(paths=paths), failures) or code
    how = "\n".join(failures.failed) or f"pytest ended with {code}"
    return Outcome(code != 0, how if code else "", "", time.process_time(), failures.passed, reached[0])


class Observed(NamedTuple):
    """Holds the CPU time that one test used, and the functions of the mutated packages that it ran."""

    cpu_s: float
    functions: Sequence[str]


def run_covering(task: UnitTask) -> _Coverage:
    """Runs the unit tests without a mutant, and notes the functions of the mutated packages that each test runs."""
    limit(COVERING_CPU_S)
    finder = ReachFinder(ROOT)
    finder.install(at_once=True)
    coverage = _Coverage(finder.reached)
    run_tests(task, coverage)
    return coverage


def run_tests(task: UnitTask, plugin: _Failures | None, *more: str) -> int:
    """Runs pytest with its usual options for mutants and the options `more`.

    Returns its exit code; 0 if all tests passed.
    """
    os.environ["TEST_EXAMPLES"] = "quick"
    import pytest

    options = [
        f"--maxfail={task.most_failures}",
        "-q",
        "-n",
        "0",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "--tb",
        "no",
    ]
    options += ["-o", f"timeout={UNIT_WALL_S}"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # penstock is imported before pytest starts
    options += ["-m", "not slow and not programs", "--hypothesis-seed", "0"]
    return int(pytest.main([*options, *more, *task.paths], plugins=[] if plugin is None else [plugin]))


class _Failures:
    """Notes the failures of a pytest run and counts the tests that passed."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.passed = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call":
            self.passed += 1

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(f"{report.nodeid} is not collected")


class _Coverage(_Failures):
    """Notes failures as `_Failures` does, and also which functions each test runs. Each function adds its name to the
    set `reached` when it runs."""

    def __init__(self, reached: set[str]) -> None:
        super().__init__()
        self._reached = reached
        #: Functions that run while modules are imported and tests collected: every test may depend on them.
        self.early: set[str] = set()
        self.tests: dict[str, Observed] = {}
        self._began = 0.0

    def pytest_collection_finish(self) -> None:
        self.early |= self._reached
        self._reached.clear()

    def pytest_runtest_logstart(self) -> None:
        self._began = time.process_time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        cpu_s = round(time.process_time() - self._began, 3)
        self.tests[nodeid] = Observed(cpu_s, sorted(self._reached))
        self._reached.clear()


class SimTask(NamedTuple):
    """Holds the limits of the simulated runs for one mutant, and the runs to leave out."""

    cpu_s: float
    first_seed: int
    run_cpu_s: float = RUN_CPU_S
    skipped: Sequence[str] = ()
    """Commands of runs that fail without a mutant."""
    package: str = ""
    """The package of the mutant, whose profiles come first."""
    kinds: Sequence[Kind] = ()
    """The kinds of runs that run the mutant's function; empty for all kinds."""


def run_sim(name: str, task: SimTask, reporter: Reporter) -> Outcome:
    """Runs simulations of all profiles in turn, until a rule is broken or the CPU time is used up."""
    runs = 0

    def begin(run: Run) -> None:
        nonlocal runs
        runs += 1
        reporter.line("run", {"command": run.command, "cpu_s": time.process_time()})
        limit(task.run_cpu_s)

    limit(task.run_cpu_s)
    reached = _install(name)
    for drawn in rotation(task.first_seed, task.package, [Kind(*each) for each in task.kinds]):
        for run, how in simulate(drawn, begin):
            killed = bool(how) and run.command not in task.skipped
            if killed:
                return Outcome(killed, how, run.command, time.process_time(), runs, reached[0])
            if time.process_time() >= task.cpu_s:
                return Outcome(killed, "", "", time.process_time(), runs, reached[0])
    raise AssertionError("`rotation` must yield simulated runs without end, but it ended")


def run_reach(task: SimTask, reporter: Reporter) -> None:
    """Reports for each simulated run, within the given CPU time, which functions of the mutated packages it calls."""
    finder = ReachFinder(ROOT)
    finder.install()
    for drawn in rotation(task.first_seed):
        for _ in simulate(drawn, lambda run: limit(task.run_cpu_s)):
            if time.process_time() >= task.cpu_s:
                break
        reporter.line("reached", {"kind_of_run": drawn.kind, "functions": sorted(finder.reached)})
        finder.reached.clear()
        if time.process_time() >= task.cpu_s:
            return


def main() -> None:
    task = json.loads(sys.stdin.readline())
    limit_memory()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    reporter = Reporter()
    match task:
        case {"by": "unit", "mutant": name, "task": fields}:
            outcome = run_unit(_install(name), UnitTask(**fields))
        case {"by": "covering", "task": fields}:
            found = run_covering(UnitTask(**fields))
            reporter.line("covering", {"early": sorted(found.early), "tests": found.tests})
            how = "\n".join(found.failed)
            outcome = Outcome(bool(how), how, "", time.process_time(), found.passed, 0)
        case {"by": "sim", "mutant": name, "task": fields}:
            outcome = run_sim(name, SimTask(**fields), reporter)
        case {"by": "reach", "task": fields}:
            run_reach(SimTask(**fields), reporter)
            outcome = Outcome(False, "", "", time.process_time(), 0, 0)
        case {"by": "command", "command": command}:
            ((_, how),) = simulate(Run.of(command), lambda run: limit(RUN_CPU_S))
            outcome = Outcome(bool(how), how, command, time.process_time(), 1, 0)
        case _:
            raise SystemExit(
                f"the worker does not know the task {task!r}: run `penstock sim --mutants`, which starts workers itself"
            )
    reporter.line("result", asdict(outcome))
    os._exit(0)  # threads that a mutant keeps alive must not keep the process alive


if __name__ == "__main__":
    main()
