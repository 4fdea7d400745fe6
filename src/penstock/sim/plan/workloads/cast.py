"""Builds the actors (simulated clients) of a workload: each actor has an index, and parameters from its own random
stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from penstock.sim.plan.draw_actors import stream
from penstock.sim.plan.plan import ActorPlan, Plan

#: Index of the first actor of a workload, above the indexes of all actors that other profiles have.
FIRST_ACTOR = 301
#: Actors of a cluster pause longer than those of a single node.
CLUSTER_PACE = 2.0


class Cast:
    def __init__(self, plan: Plan, workload: str) -> None:
        self._plan = plan
        self._workload = workload
        self._actors: list[ActorPlan] = []
        self.random = self.stream("setup")

    def stream(self, name: str) -> Random:
        return stream(self._plan.seed, f"{self._workload}/{name}")

    def add(self, kind: str, draw: Callable[[Random, int], dict[str, Any]], count: int = 1) -> None:
        """Adds `count` actors of a kind; `draw` returns the parameters of the actor with the given index."""
        for _ in range(count):
            index = FIRST_ACTOR + len(self._actors)
            params = draw(self.stream(f"actor/{index}/{kind}"), index)
            if not self._plan.layout.single_node:
                params["pause_s"] *= CLUSTER_PACE
            self._actors.append(ActorPlan(index, kind, params))

    def plan(self, **changes: Any) -> Plan:
        """Returns the plan with these actors instead of its own, and with the fields in `changes` replaced."""
        return replace(self._plan, actors=tuple(self._actors), **changes)
