"""Tests that the guard finds damaged and forged records and false leaders in simulated clusters, and accuses no other
node."""

from dataclasses import replace

import pytest

from penstock.broker.events.kinds import GuardFinding, NodeQuarantined, ReplicaRefilled
from penstock.sim.checks.guard_rules import GuardRules
from penstock.sim.plan.draw import draw_plan
from penstock.sim.plan.plan import FaultPlan
from penstock.sim.plan.profiles import GUARDED
from penstock.sim.run.simulation import run_plan


@pytest.mark.parametrize("kind", GUARDED)
def test_guard_of_a_cluster_detects_every_kind_of_injected_fault(kind: str) -> None:
    plan = draw_plan(1, "guard", nodes=3, duration_s=20)
    # A fault that meets no fit machine or batch does nothing, so each run has several.
    faults = tuple(FaultPlan(number, kind, 2.0 + number, 1.0, {"draw": number / 10}) for number in range(1, 6))
    verdict = run_plan(replace(plan, faults=faults))
    assert [str(each) for each in verdict.violations] == []
    told = [str(line) for line in verdict.story]
    done = "is in quarantine" if kind == "lying node" else "are refilled from"
    assert any(done in line for line in told), told


class Rules(GuardRules):
    """Collects the names of broken rules."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        super().__init__([], lambda: 5.0, lambda who, what: None, lambda rule, what: self.broken.append(rule))


def finding(accused: int) -> GuardFinding:
    return GuardFinding("different content", accused, "t-0", 3, "evidence", False)


def test_simulator_reports_a_broken_rule_if_the_guard_accuses_an_honest_node() -> None:
    rules = Rules()
    rules.wrong.add(2)
    rules.node_event("n1", finding(2))
    rules.node_event("n1", finding(-1))
    rules.node_event("n1", NodeQuarantined(2, "lies"))
    assert rules.broken == []
    rules.node_event("n1", finding(3))
    rules.node_event("n1", finding(3))
    assert rules.broken == ["honest nodes are not accused"]


def test_guard_rules_look_up_findings_and_refills_by_time_and_node_and_partition() -> None:
    rules = Rules()
    rules.wrong.add(2)
    rules.node_event("n1", finding(2))
    rules.node_event("n2", ReplicaRefilled("t-0", 0, 9, (1, 3)))
    assert rules.found(5.0, 2, "t-0")
    assert not rules.found(5.1, 2, "t-0")
    assert not rules.found(5.0, 2, "t-1")
    assert rules.refilled(5.0, "n2", "t-0")
    assert not rules.refilled(5.0, "n1", "t-0")
