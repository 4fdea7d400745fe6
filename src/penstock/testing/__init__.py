"""Runs a broker inside your tests: `with penstock.testing.Broker() as broker:`, or a `Cluster`.

A pytest plugin has the fixtures `penstock` and `penstock_cluster`. A `Broker` is a whole node, as in production, with
its own event loop in a background thread. Its data is in memory unless you pass a directory. A `Cluster` has several
such nodes. A `SimCluster` runs your own asyncio code with simulated nodes, in virtual time. A `SimBridge` connects any
client to simulated nodes, in real time. Fault rules (`broker.faults.add(…)`) make chosen requests fail, wait, or lose
their reply or connection. pytest imports the plugin in every run, so this package imports the broker only on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.sim.run.cluster import SimCluster as SimCluster
    from penstock.testing.broker import Broker as Broker
    from penstock.testing.cluster import Cluster as Cluster
    from penstock.testing.sim_bridge import SimBridge as SimBridge

__all__ = ["Broker", "Cluster", "SimBridge", "SimCluster"]

_PLACES = {
    "Broker": "penstock.testing.broker",
    "Cluster": "penstock.testing.cluster",
    "SimBridge": "penstock.testing.sim_bridge",
    "SimCluster": "penstock.sim.run.cluster",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
