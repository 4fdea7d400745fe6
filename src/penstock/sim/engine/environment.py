"""Builds the environment of a run: virtual time, trace, network and machines. One seed determines all of them.

The simulation of a seed, a scenario script and `SimCluster` are each built on one `Environment`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

from penstock.metadata.image import MetadataImage
from penstock.sim.engine.clock import SimClock
from penstock.sim.engine.cluster_layout import ClusterLayout
from penstock.sim.engine.links import Conditions
from penstock.sim.engine.loop import ProcessLoop, Timeline, collected_by_hand
from penstock.sim.engine.machine import Machine
from penstock.sim.engine.network import Fabric, SimNetwork
from penstock.sim.engine.secured_listeners import client_login
from penstock.sim.engine.trace import Trace

T = TypeVar("T")

#: The clock error of a machine: milliseconds ahead, and how fast its clock runs.
ClockError = tuple[int, float]
EXACT: ClockError = (0, 1.0)


class Environment:
    def __init__(
        self,
        seed: int,
        layout: ClusterLayout,
        settings: Mapping[str, str],
        *,
        keep_trace: bool = False,
        network: Conditions | None = None,
        split: float | None = None,
        turn_cost_s: float = 0.0,
        clock_error: Callable[[int], ClockError] = lambda node_id: EXACT,
    ) -> None:
        self.seed = seed
        self.layout = layout
        #: The login of clients; None if the listeners demand none.
        self.login = client_login(settings)
        self.turn_cost_s = turn_cost_s
        self.timeline = Timeline(self.random("order"))
        self.trace = Trace(self.timeline, keep=keep_trace)
        self.fabric = Fabric(self.timeline, self.random("network"), self.trace)
        if network is not None:
            self.fabric.normal = network
        if split is not None:
            self.fabric.split = split
        self.clock = SimClock(self.timeline)
        self.machines = [self._machine(node_id, settings, clock_error(node_id)) for node_id in layout.nodes]

    def _machine(self, node_id: int, settings: Mapping[str, str], error: ClockError) -> Machine:
        clock = SimClock(self.timeline, offset_ms=error[0], rate=error[1])
        machine = Machine(node_id, self.fabric, self.trace, clock, str(self.seed), settings, self.layout)
        machine.turn_cost_s = self.turn_cost_s
        return machine

    def random(self, name: str) -> Random:
        """Returns a stream of random numbers for `name`. Draws from other streams don't change its numbers."""
        return Random(f"{self.seed}/{name}")  # noqa: S311

    def network(self, host: str, loop: ProcessLoop) -> SimNetwork:
        """Returns the network as a process on `host` sees it."""
        return SimNetwork(self.fabric, host, loop)

    @property
    def bootstrap(self) -> list[str]:
        """Returns the addresses of all machines that hold partitions."""
        return [machine.address for machine in self.machines if machine.holds_partitions]

    @property
    def names(self) -> list[str]:
        return [machine.name for machine in self.machines]

    def machine(self, name: str) -> Machine:
        return next(machine for machine in self.machines if machine.name == name)

    @property
    def newest_image(self) -> MetadataImage | None:
        """Returns the newest metadata that any serving node has."""
        return newest_image(self.machines)

    async def power_on(self) -> list[bool]:
        """Starts all machines and syncs their disks. Returns one value per machine: True if its node serves."""
        started = await asyncio.gather(*(machine.start() for machine in self.machines))
        for machine in self.machines:
            machine.volume.sync_all()
        return started

    @contextmanager
    def running(self) -> Iterator[None]:
        """Turns automatic garbage collection off while the `with` block runs.

        At the end of the block, kills all simulated processes that still run.
        """
        with collected_by_hand():
            try:
                yield
            finally:
                self.timeline.end()

    def run(self, main: Coroutine[Any, Any, T], loop: ProcessLoop, *, until: float) -> T:
        """Runs everything until `main` returns. Raises SimulationError if virtual time reaches `until` first."""
        with self.running():
            return self.timeline.run(main, loop, until=until)


def newest_image(machines: Sequence[Machine]) -> MetadataImage | None:
    """Returns the newest metadata that any serving node of these machines has."""
    images = [machine.image for machine in machines]
    return max((image for image in images if image is not None), key=lambda image: image.offset, default=None)
