"""A simulated cluster for anybody's asyncio code: virtual time, machines that die on request, wires that can be cut.

    def test_orders_survive_a_power_loss() -> None:
        async def app(cluster: SimCluster) -> None:
            async with cluster.client() as client:
                ...
            cluster.machine().lose_power(Severity.EVERYTHING)
            await cluster.machine().start()
            ...

        SimCluster(seed=1).run(app)

The code runs in a process of its own on the host `app`. An hour of sleep takes no time, and the same seed gives the
same run. `faults` are the broker's own rules, by API, topic, partition and count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import TypeVar

from penstock.broker.faults import Faults
from penstock.check import check
from penstock.client.client import AsyncClient
from penstock.client.connection import ConnectionSettings
from penstock.client.retry import Retry
from penstock.sim.clock import SimClock
from penstock.sim.loop import Timeline, collected_by_hand
from penstock.sim.machine import Machine
from penstock.sim.network import Fabric, SimNetwork
from penstock.sim.trace import Trace

T = TypeVar("T")

APP = "app"
#: A week: code that waits longer for something waits for ever.
LONGEST_RUN_S = 7 * 86_400.0


class SimCluster:
    def __init__(self, *, seed: int = 0, settings: Mapping[str, str] | None = None, keep_trace: bool = False) -> None:
        self.seed = seed
        self.timeline = Timeline(Random(f"{seed}/order"))  # noqa: S311
        self.trace = Trace(self.timeline, keep=keep_trace)
        self.fabric = Fabric(self.timeline, Random(f"{seed}/network"), self.trace)  # noqa: S311
        self.clock = SimClock(self.timeline)
        self.machines = [
            Machine(1, self.fabric, self.trace, SimClock(self.timeline), str(seed), settings or {}),
        ]
        self._app = self.timeline.process(APP)
        self._clients = 0

    def run(self, app: Callable[[SimCluster], Awaitable[T]]) -> T:
        """Starts the machines, runs the code to its end, and lets everything go. Once for each cluster."""

        async def main() -> T:
            for machine in self.machines:
                check(await machine.start(), f"{machine.name} starts on an empty disk")
                machine.platter.sync_all()
            return await app(self)

        with collected_by_hand():
            try:
                return self.timeline.run(main(), self._app, until=LONGEST_RUN_S)
            finally:
                self.timeline.end()

    @property
    def now_s(self) -> float:
        """Seconds of virtual time since the cluster was made."""
        return self.timeline.now

    @property
    def bootstrap(self) -> str:
        return ",".join(machine.address for machine in self.machines)

    @property
    def network(self) -> SimNetwork:
        """For clients of one's own making; they live on the host `app`."""
        return SimNetwork(self.fabric, APP, self._app)

    def client(self, settings: ConnectionSettings | None = None, retry: Retry | None = None) -> AsyncClient:
        self._clients += 1
        random = Random(f"{self.seed}/client/{self._clients}")  # noqa: S311
        return AsyncClient(self.bootstrap, settings=settings, retry=retry, random=random, network=self.network)

    def machine(self, node_id: int = 1) -> Machine:
        return next(machine for machine in self.machines if machine.node_id == node_id)

    def faults(self, node_id: int = 1) -> Faults:
        """Rules for the requests of the node that runs there now; a restart forgets them."""
        node = self.machine(node_id).node
        check(node is not None, "faults are rules of a node that runs")
        assert node is not None
        return node.broker.faults

    def cut(self, node_id: int = 1, *, towards: str = "both") -> None:
        """The wire between the app and a machine: `towards` is "machine", "app" or "both"."""
        there, back = self.fabric.between(APP, self.machine(node_id).name)
        there.cut = there.cut or towards in ("machine", "both")
        back.cut = back.cut or towards in ("app", "both")

    def mend(self) -> None:
        self.fabric.mend_all()
