"""Tests that every planted bug is found within a bounded number of seeds, and that the same runs pass without the bug.

`FOUND_BY` names for each bug a seed that finds it soon; `Plant.at` is the fault at a point that the bug needs. A code
change changes the runs of all seeds: if a seed no longer finds its bug, the first `SEEDS` seeds are tried in turn.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from penstock.sim.faults.planted import FOUND_BY, PLANTS, SEEDS, Plant
from penstock.sim.plan.draw import draw_plan
from penstock.sim.plan.plan import Plan
from penstock.sim.plan.points import PointFault, parse_point_fault
from penstock.sim.run.simulation import Verdict, run_plan

#: Points of a kind that are tried in each seed.
POINTS = 8
#: Bugs that every run of the tests looks for, one for each kind of guarantee; the others are marked slow.
QUICK = frozenset(
    {
        "aborted-keys-supersede",
        "aborted-not-moved",
        "ack-before-fsync",
        "ack-before-watermark",
        "ack-one-offset-early",
        "active-task-given-twice",
        "any-generation-commits",
        "any-user-is-a-broker",
        "configs-never-change-on-followers",
        "configs-of-leaders-only",
        "coordinator-writes-no-tombstones",
        "dead-replica-in-sync",
        "decision-answered-early",
        "duplicates-written",
        "eligible-although-others-commit",
        "epochs-not-moved",
        "follower-leaves-out-a-batch",
        "epochs-never-used-up",
        "failed-directory-goes-on",
        "failed-directory-not-reported",
        "followers-forget-producers",
        "full-directory-takes-records",
        "index-not-truncated",
        "large-batch-skipped",
        "later-segments-without-directory-sync",
        "isr-change-without-answer",
        "isr-expanded-early",
        "marker-written-twice",
        "markers-before-decision",
        "markers-wait-for-deleted-topics",
        "metadata-before-fsync",
        "metadata-fetched-before-fsync",
        "metadata-not-synced",
        "min-insync-raised-in-vain",
        "min-isr-ignored",
        "old-log-removed-before-sync",
        "mount-point-used",
        "open-transactions-shown",
        "producers-of-truncated-batches",
        "reads-do-not-wait-for-commits",
        "revocation-not-awaited",
        "share-acknowledgements-lost",
        "share-count-reset",
        "share-state-answered-early",
        "share-state-without-answer",
        "reassignment-ends-early",
        "stable-offset-below-start",
        "stale-follower-counts",
        "stale-isr-accepted",
        "stranger-gets-votes",
        "swap-forgotten",
        "producers-not-moved",
        "swap-before-caught-up",
        "tombstones-dropped-at-once",
        "truncate-to-watermark",
        "vote-forgotten",
        "vote-not-synced",
        "watermark-beyond-the-log",
        "watermark-of-the-majority",
        "watermark-without-followers",
        "young-records-expire",
    }
)


def tries(plant: Plant, name: str) -> Iterator[Verdict]:
    """Yields the verdicts of runs that should find the bug. The caller has planted the bug."""
    seed, seconds = FOUND_BY[name]
    fault = parse_point_fault(plant.at) if plant.at else None
    plan = draw_plan(seed, plant.profile, nodes=plant.nodes, duration_s=seconds)
    yield run_plan(replace(plan, points=() if fault is None else (fault,)))
    for seed in range(1, SEEDS + 1):
        plan = draw_plan(seed, plant.profile, nodes=plant.nodes, duration_s=plant.seconds)
        if fault is None:
            yield run_plan(plan)
        else:
            yield from runs_with(fault, plan)


def runs_with(fault: PointFault, plan: Plan) -> Iterator[Verdict]:
    """Yields the verdicts of runs with this fault at several points of its kind, because points move when the code
    changes."""
    points = [each for each in run_plan(plan, record_points=True).points.passed if each.kind == fault.kind]
    for point in points[:: max(1, len(points) // POINTS)]:
        yield run_plan(replace(plan, points=(replace(fault, nth=point.nth),)))


@cache
def without_any(seed: int, profile: str, nodes: int, seconds: float, points: tuple[PointFault, ...]) -> list[str]:
    plan = replace(draw_plan(seed, profile, nodes=nodes, duration_s=seconds), points=points)
    return [str(violation) for violation in run_plan(plan).violations]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PLANTS]
)
def test_seed_finds_its_planted_bug_and_breaks_no_rule_without_the_bug(name: str) -> None:
    plant = PLANTS[name]
    with plant.planted():
        for verdict in tries(plant, name):
            if any(plant.rule in ("", violation.rule) for violation in verdict.violations):
                break
        else:
            pytest.fail(f"{SEEDS} seeds of profile {plant.profile} did not find that {plant.about}")
    plan = verdict.plan
    assert without_any(plan.seed, plan.profile, plan.nodes, plan.duration_s, plan.points) == []


def test_every_planted_bug_names_a_seed_that_finds_it() -> None:
    assert FOUND_BY.keys() == PLANTS.keys()
    assert all(1 <= seed <= SEEDS and seconds <= PLANTS[name].seconds for name, (seed, seconds) in FOUND_BY.items())


def test_planted_bug_is_removed_when_its_with_block_ends() -> None:
    for plant in PLANTS.values():
        before = [owner.__dict__[name] for owner, name, _ in plant.replacements]
        with plant.planted():
            during = [owner.__dict__[name] for owner, name, _ in plant.replacements]
        assert all(one is not other for one, other in zip(before, during))
        assert [owner.__dict__[name] for owner, name, _ in plant.replacements] == before
