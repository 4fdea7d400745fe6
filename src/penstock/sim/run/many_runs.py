"""Prepares a worker process that makes many runs, one after the other."""

from __future__ import annotations

from penstock.sim.engine.loop import Heap
from penstock.sim.engine.node_code import this_version


def prepare() -> None:
    """Loads the node's code, and excludes it from the garbage collections of all runs."""
    this_version()
    Heap.freeze()
