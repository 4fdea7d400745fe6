"""A broker inside your tests: `with penstock.testing.Broker() as broker:`, or a `Cluster`, and a pytest plugin with
the fixtures `penstock` and `penstock_cluster`.

A `Broker` is a whole node, the one production runs, on its own event loop in a background thread, on memory unless
given a directory; a `Cluster` is several of them. Fault rules (`broker.faults.add(…)`) make chosen requests fail, wait,
lose their reply or their connection. pytest imports the plugin in every run, so nothing here imports the broker early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.broker import Broker as Broker
    from penstock.testing.cluster import Cluster as Cluster

__all__ = ["Broker", "Cluster"]


def __getattr__(name: str) -> object:
    if name == "Cluster":
        from penstock.testing.cluster import Cluster

        return Cluster
    if name == "Broker":
        from penstock.testing.broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
