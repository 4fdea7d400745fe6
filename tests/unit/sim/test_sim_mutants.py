"""Tests mutants: the changes that operators make, their ids and halves, and how results are counted."""

import ast
import json
from itertools import islice, takewhile
from pathlib import Path

import pytest

from penstock.cli import sim_mutants
from penstock.sim.mutants import runner
from penstock.sim.mutants.catalogue import PACKAGES, Half, Mutant, all_mutants, mutants_of, mutated, naming, sample
from penstock.sim.mutants.hook import ROOT
from penstock.sim.mutants.places import functions
from penstock.sim.mutants.results import WATCHDOG, Result, ResultFile
from penstock.sim.mutants.runner import REPOSITORY, learn_kinds
from penstock.sim.mutants.runs import FIRST_PROFILES, Kind, Run, rotation
from penstock.sim.mutants.summary import count, killed_by_any, reach_rows, survivors, unreached
from penstock.sim.mutants.worker import Outcome, SimTask
from penstock.sim.plan.profiles import PROFILES

pytestmark = pytest.mark.exhaustive

PATH = "log/example.py"


def found(source: str) -> list[tuple[str, str, str]]:
    return [(each.operator, each.before, each.after) for each in mutants_of(source, PATH, "log")]


def texts(source: str, operator: str) -> list[str]:
    """Returns the source after each change of the operator."""
    mutants = [each for each in mutants_of(source, PATH, "log") if each.operator == operator]
    return [ast.unparse(mutated(source, PATH, each.id)) for each in mutants]


def body(*lines: str, name: str = "f", returns: str = "") -> str:
    return f"def {name}(self, a, b){returns}:\n" + "\n".join(f"    {line}" for line in lines)


def test_simulator_runs_first_the_profiles_that_use_the_mutated_package_most() -> None:
    assert FIRST_PROFILES.keys() == PACKAGES.keys()
    for package, first in FIRST_PROFILES.items():
        seed = list(takewhile(lambda run: run.seed == 1, rotation(1, package)))
        assert tuple(dict.fromkeys(run.profile for run in seed))[: len(first)] == first
        assert {run.profile for run in seed} == PROFILES.keys()


def test_simulator_makes_only_runs_of_the_kinds_that_run_the_mutated_function() -> None:
    kinds = [Kind("moves", 1), Kind("calm", 3)]
    runs = list(islice(rotation(7, "log", kinds), 4))
    assert [(*run.kind, run.seed) for run in runs] == [("moves", 1, 7), ("calm", 3, 7), ("moves", 1, 8), ("calm", 3, 8)]


def test_simulator_makes_runs_of_every_kind_if_no_kind_is_known_to_run_the_mutated_function() -> None:
    seed = [run.kind for run in takewhile(lambda run: run.seed == 1, rotation(1, "log", ()))]
    assert sorted(seed) == sorted({Kind(name, nodes) for name in PROFILES for nodes in (1, 3)} - {Kind("points", 1)})


def test_kinds_of_runs_are_taken_from_the_cache_until_the_code_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[SimTask] = []

    def reached(task: SimTask) -> dict[str, set[Kind]]:
        asked.append(task)
        return {"log/log.py::Log.append": {Kind("calm", 3), Kind("moves", 1)}}

    monkeypatch.setattr(runner, "reached_by_sim", reached)
    cache = tmp_path / "mutants.runs.json"
    first = learn_kinds(cache, 5, "one state")
    assert learn_kinds(cache, 5, "one state") == first == reached(asked[0])
    assert [task.first_seed for task in asked] == [5, 5]
    learn_kinds(cache, 5, "another state")
    assert len(asked) == 3


@pytest.mark.parametrize(("one", "other"), [("<", "<="), ("<=", "<"), (">", ">="), (">=", ">")])
def test_boundary_operator_exchanges_a_strict_and_a_non_strict_comparison(one: str, other: str) -> None:
    assert found(body(f"return a {one} b")) == [("boundary", f"a {one} b", f"a {other} b")]


def test_off_by_one_operator_adds_or_subtracts_one_in_a_comparison_of_offsets() -> None:
    assert texts(body("return a.offset < b.end"), "off-by-one") == [body("return a.offset < b.end - 1")]
    assert texts(body("return a.offset <= b.end"), "off-by-one") == [body("return a.offset <= b.end + 1")]


