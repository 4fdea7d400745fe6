"""Chooses the simulated runs that try to kill a mutant, and makes them.

A kind of run is a profile and a number of machines. A run can kill a mutant only if it runs the mutated function, so a
mutant gets only the kinds of runs that have run its function without a mutant; all kinds if none has.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import count, product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.sim.plan.plan import Plan

POINTS = "points"


class Kind(NamedTuple):
    profile: str
    nodes: int


class Run(NamedTuple):
    """Describes one simulated run of the rotation."""

    profile: str
    seed: int
    nodes: int
    seconds: float
    at: tuple[str, ...] = ()
    """Faults at points; "none" stands for a run of the profile `points` without them."""

    @property
    def kind(self) -> Kind:
        return Kind(self.profile, self.nodes)

    @property
    def plan(self) -> Plan:
        from penstock.sim.plan.draw import draw_plan
        from penstock.sim.plan.points import parse_point_fault

        points = tuple(parse_point_fault(each) for each in self.at if each != "none")
        return replace(draw_plan(self.seed, self.profile, nodes=self.nodes, duration_s=self.seconds), points=points)

    @property
    def command(self) -> str:
        words = {"seed": self.seed, "profile": self.profile, "nodes": self.nodes, "seconds": f"{self.seconds:g}"}
        options = [f"--{name} {value}" for name, value in words.items()]
        return " ".join(["penstock sim", *options, *(f"--at {shlex.quote(each)}" for each in self.at)])

    @classmethod
    def of(cls, command: str) -> Run:
        """Parses a command line, and returns the run that it describes."""
        words = shlex.split(command)[2:]
        options = list(zip(words[::2], words[1::2]))
        given = dict(options)
        at = tuple(value for name, value in options if name == "--at")
        return cls(given["--profile"], int(given["--seed"]), int(given["--nodes"]), float(given["--seconds"]), at)


#: Package → the profiles that use it most. They come first in the rotation.
FIRST_PROFILES: dict[str, tuple[str, ...]] = {
    "raft": ("elections", "points", "power", "network"),
    "replication": ("hostile", "late", "unclean", "network"),
    "log": ("compaction", "moves", "power", "expiry", "directories"),
    "transactions": ("recreation", "wrap", "compaction", "crash"),
    "groups": ("groups", "recreation", "expiry", "share"),
    "controller": ("reassign", "configs", "recreation", "unclean"),
    "replicas": ("hostile", "reassign", "moves", "directories"),
    "controlplane": ("elections", "crash", "points", "power"),
    "coordinators": ("groups", "share", "crash", "expiry"),
}


def rotation(first_seed: int, package: str = "", kinds: Collection[Kind] = ()) -> Iterator[Run]:
    """Yields simulated runs without end: with each seed, one run of each of `kinds`; of all kinds by default.

    All kinds are every profile on three machines and on one machine; the profile `points` runs on three machines only.
    The profiles that use `package` most come first.
    """
    from penstock.sim.plan.profiles import PROFILES

    profiles = dict.fromkeys((*FIRST_PROFILES.get(package, ()), *PROFILES))
    every = [Kind(*each) for each in product(profiles, (3, 1)) if each != (POINTS, 1)]
    chosen = [kind for kind in every if kind in kinds] or every
    for seed in count(first_seed):
        for profile, nodes in chosen:
            yield Run(profile, seed, nodes, 20.0 if nodes > 1 else 15.0)


def simulate(run: Run, begin: Callable[[Run], None]) -> Iterator[tuple[Run, str]]:
    """Yields the run and the first rule that it broke; an empty text if it broke no rule.

    For the profile `points`, yields several runs: first the run that records the points, then runs with faults at some
    of these points.
    """
    from penstock.sim.plan.coverage import Coverage
    from penstock.sim.run.point_runs import point_runs
    from penstock.sim.run.simulation import Verdict, run_plan

    def broken(verdict: Verdict) -> str:
        return str(verdict.violations[0]).splitlines()[0] if verdict.violations else ""

    def with_points(plan: Plan) -> Run:
        return run._replace(at=tuple(map(str, plan.points)) or ("none",))

    def begun(plan: Plan, *, record_points: bool = False) -> Verdict:
        begin(with_points(plan))
        return run_plan(plan, record_points=record_points)

    if run.profile == POINTS and not run.at:
        for verdict in point_runs(run.plan, Coverage(), run=begun):
            yield with_points(verdict.plan), broken(verdict)
    else:
        begin(run)
        yield run, broken(run_plan(run.plan))
