"""Starts a fresh process for each mutant and way of testing, under limits, and evaluates how the process ended.

A kill counts only if the same run passes without the mutant. For each package, the unit tests run once without a
mutant. Tests that fail in this run are left out, and each mutant gets only the tests that run its function. If a
simulated run kills a mutant for the first time, the run is repeated without a mutant.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.sim.mutants.catalogue import PACKAGES, Mutant
from penstock.sim.mutants.hook import ROOT
from penstock.sim.mutants.results import WATCHDOG, Result, ResultFile, source_digest
from penstock.sim.mutants.worker import COVERING_CPU_S, RUN_CPU_S, UNIT_CPU_S, Outcome, SimTask, UnitTask

WAYS = ("unit", "sim")
#: Wall time for a process, in multiples of its CPU limit: the machine may be busy with other work.
PATIENCE = 8
SETUP_S = 120.0
REPOSITORY = ROOT.parents[1]
#: If more tests than this run a function, the whole directory is run: their names would not fit into a command line.
MOST_NAMED_TESTS = 500


@dataclass(frozen=True, slots=True)
class Covering:
    """Maps each function of the mutated packages to the unit tests that run it. The most specific test comes first."""

    early: frozenset[str]
    """Functions that run while modules are imported and tests collected."""
    tests: Mapping[str, Sequence[str]]

    def of(self, mutant: Mutant) -> Sequence[str] | None:
        """Returns the tests that run the mutant's function; None if all tests have to be run."""
        function = f"{mutant.path}::{mutant.function}"
        tests = self.tests.get(function, ())
        return None if function in self.early or len(tests) > MOST_NAMED_TESTS else tests


