"""Injects faults of clocks: all clocks of the cluster jump by days, or one machine's clock is days ahead or behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

from penstock.sim.checks.history import ClockJump
from penstock.sim.faults.target import FaultTarget
from penstock.sim.plan.plan import FaultPlan

DAY_MS = 86_400_000


class ClockFaults:
    def __init__(self, target: FaultTarget) -> None:
        self._target = target
        self.by_kind: dict[str, Callable[[FaultPlan, Random], Awaitable[None]]] = {
            "days pass": self._days_pass,
            "clock off by days": self._off_by_days,
        }

    async def _days_pass(self, fault: FaultPlan, random: Random) -> None:
        """Sets all clocks forward, including the clocks of clients."""
        target = self._target
        jump_ms = int(random.choice((0.1, 0.3, 1.1, 2.2, 8)) * DAY_MS)
        target.history.clock_jumps.append(ClockJump(target.timeline.now, jump_ms, everywhere=True))
        for machine in target.machines:
            machine.clock.jump(jump_ms)
        target.environment.clock.jump(jump_ms)
        target.note(fault, f"{jump_ms / DAY_MS:g} days pass")

    async def _off_by_days(self, fault: FaultPlan, random: Random) -> None:
        target = self._target
        machine = random.choice(target.machines)
        jump_ms = int(random.choice((-2.2, -0.3, 0.3, 1.1, 3.3)) * DAY_MS)
        target.history.clock_jumps.append(ClockJump(target.timeline.now, jump_ms, everywhere=False))
        machine.clock.jump(jump_ms)
        target.note(fault, f"the clock of {machine.name} jumps by {jump_ms / DAY_MS:+g} days")
