"""Tests the limit of descriptions of groups that run at the same time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.http.rest import groups
from penstock.http.rest.service import DESCRIPTIONS


def test_only_a_few_groups_are_described_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[int] = []
    most = 0

    async def slow(service: Any, call: Any) -> dict[str, Any]:
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.pop()
        return {}

    async def scenario() -> None:
        service: Any = SimpleNamespace(describing=asyncio.Semaphore(DESCRIPTIONS))
        call: Any = None
        await asyncio.gather(*(groups.describe_group(service, call) for _ in range(10)))

    monkeypatch.setattr(groups, "_description", slow)
    asyncio.run(scenario())
    assert most == DESCRIPTIONS
