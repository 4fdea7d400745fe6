"""Tests what a node does with the findings of its own checks: which are events at once, and which only suspicions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.controlplane.suspicions import Suspicions
from penstock.broker.events import NodeEvent
from penstock.broker.events.kinds import GuardFinding
from penstock.broker.guard.guard import Guard
from penstock.guard.findings import Finding, Kind
from penstock.metadata.configs.settings import Settings

KEY = (bytes(range(16)), 0)


@pytest.mark.parametrize(("kind", "events"), [(Kind.CONTENT, 1), (Kind.TWO_LEADERS, 1), (Kind.EPOCH, 0)])
def test_node_emits_an_event_for_its_own_finding_unless_only_the_controller_can_confirm_the_finding(
    kind: Kind, events: int
) -> None:
    async def scenario() -> None:
        emitted: list[NodeEvent] = []
        heartbeats: list[int] = []
        unused: Any = SimpleNamespace(environment=SimpleNamespace(disk=SimpleNamespace(run=None)))
        guard = Guard(
            1,
            Settings({"node.id": "1"}),
            unused,
            logs=unused,
            partitions=unused,
            peers=unused,
            metadata=unused,
            controller=unused,
            suspicions=Suspicions(lambda: 0.0),
            beat_now=lambda: heartbeats.append(1),
            observer=emitted.append,
        )
        guard._claimed(KEY, Finding(kind, 2, "t-0", 7, "evidence"))
        assert [type(each) for each in emitted] == [GuardFinding] * events
        assert [(each.node_id, each.offset) for each in guard.suspicions.due()] == [(2, 7)]
        assert heartbeats == [1]

    asyncio.run(scenario())
