"""Runs a rolling upgrade while the workload and the faults continue.

All machines begin with another version of the code, and get this version one after the other.
"""

from __future__ import annotations

import asyncio

from penstock.sim.engine.machine import Machine
from penstock.sim.engine.node_code import NodeCode
from penstock.sim.faults.target import FaultTarget

#: A node that was stopped for its upgrade is started after this time.
INSTALL_S = 0.5
#: Share of the upgrades before which the old process is killed instead of stopped.
KILLED = 0.2


class RollingUpgrade:
    def __init__(self, target: FaultTarget, code: NodeCode) -> None:
        self._target = target
        self._code = code
        self._random = target.environment.random("upgrades")

    async def run(self) -> None:
        """Upgrades the machines in a random order, spread evenly over the time in which faults are injected."""
        target, random = self._target, self._random
        machines = random.sample(target.machines, len(target.machines))
        pause = target.plan.duration_s / (len(machines) + 1)
        for machine in machines:
            await asyncio.sleep(pause)
            await self._upgrade(machine)

    async def _upgrade(self, machine: Machine) -> None:
        target = self._target
        target.story.add(machine.name, "is upgraded")
        if self._random.random() < KILLED:
            machine.kill()
        elif not await asyncio.shield(asyncio.ensure_future(machine.stop())):
            machine.kill()  # it does not serve: a start or a stop under way is cut short
        machine.code = self._code
        target.restart(machine, INSTALL_S)
