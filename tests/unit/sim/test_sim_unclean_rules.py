"""Tests the rules for unclean elections: only records that the new leader lacked may be lost."""

import pytest

from penstock.sim.checks.history import FinalView, History, Outcome, Read, UncleanElection, Write
from penstock.sim.checks.history_rules import judge
from penstock.sim.plan.plan import Plan, TopicPlan

P = ("t", 0)
PLAN = Plan(1, "unclean", 1, 10, {}, (TopicPlan("t", 1, {}, fsync=False),), (), ())


@pytest.mark.parametrize(
    ("first", "elected", "forgiven"),
    [(3, 9.0, True), (5, 9.0, True), (6, 9.0, False), (3, 0.5, False)],
    ids=["lacked", "lacked from here on", "was there", "elected before"],
)
def test_unclean_election_may_lose_only_records_that_the_new_leader_lacked(
    first: int, elected: float, forgiven: bool
) -> None:
    write = Write("w", 5, P, b"w:5:", 1.0, -1, True, None, None, 1.1, Outcome.DONE, 5)
    read = Read("r", P, 5, b"w:5:", True, 2.0, 2.1)
    history = History(writes=[write], reads=[read], unclean=[UncleanElection(P, elected, first)])
    found = FinalView({P: {}}, {P: {}}, {P: 0}, {P: 0}, {"t": 1})
    broken = {violation.rule for violation in judge(PLAN, history, found)}
    assert ("nothing acknowledged is lost" not in broken) == forgiven
    assert ("committed reads stay" not in broken) == (forgiven or (elected > 2.0 and first <= 5))
