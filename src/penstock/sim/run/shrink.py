"""Shrinks a failing run: fewer nodes, faults and actors, and less time, as long as the run breaks the same rule.

Tries fewer nodes first, because all later attempts are then faster. The same seed may draw other faults and actors for
a smaller cluster. A run with faults at points keeps its number of nodes.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace

from penstock.sim.plan.draw import draw_plan
from penstock.sim.plan.plan import Plan
from penstock.sim.plan.points import PointFault
from penstock.sim.run.point_runs import PROFILE as POINTS
from penstock.sim.run.simulation import Verdict, run_plan

ATTEMPTS = 60
#: Time after the last fault that a shortened run keeps.
AFTERMATH_S = 8.0

Run = Callable[[Plan], Verdict]


def shrink(failing: Verdict, *, attempts: int = ATTEMPTS, run: Run = run_plan) -> Verdict:
    """Returns the smallest failing run found within the allowed attempts; `failing` itself if no smaller run fails."""
    return _Shrinking(failing, attempts, run).result()


def whole(plan: Plan) -> Plan:
    """Returns the plan of the same seed, nodes and duration with all its faults and actors."""
    return draw_plan(plan.seed, plan.profile, nodes=plan.nodes, duration_s=plan.duration_s)


class _Shrinking:
    def __init__(self, failing: Verdict, attempts: int, run: Run) -> None:
        self._best = failing
        self._rules = {violation.rule for violation in failing.violations}
        self._left = attempts
        self._run = run

    def result(self) -> Verdict:
        if self._best.plan.points:  # a smaller cluster passes other points
            self._fewer_points()
        else:
            self._fewer_nodes()
        self._reduce([fault.index for fault in self._best.plan.faults], self._with_faults)
        self._reduce([actor.index for actor in self._best.plan.actors], self._with_actors)
        self._shorten()
        self._reduce([fault.index for fault in self._best.plan.faults], self._with_faults)
        self._fewer_points()
        return self._best

    def _with_faults(self, kept: list[int]) -> Plan:
        return self._best.plan.only(faults=frozenset(kept))

    def _with_actors(self, kept: list[int]) -> Plan:
        return self._best.plan.only(actors=frozenset(kept))

    def _fails(self, plan: Plan) -> bool:
        if self._left <= 0:
            return False
        self._left -= 1
        verdict = self._run(plan)
        if any(violation.rule in self._rules for violation in verdict.violations):
            self._best = verdict
            return True
        return False

    def _fewer_nodes(self) -> None:
        """Tries fewer nodes. Leaves out the same faults and actors as the best plan so far."""
        plan = self._best.plan
        original = whole(plan)
        faults = None if plan.faults == original.faults else frozenset(fault.index for fault in plan.faults)
        actors = None if plan.actors == original.actors else frozenset(actor.index for actor in plan.actors)
        for nodes in range(1, plan.nodes):
            smaller = draw_plan(plan.seed, plan.profile, nodes=nodes, duration_s=plan.duration_s)
            # The faults of a single machine have other indexes.
            if self._fails(smaller.only(faults if nodes > 1 else None, actors)):
                return

    def _fewer_points(self) -> None:
        """Leaves out each fault at a point without which the run still fails. A point with two faults may keep one
        fault."""
        singles = [(each.kind, each.nth, fault) for each in self._best.plan.points for fault in each.faults]

        def with_points(kept: list[int]) -> Plan:
            found: dict[tuple[str, int], tuple[str, ...]] = {}
            for kind, nth, fault in (singles[each] for each in kept):
                found[kind, nth] = (*found.get((kind, nth), ()), fault)
            points = tuple(PointFault(kind, nth, faults) for (kind, nth), faults in found.items())
            return replace(self._best.plan, points=points)

        self._reduce(list(range(len(singles))), with_points)

    def _reduce(self, items: list[int], plan_with: Callable[[list[int]], Plan]) -> None:
        """Leaves out items (faults or actors) without which the run still fails.

        First tries to leave out all of them at once, then groups of half that size, and so on.
        """
        size = len(items)
        while size >= 1 and items and self._left > 0:
            start = 0
            while start < len(items):
                kept = items[:start] + items[start + size :]
                if self._fails(plan_with(kept)):
                    items = kept
                else:
                    start += size
            size //= 2

    def _shorten(self) -> None:
        """Tries a shorter duration. In a shorter run, the actors drawn from the seed may have shorter pauses."""
        plan = self._best.plan
        last = max((fault.at + fault.lasts for fault in plan.faults), default=0.0)
        last = max(last, *(point.time for point, _ in self._best.points.happened), 0.0)
        faults = frozenset(fault.index for fault in plan.faults)
        actors = frozenset(actor.index for actor in plan.actors)
        for seconds in (round(last + 1.0, 1), round(last + AFTERMATH_S, 1), round(plan.duration_s / 2, 1)):
            if seconds >= plan.duration_s:
                continue
            shorter = whole(replace(plan, duration_s=seconds)).only(faults, actors)
            if self._fails(replace(shorter, points=plan.points)):
                return


def command(plan: Plan) -> str:
    """Returns the command line that repeats the run."""
    words = [f"penstock sim --seed {plan.seed} --profile {plan.profile} --seconds {plan.duration_s:g}"]
    if plan.nodes != 1:
        words.append(f"--nodes {plan.nodes}")
    original = whole(plan)
    if plan.faults != original.faults:
        words.append(f"--faults {_list([fault.index for fault in plan.faults])}")
    if plan.actors != original.actors:
        words.append(f"--actors {_list([actor.index for actor in plan.actors])}")
    words += [f"--at {shlex.quote(str(each))}" for each in plan.points]
    if plan.other_version:
        words.append(f"--other-version {shlex.quote(plan.other_version)}")
    if plan.profile == POINTS and not plan.points:
        words.append("--at none")
    return " ".join(words)


def _list(indexes: list[int]) -> str:
    return ",".join(map(str, indexes)) or "none"