@dataclass(slots=True)
class Runner:
    cpu_s: float
    first_seed: int
    file: ResultFile
    failing: set[str] = field(default_factory=set)
    """Commands of simulated runs, and unit tests, that fail without a mutant."""
    passing: set[str] = field(default_factory=set)
    covering: dict[Sequence[str], Covering] = field(default_factory=dict)
    """Directories of unit tests → the functions that each test runs."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run_all(self, mutants: Sequence[Mutant], ways: Sequence[str], jobs: int) -> Iterator[Result]:
        """Tests every mutant in every way (unit tests, simulator) and yields the results. Yields first the results that
        an earlier measurement has already found."""
        todo: list[tuple[Mutant, str]] = []
        for mutant in mutants:
            source = source_digest(ROOT, mutant)
            for way in ways:
                known = self.file.get(mutant, way)
                if known is not None and known.settles(self.cpu_s, source):
                    yield known
                else:
                    todo.append((mutant, way))
        if "unit" in ways:
            self._check_unit_tests({mutant.package for mutant, way in todo if way == "unit"})
        with ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(self._run, mutant, way) for mutant, way in todo]
            try:
                for future in as_completed(futures):
                    result = future.result()
                    self.file.add(result)
                    yield result
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, mutant: Mutant, way: str) -> Result:
        outcome = self.by_unit(mutant) if way == "unit" else self.by_sim(mutant)
        return Result.of(mutant, way, outcome, self.cpu_s, source_digest(ROOT, mutant))

    # Unit tests.

    def _check_unit_tests(self, packages: set[str]) -> None:
        for directories in sorted({PACKAGES[package][1] for package in packages}):
            outcome, self.covering[directories] = run_covering(directories)
            self.failing.update(outcome.how.splitlines())

    def by_unit(self, mutant: Mutant) -> Outcome:
        directories = PACKAGES[mutant.package][1]
        tests = self.covering[directories].of(mutant) if directories in self.covering else None
        if tests is None:
            return run_by_unit(mutant.id, directories, deselected=self.failing)
        tests = [test for test in tests if test not in self.failing]
        return run_unit_task(mutant.id, UnitTask(tests)) if tests else Outcome(False, "", "", 0.0, 0, 0)

    # Simulator.

    def by_sim(self, mutant: Mutant) -> Outcome:
        """Runs one simulation after the other (`worker.rotation`) until one kills the mutant or the CPU time is used
        up. If this simulation also fails without the mutant, leaves it out and starts again."""
        spent = 0.0
        while True:
            task = SimTask(self.cpu_s, self.first_seed, skipped=sorted(self.failing), package=mutant.package)
            outcome = run_by_sim(mutant.id, task)
            spent += outcome.cpu_s
            if not outcome.killed or not outcome.command or self._passes(outcome.command):
                return replace(outcome, cpu_s=spent)

    def _passes(self, command: str) -> bool:
        """Runs the simulation of this command on the unchanged code. Returns True if no rule is broken.

        Each command runs once, and its result is kept.
        """
        with self._lock:
            if command not in self.passing and command not in self.failing:
                failed = run_worker({"by": "command", "command": command}, SETUP_S * PATIENCE).killed
                (self.failing if failed else self.passing).add(command)
            return command in self.passing


def run_by_unit(
    name: str, directories: Sequence[str], *, most_failures: int = 1, deselected: Collection[str] = ()
) -> Outcome:
    """Runs the unit tests in these directories or files with one mutant, and returns the outcome."""
    paths = [str(REPOSITORY / "tests" / "unit" / each) for each in directories]
    return run_unit_task(name, UnitTask(paths, most_failures, sorted(each for each in deselected if "::" in each)))


def run_unit_task(name: str, task: UnitTask) -> Outcome:
    return run_worker({"by": "unit", "mutant": name, "task": task._asdict()}, PATIENCE * UNIT_CPU_S)


def run_covering(directories: Sequence[str]) -> tuple[Outcome, Covering]:
    """Runs the unit tests in these directories without a mutant. Returns the outcome, with the failing tests, and which
    functions each test runs."""
    task = UnitTask([str(REPOSITORY / "tests" / "unit" / each) for each in directories], 0)
    lines, how = _lines_of({"by": "covering", "task": task._asdict()}, PATIENCE * COVERING_CPU_S)
    found = [line for line in lines if line["kind"] == "covering"]
    if how or not found:
        raise RuntimeError(f"the unit tests without a mutant ended without a result: {how}")
    lines[-1].pop("kind")
    return Outcome(**lines[-1]), Covering(frozenset(found[0]["early"]), found[0]["tests"])


def run_by_sim(name: str, task: SimTask) -> Outcome:
    return run_worker({"by": "sim", "mutant": name, "task": task._asdict()}, PATIENCE * task.cpu_s + SETUP_S)


def reached_by_sim(task: SimTask) -> set[str]:
    """Returns the functions, as `path::qualified name`, that the simulator runs within its CPU time."""
    lines, how = _lines_of({"by": "reach", "task": task._asdict()}, PATIENCE * task.cpu_s + SETUP_S)
    found = [line["functions"] for line in lines if line["kind"] == "reached"]
    if not found:
        raise RuntimeError(f"the simulator's run without a mutant ended without a result: {how}")
    return set(found[0])


def run_worker(task: dict[str, Any], wall_s: float) -> Outcome:
    """Runs a worker and returns its outcome. A worker that exceeded a limit counts as killed by the watchdog."""
    lines, how = _lines_of(task, wall_s)
    if not how and lines and lines[-1].pop("kind") == "result":
        return Outcome(**lines[-1])
    return _ended(lines, how)


def _lines_of(task: dict[str, Any], wall_s: float) -> tuple[list[dict[str, Any]], str]:
    """Runs a worker. Returns the lines that it printed, and the reason if a limit ended it (empty otherwise)."""
    words = [sys.executable, "-m", "penstock.sim.mutants.worker", json.dumps(task)]
    process = subprocess.Popen(  # noqa: S603 - our own module
        words, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, err = process.communicate(timeout=wall_s)
        how = _cause(process.returncode, err) if process.returncode else ""
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        how = f"{WATCHDOG}: no end within {wall_s:.0f} s of wall time"
    except BaseException:
        process.kill()
        process.wait()
        raise
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")], how


def _cause(code: int, err: str) -> str:
    if code == -signal.SIGPROF:
        return f"{WATCHDOG}: too much CPU time"
    if code < 0:
        return f"{WATCHDOG}: ended by {signal.Signals(-code).name}"
    lines = err.strip().splitlines()
    return f"does not start: it ended with exit code {code}: {lines[-1] if lines else 'no message'}"


def _ended(lines: list[dict[str, Any]], how: str) -> Outcome:
    """Returns the outcome of a worker that ended without a result.

    The worker announced each simulated run with a line; the last of these lines names the run in which the worker
    ended. The outcome assumes that this run used all the CPU time that it was allowed.
    """
    started = [line for line in lines if line["kind"] == "run"]
    if not started:
        return Outcome(True, how, "", UNIT_CPU_S, 0, 0)
    return Outcome(True, how, started[-1]["command"], started[-1]["cpu_s"] + RUN_CPU_S, len(started), 0)


def has_tests(repository: Path = REPOSITORY) -> bool:
    return (repository / "tests" / "unit").is_dir()
