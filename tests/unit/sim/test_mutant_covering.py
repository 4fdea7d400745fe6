"""Tests which tests a mutant gets: those that run its function, the most specific first, within a bound."""

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


def test_mutant_gets_the_tests_of_all_directories_that_run_its_function_and_the_most_specific_first() -> None:
    assert covering().choose(MUTANT).tests == [f"{SCENARIOS}::narrow", f"{OWN}::wide"]


def test_tests_of_a_mutant_end_at_the_bound_of_cpu_time_but_one_test_always_runs() -> None:
    assert covering().choose(MUTANT, most_cpu_s=4.0).tests == [f"{SCENARIOS}::narrow", f"{OWN}::wide"]
    assert covering().choose(MUTANT, most_cpu_s=3.0).tests == [f"{SCENARIOS}::narrow"]
    assert covering().choose(MUTANT, most_cpu_s=0.0).tests == [f"{SCENARIOS}::narrow"]


def test_test_that_fails_without_a_mutant_is_left_out() -> None:
    assert covering().choose(MUTANT, left_out={f"{SCENARIOS}::narrow"}).tests == [f"{OWN}::wide"]


def test_function_that_runs_at_an_import_gets_all_tests_of_its_package_too() -> None:
    tests = covering(early=[APPEND]).choose(MUTANT).tests
    assert tests == [f"{SCENARIOS}::narrow", f"{OWN}::wide", f"{OWN}::reads"]


def test_digest_of_the_chosen_tests_changes_with_their_files() -> None:
    before = covering().choose(MUTANT).digest
    files = covering().files
    changed = Covering.of_files({**files, OWN: files[OWN]._replace(digest="another")})
    assert covering().choose(MUTANT).digest == before != changed.choose(MUTANT).digest


class Observer:
    """Counts how often each test file is run, and returns one test that runs `Log.append`."""

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


def test_test_file_is_learned_again_only_after_a_change_of_the_file_its_data_or_the_code(repository: Path) -> None:
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


def test_learning_that_was_interrupted_continues_with_the_next_directory(repository: Path) -> None:
    cache, observer = repository / "mutants.tests.json", Observer()

    def interrupted(files: Sequence[str]) -> dict[str, Learned]:
        if SCENARIOS in files:
            raise KeyboardInterrupt
        return observer(files)

    with pytest.raises(KeyboardInterrupt):
        learn(repository, cache, interrupted, "state")
    assert learn(repository, cache, observer, "state").choose(MUTANT).tests == [f"{SCENARIOS}::test", f"{OWN}::test"]
    assert observer.asked == [[OWN], [SCENARIOS]]
