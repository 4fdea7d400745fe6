"""Tests shrinking of failing runs, with faked runs and with a planted bug: only the parts that cause the failure
stay."""

from dataclasses import replace

import pytest

from penstock.sim.checks.history import History
from penstock.sim.checks.story import Violation
from penstock.sim.faults.planted import PLANTS
from penstock.sim.plan.draw import draw_plan
from penstock.sim.plan.plan import Plan
from penstock.sim.plan.points import parse_point_fault
from penstock.sim.run.shrink import command, shrink, whole
from penstock.sim.run.simulation import Verdict, run_plan

pytestmark = pytest.mark.programs


def verdict(plan: Plan, *rules: str) -> Verdict:
    return Verdict(plan, [Violation(rule, "") for rule in rules], [], "", 0.0, {}, History())


def test_shrinking_keeps_only_the_faults_and_actors_that_cause_the_failure() -> None:
    plan = draw_plan(3, "hostile", duration_s=60)
    needed_faults = {plan.faults[2].index, plan.faults[7].index}
    needed_actor = plan.actors[1].index
    runs = 0

    def run(part: Plan) -> Verdict:
        nonlocal runs
        runs += 1
        fails = needed_faults <= {fault.index for fault in part.faults} and needed_actor in {
            actor.index for actor in part.actors
        }
        return verdict(part, *(["rule"] if fails else []))

    small = shrink(verdict(plan, "rule"), run=run, attempts=200)
    assert {fault.index for fault in small.plan.faults} == needed_faults
    assert [actor.index for actor in small.plan.actors] == [needed_actor]
    assert small.plan.duration_s < 60
    assert runs <= 200


def test_shrinking_ignores_a_smaller_run_that_breaks_another_rule() -> None:
    plan = draw_plan(3, "hostile", duration_s=60)
    small = shrink(verdict(plan, "rule"), run=lambda part: verdict(part, "another rule"))
    assert small.plan == plan


def test_shrinking_stops_after_the_allowed_number_of_attempts() -> None:
    runs = 0

    def run(part: Plan) -> Verdict:
        nonlocal runs
        runs += 1
        return verdict(part)

    shrink(verdict(draw_plan(3, "hostile", duration_s=600), "rule"), run=run, attempts=7)
    assert runs == 7


def test_shrinking_keeps_the_fewest_nodes_that_break_the_same_rule() -> None:
    plan = draw_plan(3, "hostile", nodes=5, duration_s=60)
    needed = plan.faults[2].index

    def run(part: Plan) -> Verdict:
        fails = part.nodes >= 3 and needed in {fault.index for fault in part.faults}
        return verdict(part, *(["rule"] if fails else []))

    small = shrink(verdict(plan, "rule"), run=run, attempts=200)
    assert small.plan.nodes == 3
    assert [fault.index for fault in small.plan.faults] == [needed]
    assert small.plan.actors == ()


def test_printed_command_of_a_shrunk_run_repeats_the_shrunk_plan() -> None:
    plan = draw_plan(3, "hostile", nodes=3, duration_s=1200)

    def run(part: Plan) -> Verdict:
        fails = part.nodes == 3 and 1 in {fault.index for fault in part.faults}
        return verdict(part, *(["rule"] if fails else []))

    small = shrink(verdict(plan, "rule"), run=run)
    assert small.plan.duration_s < 60
    assert _as_told(command(small.plan)) == small.plan


def test_shrinking_tries_fewer_nodes_with_the_remaining_faults_and_actors() -> None:
    plan = draw_plan(3, "hostile", nodes=3, duration_s=60).only(faults=frozenset({4}), actors=frozenset({1}))
    tried: list[Plan] = []

    def run(part: Plan) -> Verdict:
        tried.append(part)
        return verdict(part)

    shrink(verdict(plan, "rule"), run=run, attempts=2)
    assert [part.nodes for part in tried] == [1, 2]
    assert [fault.index for fault in tried[1].faults] == [4]
    assert [actor.index for actor in tried[1].actors] == [1]


def test_printed_command_of_a_shrunk_run_finds_the_planted_bug_again() -> None:
    plant = PLANTS["watermark-without-followers"]
    with plant.planted():
        failing = _first_failing(plant.profile)
        small = shrink(failing, attempts=6)
        assert small.plan.nodes < failing.plan.nodes
        before, after = ((*each.plan.faults, *each.plan.actors) for each in (failing, small))
        assert len(after) < len(before)
        again = run_plan(_as_told(command(small.plan)))
    assert again.digest == small.digest
    assert [each.rule for each in again.violations] == [each.rule for each in small.violations]


def _first_failing(profile: str) -> Verdict:
    for seed in range(2, 30):
        found = run_plan(draw_plan(seed, profile, nodes=4, duration_s=6))
        if not found.ok:
            return found
    raise AssertionError("no seed fails")


def _as_told(line: str) -> Plan:
    """Returns the plan of the run that this command line starts."""
    words = line.split()
    options = dict(zip(words[2::2], words[3::2]))
    plan = draw_plan(
        int(options["--seed"]),
        options["--profile"],
        nodes=int(options.get("--nodes", "1")),
        duration_s=float(options["--seconds"]),
    )
    assert whole(plan) == plan
    return plan.only(_indexes(options.get("--faults")), _indexes(options.get("--actors")))


def _indexes(text: str | None) -> frozenset[int] | None:
    return None if text is None else frozenset(int(each) for each in text.split(",") if each != "none")


def test_shrinking_keeps_only_the_faults_at_points_that_cause_the_failure() -> None:
    texts = ("Vote request#1:drop", "Fetch(quorum) answer#7:drop+kill-sender", "write segment#9:power")
    plan = replace(draw_plan(3, "points", nodes=3, duration_s=60), points=tuple(map(parse_point_fault, texts)))
    needed = parse_point_fault("Fetch(quorum) answer#7:kill-sender")

    def run(part: Plan) -> Verdict:
        fails = any(each.kind == needed.kind and "kill-sender" in each.faults for each in part.points)
        return verdict(part, *(["rule"] if fails else []))

    small = shrink(verdict(plan, "rule"), run=run)
    assert small.plan.points == (needed,)
    assert small.plan.nodes == 3
    assert small.plan.faults == ()
