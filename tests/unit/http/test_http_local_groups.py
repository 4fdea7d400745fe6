"""Tests how the committed offsets of a node's groups are read for metrics and lag histories."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from penstock.broker.coordinators.runtime import Phase
from penstock.http.local_groups import Committed, committed_here


class Offsets:
    """Holds the committed offsets of groups, as a group coordinator does."""

    def __init__(self, committed: dict[str, dict[tuple[str, int], int]]) -> None:
        self.committed = committed

    def get(self, group: str, partition: tuple[str, int]) -> Any:
        return SimpleNamespace(offset=self.committed[group][partition])


def test_negative_committed_offsets_are_left_out_of_lag_metrics() -> None:
    offsets = Offsets({"g": {("t", 0): -(2**63), ("t", 1): 0}, "h": {("t", 0): -1}})
    coordinator = SimpleNamespace(phase=Phase.ACTIVE, machine=SimpleNamespace(offsets=offsets))
    broker: Any = SimpleNamespace(groups=SimpleNamespace(coordinators=lambda: [coordinator]))

    async def read() -> list[Committed]:
        return [each async for each in committed_here(broker)]

    assert asyncio.run(read()) == [Committed("g", ("t", 1), 0)]
