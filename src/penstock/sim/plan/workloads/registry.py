"""The workloads by the name of their profile."""

from __future__ import annotations

from collections.abc import Callable

from penstock.sim.plan.plan import Plan
from penstock.sim.plan.workloads.compaction import compaction

WORKLOADS: dict[str, Callable[[Plan], Plan]] = {
    "compaction": compaction,
}
