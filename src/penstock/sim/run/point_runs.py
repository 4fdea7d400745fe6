"""Runs the profile `points`: first a run that records the points of a plan, then runs with faults at chosen points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Protocol

from penstock.sim.plan.coverage import Coverage
from penstock.sim.plan.plan import Plan
from penstock.sim.plan.point_choice import PointChoice
from penstock.sim.plan.points import PointLog
from penstock.sim.run.simulation import Verdict, run_plan

PROFILE = "points"
#: Runs with faults at points for each run that records the points.
RUNS = 6


class Run(Protocol):
    def __call__(self, plan: Plan, *, record_points: bool = False) -> Verdict: ...


def point_runs(
    plan: Plan, coverage: Coverage, *, runs: int = RUNS, run: Run = run_plan, kinds: tuple[str, ...] = ()
) -> Iterator[Verdict]:
    """Yields the verdict of the run that records the points, then the verdicts of the runs with faults at points.

    With `kinds`, only points whose kind contains one of these texts are chosen. The coverage of each run is added to
    `coverage`. Even if the first run fails, faults are injected at its points.
    """
    recorded = run(plan, record_points=True)
    coverage.add(recorded.points)
    passed = [point for point in recorded.points.passed if not kinds or any(each in point.kind for each in kinds)]
    choice = PointChoice(PointLog(passed), coverage, Random(f"{plan.seed}/points"))  # noqa: S311
    yield recorded
    for _ in range(runs):
        points = choice.faults()
        if not points:
            return
        verdict = run(replace(plan, points=points))
        coverage.add(verdict.points)
        yield verdict
