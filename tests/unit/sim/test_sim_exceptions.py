"""Tests that an exception which no code retrieves is a violation, whichever task raises it."""

from __future__ import annotations

import asyncio

import pytest

from penstock.sim.plan.draw import draw_plan
from penstock.sim.run.simulation import Simulation


def test_task_exception_that_no_code_retrieves_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(tasks: list[asyncio.Task[None]]) -> None:
        raise ValueError("no code retrieves this exception")

    async def forget_a_task(self: Simulation) -> None:
        tasks: list[asyncio.Task[None]] = []
        tasks.append(asyncio.ensure_future(fail(tasks)))  # a cycle, which only the garbage collector ends
        await asyncio.sleep(0.1)

    monkeypatch.setattr(Simulation, "_verify", forget_a_task)
    verdict = Simulation(draw_plan(1, "calm", duration_s=0.5)).run()
    assert [violation.rule for violation in verdict.violations] == ["no exceptions"]
    assert "no code retrieves this exception" in str(verdict.violations[0])