def test_loose_equality_operator_replaces_not_equal_by_less_than_for_epochs() -> None:
    assert texts(body("return a.epoch != b.epoch"), "loose-equality") == [body("return a.epoch < b.epoch")]
    assert found(body("return a.name != b.name")) == []


def test_dropped_fsync_operator_removes_a_call_that_syncs() -> None:
    assert ("dropped-fsync", "await a.file.sync()", "pass") in found(
        body("await a.file.sync()").replace("def", "async def")
    )
    assert ("dropped-fsync", "a.run(self._sync_directories)", "pass") in found(body("a.run(self._sync_directories)"))


def test_mutation_operators_do_not_change_log_lines_and_invariant_checks() -> None:
    assert found(body("logger.info('x', a)", "check(a < b, 'x')", "raise ValueError(a + 1)")) == []
    assert found(body("return a < b", name="__repr__")) == []


def test_reordered_effect_operator_exchanges_two_neighbouring_effects() -> None:
    assert texts(body("a.send()", "self.x = b"), "reordered-effect") == [body("self.x = b", "a.send()")]


def test_reordered_effect_operator_does_not_exchange_independent_assignments() -> None:
    assert texts(body("self.x = a", "self.y = b"), "reordered-effect") == []
    assert texts(body("self.x = a", "self.x_end = b"), "reordered-effect") == []
    assert texts(body("self.x = a", "self.y = self.x"), "reordered-effect") == [body("self.y = self.x", "self.x = a")]


def test_field_not_restored_operator_removes_an_assignment_in_a_load_function() -> None:
    assert texts(body("self.x = a", name="load"), "field-not-restored") == [body("pass", name="load")]
    assert texts(body("self.x = a"), "field-not-set") == [body("pass")]
    assert texts(body("self.x = a", name="__init__"), "field-not-set") == []


def test_check_removed_operator_removes_a_guard_or_one_half_of_its_condition() -> None:
    assert texts(body("if a and b:", "    return 1", "return 2"), "check-removed") == [
        body("pass", "return 2"),
        body("if b:", "    return 1", "return 2"),
        body("if a:", "    return 1", "return 2"),
    ]


def test_early_return_mutation_adds_a_break_to_a_loop_or_a_return_before_the_loop() -> None:
    source = body("a.send()", "for each in b:", "    each.send()", returns=" -> None")
    assert texts(source, "early-return") == [
        body("a.send()", "return", "for each in b:", "    each.send()", returns=" -> None"),
        body("a.send()", "for each in b:", "    each.send()", "    break", returns=" -> None"),
    ]


def test_bound_removed_operator_replaces_max_by_each_of_its_arguments() -> None:
    assert texts(body("return max(a, b)"), "bound-removed") == [body("return a"), body("return b")]


def test_every_mutant_of_the_code_has_a_unique_id_and_compiles() -> None:
    mutants = all_mutants(ROOT, ["replication", "transactions"])
    assert len({each.id for each in mutants}) == len(mutants) > 100
    sources = {each.path: (ROOT / each.path).read_text() for each in mutants}
    unchanged = {path: ast.unparse(ast.parse(source)) for path, source in sources.items()}
    for each in mutants:
        tree = mutated(sources[each.path], each.path, each.id)
        assert ast.unparse(tree) != unchanged[each.path], each.id
        compile(tree, each.path, "exec")


def test_mutant_id_does_not_change_when_another_function_changes() -> None:
    old = body("return a < b", name="g")
    new = body("return a < b", "return a < b", name="f") + "\n" + old
    kept = {each.id for each in mutants_of(old, PATH, "log")}
    assert kept == {f"{PATH}::g::boundary::1"}
    assert kept <= {each.id for each in mutants_of(new, PATH, "log")}


def test_id_of_a_mutant_decides_whether_the_mutant_is_held_out() -> None:
    mutants = all_mutants(ROOT, ["raft"])
    held_out = [each for each in mutants if each.half is Half.HELD_OUT]
    assert 0.4 < len(held_out) / len(mutants) < 0.6
    assert held_out[0].half is Mutant(held_out[0].id, "", "", 0, "", "", "").half


def test_sample_of_mutants_is_the_beginning_of_their_shuffled_list() -> None:
    mutants = all_mutants(ROOT, ["replication"])
    assert sample(mutants, 10, 3) == sample(list(reversed(mutants)), None, 3)[:10]
    assert sample(mutants, 10, 3) != sample(mutants, 10, 4)


