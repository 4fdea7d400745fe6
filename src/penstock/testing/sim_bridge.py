"""Connects real clients to a simulated cluster: `with penstock.testing.SimBridge(seed=7, profile="crash") as c:`."""

from __future__ import annotations

from types import TracebackType

from penstock.sim.plan.draw import draw_plan
from penstock.sim.run.bridge import BridgedCluster
from penstock.testing.loop_thread import LoopThread

START_LIMIT_S = 120.0


class SimBridge:
    """Runs the simulated nodes and faults of a seed in a background thread, in real time, on loopback sockets."""

    def __init__(self, seed: int = 0, profile: str = "calm", *, nodes: int = 3, seconds: float = 20.0) -> None:
        self._cluster = BridgedCluster(draw_plan(seed, profile, nodes=nodes, duration_s=seconds))
        self._thread: LoopThread | None = None

    @property
    def bootstrap_servers(self) -> str:
        return self._cluster.bootstrap_servers

    @property
    def violations(self) -> list[str]:
        """Returns the rules of the simulator that the nodes have broken so far.

        Leaves out rules that need the internal state of clients.
        """
        return [str(violation) for violation in self._cluster.violations]

    @property
    def story(self) -> list[str]:
        return [str(line) for line in self._cluster.story]

    def wait_until_healed(self, limit_s: float) -> bool:
        """Waits until the simulator injects no more faults and all nodes run again.

        Returns False if this takes longer than `limit_s` seconds.
        """
        return self._cluster.healed.wait(limit_s)

    def __enter__(self) -> SimBridge:
        self._thread = LoopThread("penstock-sim")
        self._thread.run(self._cluster.start(), START_LIMIT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.run(self._cluster.close(), START_LIMIT_S)
            self._thread.end()
