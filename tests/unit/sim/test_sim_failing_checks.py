"""Tests that a check which fails itself is reported: otherwise the rest of the run would pass without being checked."""

import pytest

from penstock.sim.checks.quorum_logs import QuorumLogs
from penstock.sim.plan.draw import draw_plan
from penstock.sim.run.simulation import run_plan

pytestmark = pytest.mark.programs


def test_check_that_raises_while_nodes_run_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(logs: QuorumLogs) -> None:
        raise ValueError("the check has a bug")

    monkeypatch.setattr(QuorumLogs, "look", look)
    verdict = run_plan(draw_plan(1, "calm", nodes=3, duration_s=2))
    assert "the check has a bug" in str(verdict.violations)