def test_every_mutated_package_has_code_and_unit_tests_and_is_known_to_the_command_line() -> None:
    assert tuple(PACKAGES) == sim_mutants.PACKAGES
    for code, tests in PACKAGES.values():
        assert (ROOT / code).is_dir()
        assert all((REPOSITORY / "tests" / "unit" / each).is_dir() for each in tests)


def result(name: str, by: str, *, killed: bool, how: str = "", reached: int = 1, cpu_s: float = 36.0) -> Result:
    return Result(name, by, killed, how, "", cpu_s, 1, reached, 60.0, "digest", "")


def test_kills_by_unit_tests_and_by_the_simulator_are_counted_separately() -> None:
    results = [
        result("a", "unit", killed=True),
        result("a", "sim", killed=False, reached=0),
        result("b", "unit", killed=False),
        result("b", "sim", killed=True, how=f"{WATCHDOG}: too much CPU time"),
        result("c", "unit", killed=False),
        result("c", "sim", killed=False),
    ]
    sim = count("sim", results)
    assert (sim.mutants, sim.killed, sim.by_watchdog, sim.not_reached) == (3, 1, 1, 1)
    assert sim.row["kills_per_cpu_hour"] == pytest.approx(33.3)
    assert [each.id for each in survivors(results, ("unit", "sim"))] == ["c"]
    assert killed_by_any(results, ("unit", "sim")) == (2, 3)


def test_summary_counts_and_names_functions_that_the_simulator_never_runs() -> None:
    source = body("return a < b", name="f") + "\n" + body("if a < b:", "    return 1", "return 2", name="g")
    mutants = mutants_of(source, PATH, "log")
    rows = reach_rows(mutants, {f"{PATH}::f"})
    assert [(row["package"], row["functions"], row["reached"]) for row in rows] == [("log", 2, 1), ("all", 2, 1)]
    assert (rows[0]["mutants"], rows[0]["in_reached"], rows[0]["percent"]) == (3, 1, 33.3)
    assert unreached(mutants, {f"{PATH}::f"}) == [(f"{PATH}::g", 2)]


def test_only_mutants_whose_id_contains_one_of_the_texts_are_measured() -> None:
    mutants = mutants_of(body("return a < b", name="f") + "\n" + body("return a < b", name="g"), PATH, "log")
    assert {each.function for each in naming(mutants, ["::g::", "::h::"])} == {"g"}
    assert naming(mutants, []) == mutants


def test_mutated_functions_are_named_with_their_classes() -> None:
    tree = ast.parse("class A:\n    def f(self):\n        def g():\n            pass\n\nasync def h():\n    pass\n")
    assert [name for _, name in functions(tree)] == ["A.f", "A.f.g", "h"]


def test_saved_results_omit_the_code_changes_of_held_out_mutants(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    mutants = all_mutants(ROOT, ["replication"])
    outcome = Outcome(False, "", "", 1.0, 1, 0)
    for half in Half:
        mutant = next(each for each in mutants if each.half is half)
        ResultFile(file).add(Result.of(mutant, "unit", outcome, 60.0, "digest"))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [bool(line["diff"]) for line in lines] == [True, False]
    again = ResultFile(file).results
    assert {name for name, _ in again} == {line["id"] for line in lines}


def test_larger_budget_runs_a_surviving_mutant_again_but_not_a_killed_mutant() -> None:
    survivor, killed = result("a", "sim", killed=False), result("a", "sim", killed=True)
    assert survivor.settles(60, "digest")
    assert not survivor.settles(61, "digest")
    assert killed.settles(61, "digest")
    assert not killed.settles(1, "another digest")


def test_surviving_mutant_is_run_again_after_a_change_of_its_tests() -> None:
    survivor, killed = result("a", "unit", killed=False), result("a", "unit", killed=True)
    assert survivor.settles(60, "digest", "")
    assert not survivor.settles(60, "digest", "other tests")
    assert killed.settles(60, "digest", "other tests")


def test_printed_command_repeats_the_simulated_run() -> None:
    for run in (Run("power", 7, 3, 12.5), Run("points", 7, 3, 20.0, ("AlterPartition answer#3:drop", "none"))):
        assert Run.of(run.command) == run
