"""Maps the name of a profile to the function that makes its workload."""

from __future__ import annotations

from collections.abc import Callable

from penstock.sim.plan.plan import Plan
from penstock.sim.plan.workloads.compaction import compaction
from penstock.sim.plan.workloads.configs import configs
from penstock.sim.plan.workloads.directories import directories
from penstock.sim.plan.workloads.expiry import expiry
from penstock.sim.plan.workloads.groups import groups
from penstock.sim.plan.workloads.guard import guard
from penstock.sim.plan.workloads.liars import liars
from penstock.sim.plan.workloads.moves import moves
from penstock.sim.plan.workloads.reassign import reassign
from penstock.sim.plan.workloads.recreation import recreation
from penstock.sim.plan.workloads.share import share
from penstock.sim.plan.workloads.unclean import unclean
from penstock.sim.plan.workloads.wrap import wrap

WORKLOADS: dict[str, Callable[[Plan], Plan]] = {
    "compaction": compaction,
    "configs": configs,
    "directories": directories,
    "expiry": expiry,
    "groups": groups,
    "guard": guard,
    "liars": liars,
    "moves": moves,
    "reassign": reassign,
    "recreation": recreation,
    "share": share,
    "unclean": unclean,
    "wrap": wrap,
}
