"""Tests which tests are run against a mutant: tests that call its function, the most specific tests first."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.sim.mutants.catalogue import Mutant
from penstock.sim.mutants.covering import Covering, Learned, learn
from penstock.sim.mutants.worker import Observed

MUTANT = Mutant("log/log.py::Log.append::boundary::1", "log", "log/log.py", 1, "boundary", "", "")
APPEND, OTHER = "log/log.py::Log.append", "log/log.py::Log.read"
OWN, SCENARIOS = "tests/unit/log/test_log.py", "tests/scenarios/test_scenarios.py"


def learned(tests: dict[str, Observed], *, early: Sequence[str] = (), failed: Sequence[str] = ()) -> Learned:
    return Learned("digest", early, failed, tests)


def covering(early: Sequence[str] = ()) -> Covering:
    own = {f"{OWN}::wide": Observed(1.0, [APPEND, OTHER]), f"{OWN}::reads": Observed(1.0, [OTHER])}
    scenarios = {f"{SCENARIOS}::narrow": Observed(3.0, [APPEND])}
    return Covering.of_files({OWN: learned(own, early=early), SCENARIOS: learned(scenarios)})


def test_mutant_is_tested_first_by_the_test_that_calls_the_fewest_other_functions() -> None:
    assert covering().choose(MUTANT).tests == [f"{SCENARIOS}::narrow", f"{OWN}::wide"]


def test_at_least_one_test_runs_for_a_mutant_even_if_the_cpu_time_limit_is_zero() -> None:
    assert covering().choose(MUTANT, most_cpu_s=4.0).tests == [f"{SCENARIOS}::narrow", f"{OWN}::wide"]
    assert covering().choose(MUTANT, most_cpu_s=3.0).tests == [f"{SCENARIOS}::narrow"]
    assert covering().choose(MUTANT, most_cpu_s=0.0).tests == [f"{SCENARIOS}::narrow"]


def test_mutant_is_not_tested_by_a_test_that_fails_without_the_mutant() -> None:
    assert covering().choose(MUTANT, left_out={f"{SCENARIOS}::narrow"}).tests == [f"{OWN}::wide"]


def test_mutant_of_a_function_that_runs_at_import_is_tested_by_all_tests_of_its_package() -> None:
    tests = covering(early=[APPEND]).choose(MUTANT).tests
    assert tests == [f"{SCENARIOS}::narrow", f"{OWN}::wide", f"{OWN}::reads"]


def test_digest_of_the_tests_for_a_mutant_changes_if_a_test_file_changes() -> None:
    before = covering().choose(MUTANT).digest
    files = covering().files
    changed = Covering.of_files({**files, OWN: files[OWN]._replace(digest="another")})
    assert covering().choose(MUTANT).digest == before != changed.choose(MUTANT).digest


class Observer:
    """Notes which test files are run, and returns one test per file, which calls `Log.append`."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, files: Sequence[str]) -> dict[str, Learned]:
        self.asked.append(list(files))
        return {file: learned({f"{file}::test": Observed(0.5, [APPEND])}, early=[OTHER]) for file in files}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for file in (OWN, SCENARIOS):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("def test(): ...")
    return tmp_path


def test_called_functions_of_a_test_file_are_recorded_again_only_after_a_change(
    repository: Path,
) -> None:
    cache, observer = repository / "mutants.tests.json", Observer()
    first = learn(repository, cache, observer, "state")
    assert observer.asked == [[OWN], [SCENARIOS]]
    again = learn(repository, cache, observer, "state")
    assert (again.tests, again.early) == (first.tests, first.early)
    assert again.choose(MUTANT) == first.choose(MUTANT)
    (repository / OWN).write_text("def test(): pass")
    learn(repository, cache, observer, "state")
    (repository / "tests/scenarios/torn_tail.txt").write_text("a script")
    learn(repository, cache, observer, "state")
    assert observer.asked[2:] == [[OWN], [SCENARIOS]]
    learn(repository, cache, observer, "another state")
    assert observer.asked[4:] == [[OWN], [SCENARIOS]]


def test_interrupted_recording_of_called_functions_continues_where_it_stopped(repository: Path) -> None:
    cache, observer = repository / "mutants.tests.json", Observer()

    def interrupted(files: Sequence[str]) -> dict[str, Learned]:
        if SCENARIOS in files:
            raise KeyboardInterrupt
        return observer(files)

    with pytest.raises(KeyboardInterrupt):
        learn(repository, cache, interrupted, "state")
    assert learn(repository, cache, observer, "state").choose(MUTANT).tests == [f"{SCENARIOS}::test", f"{OWN}::test"]
    assert observer.asked == [[OWN], [SCENARIOS]]
