"""Counts deliveries, expired locks, failed writes and dead letters of a node's share partitions, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ShareFigures:
    """Holds the counters of this node's share partitions since the start of the node."""

    deliveries: int = 0
    expired: int = 0
    failed_writes: int = 0
    dead_letters: int = 0
    failed_dead_letters: int = 0
