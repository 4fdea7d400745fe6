"""Defines the workload `liars`: the usual actors, in a cluster to which a foreign host sends forged messages.

In half of the seeds the listeners demand a login.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.sim.engine.secured_listeners import SECURED
from penstock.sim.plan.draw_actors import stream
from penstock.sim.plan.plan import Plan


def liars(plan: Plan) -> Plan:
    secured = stream(plan.seed, "liars").random() < 0.5
    return replace(plan, settings={**plan.settings, **SECURED}) if secured else plan
