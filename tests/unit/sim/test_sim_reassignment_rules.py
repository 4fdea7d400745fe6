"""Tests the rule for reassignments: it finds a partition with other replicas than requested, and ignores requests with
an unknown outcome."""

import pytest

from penstock.sim.checks.history import FinalView, History, Outcome, Reassignment
from penstock.sim.checks.reassignment_rules import moves_end_as_requested
from penstock.sim.plan.plan import Plan

P = ("t", 0)
PLAN = Plan(1, "reassign", 1, 10, {}, (), (), ())


def moved(*replicas: int, at: float = 1.0, outcome: Outcome = Outcome.DONE, ended: float = 1.1) -> Reassignment:
    return Reassignment(P, replicas or None, at, outcome, ended)


@pytest.mark.parametrize(
    ("requests", "found"),
    [
        ([moved(1, 2)], True),
        ([moved(2, 3)], False),
        ([moved(1, 2), moved(2, 3, at=2.0, ended=2.1)], False),
        ([moved(2, 3), moved(1, 2, at=2.0, ended=2.1)], True),
        ([moved(1, 2), moved(at=2.0, ended=2.1)], False),
        ([moved(1, 2, outcome=Outcome.UNKNOWN)], False),
        ([moved(2, 3, ended=5.0), moved(1, 2, at=2.0, ended=2.1)], False),
    ],
    ids=["elsewhere", "there", "the last counts", "the last is not there", "cancelled", "no answer", "at once"],
)
def test_rule_finds_a_partition_without_the_replicas_of_its_last_reassignment(
    requests: list[Reassignment], found: bool
) -> None:
    history, view = History(reassignments=requests), FinalView(replicas={P: (2, 3)})
    assert bool(list(moves_end_as_requested(PLAN, history, view))) == found
