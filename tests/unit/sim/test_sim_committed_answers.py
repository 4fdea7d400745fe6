"""Tests the check that coordinators answer only from committed state, with the real coordinator of a group."""

from __future__ import annotations

import pytest

from penstock.broker.coordinators.runtime import Coordinator
from penstock.client.admin import Admin, NewTopic
from penstock.client.group_admin import GroupAdmin
from penstock.protocol.errors import ErrorCode
from penstock.sim.checks.committed_answers import RULE, CommittedAnswers
from penstock.sim.checks.taps import tapped
from penstock.sim.run.cluster import SimCluster

pytestmark = pytest.mark.programs


def problems(*, is_waiting: bool, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Commits an offset on three nodes. With `is_waiting` False, the coordinator settles decisions at once."""

    async def app(cluster: SimCluster) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        check = CommittedAnswers(lambda *violation: found.append(violation))
        if not is_waiting:
            take = Coordinator._take

            def settle_first(self, turn, result, future):  # type: ignore[no-untyped-def]
                take(self, turn, result, future)
                self._settle(turn, ErrorCode.NONE)

            monkeypatch.setattr(Coordinator, "_take", settle_first)
        with tapped(check.taps()):
            async with cluster.client() as client:
                await Admin(client).create_topics([NewTopic("t", 1, 3)])
                await GroupAdmin(client).commit("g", {("t", 0): 1})
        return found

    return SimCluster(nodes=3, seed=2).run(app)


def test_coordinator_that_waits_for_commits_breaks_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(is_waiting=True, monkeypatch=monkeypatch) == []


def test_rule_finds_a_coordinator_that_answers_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    [(rule, what)] = problems(is_waiting=False, monkeypatch=monkeypatch)
    assert rule == RULE
    assert "Partition(__consumer_offsets-" in what
    assert "its high watermark is 0" in what
