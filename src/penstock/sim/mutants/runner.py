"""Starts a fresh process for each mutant and way of testing, under limits, and evaluates how the process ended.

A kill counts only if the same run passes without the mutant. All fast tests run once without a mutant (`covering`).
Tests that fail in this run are left out, and each mutant gets only tests that run its function. The first time that a
test or a simulated run kills a mutant, this test or run is repeated without a mutant.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.sim.mutants.catalogue import Mutant
from penstock.sim.mutants.covering import Covering, Learned, code_state, file_of, learn
from penstock.sim.mutants.forks import ForkServers, ended_by, start_worker
from penstock.sim.mutants.hook import ROOT
from penstock.sim.mutants.results import WATCHDOG, Result, ResultFile, source_digest
from penstock.sim.mutants.runs import Kind
from penstock.sim.mutants.worker import (
    COVERING_CPU_S,
    NO_MUTANT,
    NOT_FOUND,
    RUN_CPU_S,
    UNIT_CPU_S,
    Observed,
    Outcome,
    SimTask,
    UnitTask,
)

WAYS = ("unit", "sim")
#: Wall time for a process, in multiples of its CPU limit: the machine may be busy with other work.
PATIENCE = 8
SETUP_S = 120.0
#: CPU time of the runs that show which kinds of runs run which functions: at least one seed of each kind.
KINDS_CPU_S = 120.0
REPOSITORY = ROOT.parents[1]


@dataclass(slots=True)
class Runner:
    cpu_s: float
    first_seed: int
    file: ResultFile
    failing: set[str] = field(default_factory=set)
    """Commands of simulated runs, and unit tests, that fail without a mutant."""
    passing: set[str] = field(default_factory=set)
    covering: Covering = field(default_factory=lambda: Covering.of_files({}))
    kinds: Mapping[str, Collection[Kind]] = field(default_factory=dict)
    """Maps each function to the kinds of simulated runs that run it."""
    forks: ForkServers | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run_all(self, mutants: Sequence[Mutant], ways: Sequence[str], jobs: int) -> Iterator[Result]:
        """Tests every mutant in every way (unit tests, simulator) and yields the results. Yields first the results that
        an earlier measurement has already found."""
        if "unit" in ways:
            self.covering = learn(REPOSITORY, self.file.learned, observe_tests, code_state(ROOT))
            self.failing |= self.covering.failed
        if "sim" in ways:
            self.kinds = learn_kinds(self.file.kinds, self.first_seed, code_state(ROOT))
        todo: list[tuple[Mutant, str]] = []
        for mutant in mutants:
            source = source_digest(ROOT, mutant)
            for way in ways:
                known = self.file.get(mutant, way)
                if known is not None and known.settles(self.cpu_s, source, self._tests_digest(mutant, way)):
                    yield known
                else:
                    todo.append((mutant, way))
        files = {file_of(test) for mutant, way in todo if way == "unit" for test in self.covering.choose(mutant).tests}
        self.forks = ForkServers(REPOSITORY, sorted(files), PATIENCE * UNIT_CPU_S)
        with closing(self.forks), ThreadPoolExecutor(jobs) as pool:
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
        source = source_digest(ROOT, mutant)
        return Result.of(mutant, way, outcome, self.cpu_s, source, self._tests_digest(mutant, way))

    # Unit tests.

    def _tests_digest(self, mutant: Mutant, way: str) -> str:
        return self.covering.choose(mutant).digest if way == "unit" else ""

    def by_unit(self, mutant: Mutant) -> Outcome:
        """Runs the tests that run the mutant's function. Returns the outcome.

        If a test fails, repeats it without the mutant. If it fails again, leaves this test out and starts again.
        """
        spent = 0.0
        while True:
            tests = self.covering.choose(mutant, left_out=self.failing).tests
            if not tests:
                return Outcome(False, "", "", spent, 0, 0)
            outcome = self._run_tests(mutant, UnitTask(tests))
            spent += outcome.cpu_s
            if outcome.how == NOT_FOUND:
                raise RuntimeError("the test files changed while the mutants ran: run the same command again")
            if not outcome.killed or outcome.how not in tests or self._passes(outcome.how):
                return replace(outcome, cpu_s=spent)

    def _run_tests(self, mutant: Mutant, task: UnitTask) -> Outcome:
        """Runs the tests in a fork; in a fresh process if the mutant's function already runs at import."""
        outcome = None
        if self.forks is not None and not self.covering.is_early(mutant):
            outcome = self.forks.run(mutant.id, task)
        return outcome or run_unit_task(mutant.id, task)

    # Simulator.

    def by_sim(self, mutant: Mutant) -> Outcome:
        """Runs simulations (`runs.rotation`) until one of them kills the mutant or the CPU time is used up.

        Repeats the simulation that killed the mutant without the mutant. If it fails again, leaves this simulation out
        and starts again.
        """
        spent = 0.0
        while True:
            task = SimTask(
                self.cpu_s,
                self.first_seed,
                skipped=sorted(self.failing),
                package=mutant.package,
                kinds=sorted(self.kinds.get(f"{mutant.path}::{mutant.function}", ())),
            )
            outcome = run_by_sim(mutant.id, task)
            spent += outcome.cpu_s
            if not outcome.killed or not outcome.command or self._passes(outcome.command):
                return replace(outcome, cpu_s=spent)

    def _passes(self, run: str) -> bool:
        """Returns True if a test or simulation passes on the unchanged code.

        Each test and each simulation runs only once, and its result is kept.
        """
        with self._lock:
            if run not in self.passing and run not in self.failing:
                outcome = run_unit_task(NO_MUTANT, UnitTask([run])) if "::" in run else run_command(run)
                (self.failing if outcome.killed else self.passing).add(run)
            return run in self.passing


