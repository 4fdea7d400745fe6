"""Makes a failing run smaller: fewer faults, fewer actors, less time, as long as the same rule is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.sim.plan import Plan
from penstock.sim.world import Verdict, run_plan

ATTEMPTS = 60
#: What comes after the last fault and may still matter.
AFTERMATH_S = 8.0

Run = Callable[[Plan], Verdict]


def shrink(failing: Verdict, *, attempts: int = ATTEMPTS, run: Run = run_plan) -> Verdict:
    """The smallest failing run found within so many attempts; `failing` itself if nothing can go."""
    return _Shrinking(failing, attempts, run).result()


class _Shrinking:
    def __init__(self, failing: Verdict, attempts: int, run: Run) -> None:
        self._best = failing
        self._rules = {violation.rule for violation in failing.violations}
        self._left = attempts
        self._run = run

    def result(self) -> Verdict:
        self._reduce([fault.index for fault in self._best.plan.faults], self._with_faults)
        self._reduce([actor.index for actor in self._best.plan.actors], self._with_actors)
        self._shorten()
        self._reduce([fault.index for fault in self._best.plan.faults], self._with_faults)
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

    def _reduce(self, items: list[int], plan_with: Callable[[list[int]], Plan]) -> None:
        """Leaves out ever smaller parts."""
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
        plan = self._best.plan
        last = max((fault.at + fault.lasts for fault in plan.faults), default=0.0)
        for seconds in (round(last + 1.0, 1), round(last + AFTERMATH_S, 1), round(plan.duration_s / 2, 1)):
            if seconds < self._best.plan.duration_s and self._fails(replace(self._best.plan, duration_s=seconds)):
                return


def command(plan: Plan, original: Plan) -> str:
    """The line that runs it again."""
    words = [f"penstock sim --seed {plan.seed} --profile {plan.profile} --seconds {plan.duration_s:g}"]
    if plan.nodes != 1:
        words.append(f"--nodes {plan.nodes}")
    if plan.faults != original.faults:
        words.append(f"--faults {_list([fault.index for fault in plan.faults])}")
    if plan.actors != original.actors:
        words.append(f"--actors {_list([actor.index for actor in plan.actors])}")
    return " ".join(words)


def _list(indexes: list[int]) -> str:
    return ",".join(map(str, indexes)) or "none"
