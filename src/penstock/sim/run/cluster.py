"""Offers a simulated cluster to a user's asyncio code: virtual time, machines to kill, links to cut.

    def test_orders_survive_a_power_loss() -> None:
        async def app(cluster: SimCluster) -> None:
            async with cluster.client() as client:
                ...
            cluster.machine().lose_power(Severity.EVERYTHING)
            await cluster.machine().start()
            ...

        SimCluster(seed=1).run(app)

`SimCluster(nodes=3)` has machines n1, n2 and n3; every partition has three replicas, two of which must be in sync. The
code runs as a separate simulated process on the host `app`. An hour of sleep takes no real time, and the same seed
gives the same run. `faults()` returns the fault rules of a broker; each rule names an API, a topic, a partition and a
count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import permutations
from typing import TypeVar

from penstock.broker.requests.fault_rules import Faults
from penstock.check import check
from penstock.client.client import AsyncClient
from penstock.client.connection import ConnectionSettings
from penstock.client.retry import Retry
from penstock.node.arguments import Value, properties
from penstock.sim.engine.cluster_layout import simple_layout
from penstock.sim.engine.environment import Environment
from penstock.sim.engine.machine import Machine
from penstock.sim.engine.network import SimNetwork
from penstock.sim.faults.cluster_faults import isolated

T = TypeVar("T")

APP = "app"
#: A week of virtual time: code that waits longer is taken to hang.
LONGEST_RUN_S = 7 * 86_400.0
MOST_NODES = 7


class SimCluster:
    def __init__(
        self,
        *,
        nodes: int = 1,
        seed: int = 0,
        settings: Mapping[str, Value] | None = None,
        keep_trace: bool = False,
    ) -> None:
        check(1 <= nodes <= MOST_NODES, f"a simulated cluster has 1 to {MOST_NODES} nodes")
        self.environment = Environment(seed, simple_layout(nodes), properties(settings), keep_trace=keep_trace)
        self.timeline = self.environment.timeline
        self.trace = self.environment.trace
        self.fabric = self.environment.fabric
        self.clock = self.environment.clock
        self.machines = self.environment.machines
        self._app = self.timeline.process(APP)
        self._clients = 0

    def run(self, app: Callable[[SimCluster], Awaitable[T]]) -> T:
        """Starts the machines, runs the code to its end, stops everything, and returns the code's result.

        Call it once per cluster.
        """

        async def main() -> T:
            for machine, serves in zip(self.machines, await self.environment.power_on()):
                check(serves, f"{machine.name} starts on an empty disk")
            return await app(self)

        return self.environment.run(main(), self._app, until=LONGEST_RUN_S)

    @property
    def now_s(self) -> float:
        """Returns the seconds of virtual time since the cluster was built."""
        return self.timeline.now

    @property
    def bootstrap(self) -> str:
        return ",".join(machine.address for machine in self.machines)

    @property
    def network(self) -> SimNetwork:
        """Returns the network of the host `app`, for clients other than `client()`."""
        return self.environment.network(APP, self._app)

    def client(self, settings: ConnectionSettings | None = None, retry: Retry | None = None) -> AsyncClient:
        self._clients += 1
        random = self.environment.random(f"client/{self._clients}")
        return AsyncClient(self.bootstrap, settings=settings, retry=retry, random=random, network=self.network)

    def machine(self, node_id: int = 1) -> Machine:
        return self.environment.machine(f"n{node_id}")

    def faults(self, node_id: int = 1) -> Faults:
        """Returns the fault rules of the running node. A restart of the node drops these rules."""
        node = self.machine(node_id).node
        check(node is not None, "fault rules need a running node: start the machine first")
        assert node is not None
        return node.broker.faults

    def cut(self, node_id: int = 1, *, towards: str = "both") -> None:
        """Cuts the link between the app and a machine: `towards` is "machine", "app" or "both"."""
        there, back = self.fabric.between(APP, self.machine(node_id).name)
        there.cut = there.cut or towards in ("machine", "both")
        back.cut = back.cut or towards in ("app", "both")

    def leader(self, topic: str, partition: int = 0) -> Machine | None:
        """Returns the machine that leads a partition in the newest metadata; None without a leader."""
        image = self.environment.newest_image
        found = image.partition(topic, partition) if image is not None else None
        if found is None or found.leader < 0:
            return None
        return self.machine(found.leader)

    def isolate(self, node_id: int, *, direction: str = "both") -> None:
        """Cuts a machine off from the other machines; clients still reach it. `direction` is "in", "out" or "both"."""
        for pair in isolated(self.machine(node_id).name, self.environment.names, direction):
            self.fabric.link(*pair).cut = True

    def split(self, *groups: Sequence[int]) -> None:
        """Splits the machines: each reaches only machines of its group. The app reaches every machine.

        Machines that no group names form one more group. Another call replaces the groups.
        """
        named = [node for group in groups for node in group]
        check(len(named) == len(set(named)), "a machine can be in one group only")
        self.heal()
        member_of = {self.machine(node).name: index for index, group in enumerate(groups) for node in group}
        for one, other in permutations(self.environment.names, 2):
            if member_of.get(one) != member_of.get(other):
                self.fabric.link(one, other).cut = True

    def heal(self) -> None:
        """Mends all links."""
        self.fabric.mend_all()
