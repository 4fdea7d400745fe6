"""Shrinking, on runs that are pretended: what is left is what it takes to fail."""

from penstock.sim.checkers import Violation
from penstock.sim.history import History
from penstock.sim.plan import Plan, draw_plan
from penstock.sim.shrink import shrink
from penstock.sim.world import Verdict


def verdict(plan: Plan, *rules: str) -> Verdict:
    return Verdict(plan, [Violation(rule, "") for rule in rules], [], "", 0.0, {}, History())


def test_only_the_faults_and_actors_that_it_takes_are_left() -> None:
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


def test_another_failure_than_the_first_does_not_count() -> None:
    plan = draw_plan(3, "hostile", duration_s=60)
    small = shrink(verdict(plan, "rule"), run=lambda part: verdict(part, "another rule"))
    assert small.plan == plan


def test_attempts_are_bounded() -> None:
    runs = 0

    def run(part: Plan) -> Verdict:
        nonlocal runs
        runs += 1
        return verdict(part)

    shrink(verdict(draw_plan(3, "hostile", duration_s=600), "rule"), run=run, attempts=7)
    assert runs == 7