def run_command(command: str) -> Outcome:
    return run_worker({"by": "command", "command": command}, SETUP_S * PATIENCE)


def run_unit_task(name: str, task: UnitTask) -> Outcome:
    return run_worker({"by": "unit", "mutant": name, "task": task._asdict()}, PATIENCE * UNIT_CPU_S)


def observe_tests(files: Sequence[str]) -> dict[str, Learned]:
    """Runs the tests of these files without a mutant. Returns, for each file, the functions that its tests run and the
    tests that failed."""
    lines, how = _lines_of({"by": "covering", "task": UnitTask(files, 0)._asdict()}, PATIENCE * COVERING_CPU_S)
    found = [line for line in lines if line["kind"] == "covering"]
    if how or not found:
        raise RuntimeError(f"the unit tests without a mutant ended without a result: {how}")
    failed = lines[-1]["how"].splitlines()
    tests = {name: Observed(*fields) for name, fields in found[0]["tests"].items()}
    return {
        file: Learned(
            "",
            found[0]["early"],
            [test for test in failed if file_of(test) == file],
            {name: observed for name, observed in tests.items() if file_of(name) == file},
        )
        for file in files
    }


def run_by_sim(name: str, task: SimTask) -> Outcome:
    return run_worker({"by": "sim", "mutant": name, "task": task._asdict()}, PATIENCE * task.cpu_s + SETUP_S)


def reached_by_sim(task: SimTask) -> dict[str, set[Kind]]:
    """Returns the functions, as `path::qualified name`, that the simulator runs within its CPU time, each with the
    kinds of runs that run it."""
    lines, how = _lines_of({"by": "reach", "task": task._asdict()}, PATIENCE * task.cpu_s + SETUP_S)
    found = [line for line in lines if line["kind"] == "reached"]
    if how or not found:
        raise RuntimeError(f"the simulator's runs without a mutant ended without a result: {how}")
    kinds: dict[str, set[Kind]] = {}
    for line in found:
        for function in line["functions"]:
            kinds.setdefault(function, set()).add(Kind(*line["kind_of_run"]))
    return kinds


def learn_kinds(cache: Path, first_seed: int, state: str) -> dict[str, set[Kind]]:
    """Returns the kinds of simulated runs that run each function. Takes them from the cache if the code has not
    changed."""
    if cache.exists() and (saved := json.loads(cache.read_text()))["state"] == state:
        return {function: {Kind(*kind) for kind in kinds} for function, kinds in saved["functions"].items()}
    found = reached_by_sim(SimTask(KINDS_CPU_S, first_seed))
    rows = {function: sorted(kinds) for function, kinds in found.items()}
    cache.write_text(json.dumps({"state": state, "functions": rows}))
    return found


def run_worker(task: dict[str, Any], wall_s: float) -> Outcome:
    """Runs a worker and returns its outcome. A worker that exceeded a limit counts as killed by the watchdog."""
    lines, how = _lines_of(task, wall_s)
    if not how and lines and lines[-1].pop("kind") == "result":
        return Outcome(**lines[-1])
    return _ended(lines, how)


def _lines_of(task: dict[str, Any], wall_s: float) -> tuple[list[dict[str, Any]], str]:
    """Runs a worker. Returns the lines that it printed, and the reason if a limit ended it (empty otherwise)."""
    process = start_worker(REPOSITORY)
    try:
        out, err = process.communicate(json.dumps(task), timeout=wall_s)
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
    if code < 0:
        return f"{WATCHDOG}: {ended_by(code)}"
    lines = err.strip().splitlines()
    return f"does not start: it ended with exit code {code}: {lines[-1] if lines else 'no message'}"


def _ended(lines: list[dict[str, Any]], how: str) -> Outcome:
    """Returns the outcome of a worker that ended without a result.

    The worker prints a line before each simulated run, so its last line names the run in which it ended. The outcome
    assumes that this run used all of its CPU time.
    """
    started = [line for line in lines if line["kind"] == "run"]
    if not started:
        return Outcome(True, how, "", UNIT_CPU_S, 0, 0)
    return Outcome(True, how, started[-1]["command"], started[-1]["cpu_s"] + RUN_CPU_S, len(started), 0)


def has_tests(repository: Path = REPOSITORY) -> bool:
    return (repository / "tests" / "unit").is_dir()
