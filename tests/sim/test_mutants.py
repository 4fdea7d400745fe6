"""Tests mutants, each in its own process: unit tests and the simulator detect harmful mutants, and limits end mutants
that hang."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.sim.mutants.catalogue import all_mutants
from penstock.sim.mutants.covering import Covering, Learned
from penstock.sim.mutants.forks import ForkServers
from penstock.sim.mutants.hook import ROOT, find_mutant
from penstock.sim.mutants.results import WATCHDOG, ResultFile
from penstock.sim.mutants.runner import (
    REPOSITORY,
    Runner,
    observe_tests,
    reached_by_sim,
    run_by_sim,
    run_command,
    run_unit_task,
)
from penstock.sim.mutants.runs import Kind
from penstock.sim.mutants.worker import NO_MUTANT, Observed, SimTask, UnitTask

pytestmark = pytest.mark.programs
TESTS = ["tests/unit/replication/test_replication_epochs.py"]


def mutant_of(path: str, before: str, operator: str) -> str:
    package = path.partition("/")[0]
    return next(
        each.id
        for each in all_mutants(ROOT, [package])
        if each.path == path and each.operator == operator and before in each.before
    )


def test_unit_tests_fail_with_a_mutant_and_pass_without_it() -> None:
    name = mutant_of("replication/epochs.py", "latest <= epoch", "boundary")
    killed = run_unit_task(name, UnitTask(TESTS))
    assert killed.killed
    assert killed.how.startswith("tests/unit/replication/test_replication_epochs.py::")
    assert killed.reached > 0
    passed = run_unit_task(NO_MUTANT, UnitTask(TESTS))
    assert not passed.killed
    assert passed.runs > 10


def test_mutant_is_tested_only_with_the_unit_tests_that_run_its_function() -> None:
    mutant = find_mutant(ROOT, mutant_of("replication/epochs.py", "latest <= epoch", "boundary"))
    covering = Covering.of_files(observe_tests(TESTS))
    assert not covering.failed
    tests = covering.choose(mutant).tests
    assert 0 < len(tests) < len(covering.files[TESTS[0]].tests)
    killed = run_unit_task(mutant.id, UnitTask(tests))
    assert killed.killed
    assert killed.how in tests


def test_measurement_stops_if_a_test_is_not_found(tmp_path: Path) -> None:
    mutant = find_mutant(ROOT, mutant_of("replication/epochs.py", "latest <= epoch", "boundary"))
    gone = Learned(
        "", (), (), {f"{TESTS[0]}::test_that_was_renamed": Observed(0.1, [f"{mutant.path}::{mutant.function}"])}
    )
    runner = Runner(60, 1, ResultFile(tmp_path / "mutants.jsonl"), covering=Covering.of_files({TESTS[0]: gone}))
    with pytest.raises(RuntimeError, match="the test files changed"):
        runner.by_unit(mutant)


def test_forked_process_and_fresh_process_kill_the_same_mutants() -> None:
    harmful = mutant_of("replication/epochs.py", "latest <= epoch", "boundary")
    elsewhere = mutant_of("replication/directory_move.py", "", "early-return")
    servers = ForkServers(REPOSITORY, TESTS, 300)
    try:
        killed = servers.run(harmful, UnitTask(TESTS))
        assert killed is not None
        assert replace(killed, cpu_s=0) == replace(run_unit_task(harmful, UnitTask(TESTS)), cpu_s=0)
        assert servers.run(elsewhere, UnitTask(TESTS)) is None  # its module is not imported: it needs a fresh process
    finally:
        servers.close()


def test_simulator_detects_a_mutant_and_prints_the_command_that_repeats_the_run() -> None:
    name = mutant_of("log/appending.py", "log.advance(", "dropped-effect")
    killed = run_by_sim(name, SimTask(20, 1))
    assert killed.killed
    assert killed.command.startswith("penstock sim --seed 1 --profile calm")
    assert not run_command(killed.command).killed


@pytest.mark.slow  # its limit is CPU time of another process, which a busy machine stretches
def test_mutant_that_never_ends_is_stopped_by_its_time_limit() -> None:
    hanging = run_by_sim(NO_MUTANT, SimTask(60, 1, run_cpu_s=0.5))
    assert hanging.killed
    assert hanging.how.startswith(WATCHDOG)


def test_a_mutant_with_an_unknown_id_is_refused() -> None:
    with pytest.raises(KeyError):
        find_mutant(ROOT, "replication/epochs.py::no_such_function::boundary::1")
    with pytest.raises(KeyError):
        find_mutant(ROOT, "no/such/file.py::f::boundary::1")


def test_worker_process_reports_the_functions_that_each_kind_of_simulated_run_calls() -> None:
    reached = reached_by_sim(SimTask(1, 1))
    assert Kind("calm", 3) in reached["log/log.py::Log.append_as_leader"]
    assert "groups/migration.py::downgrade" not in reached
