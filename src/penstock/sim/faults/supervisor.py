"""Starts each machine again after the down time of its fault, and repeats a start that fails."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine, Sequence
from typing import Any

from penstock.sim.engine.loop import Timeline
from penstock.sim.engine.machine import Machine, State

SUPERVISE_S = 0.2
#: A node whose start failed is started again after this.
RETRY_START_S = 2.0
#: Incarnations of a machine between two collections of garbage.
COLLECT_EVERY = 10


class Supervisor:
    def __init__(self, timeline: Timeline, machines: Sequence[Machine]) -> None:
        self._timeline = timeline
        self._restart_at: dict[Machine, float] = {}
        #: Set when a machine stops serving: until then its supervisor has nothing to do.
        self._not_serving = {machine: asyncio.Event() for machine in machines}
        #: The work of operators after faults. It continues when the time of faults is over.
        self.operations: list[asyncio.Task[None]] = []

    def restart(self, machine: Machine, after_s: float) -> None:
        """Plans the restart of a stopped machine in `after_s` seconds. Replaces an earlier plan."""
        self._restart_at[machine] = self._timeline.now + after_s

    def restart_now(self, machine: Machine) -> None:
        self._restart_at[machine] = 0.0

    def state_changed(self, machine: Machine) -> None:
        if not machine.serving:
            self._not_serving[machine].set()

    def operate(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts `work`, an operator's reaction to a fault, as a task. Does not wait for its end."""
        self.operations.append(asyncio.ensure_future(work))

    async def supervise(self, machine: Machine) -> None:
        """Restarts the machine whenever it is down; runs until it is cancelled."""
        while True:
            if machine.state in (State.DOWN, State.OFF) and self._timeline.now >= self._restart_at.get(machine, 0):
                self._restart_at[machine] = 0.0
                if machine.incarnation % COLLECT_EVERY == 0:
                    gc.collect()
                if not await machine.start():
                    self.restart(machine, max(RETRY_START_S, self._restart_at[machine] - self._timeline.now))
            if machine.serving:
                self._not_serving[machine].clear()
                await self._not_serving[machine].wait()
            await asyncio.sleep(SUPERVISE_S)
