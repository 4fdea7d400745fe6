"""Tests the rules for members of groups: each rule finds the violation that it forbids, and accepts allowed cases."""

from penstock.sim.checks.history import FinalView, History, OffsetCommit, Outcome, Ownership, Read, StoredRecord
from penstock.sim.checks.history_rules import judge
from penstock.sim.plan.plan import ActorPlan, Plan, TopicPlan

P = ("t", 0)
MEMBER = ActorPlan(301, "classic member", {"group": "g"})
PLAN = Plan(1, "groups", 1, 10, {}, (TopicPlan("t", 1, {}, fsync=False),), (MEMBER,), ())


def rules(history: History, found: FinalView) -> set[str]:
    return {violation.rule for violation in judge(PLAN, history, found)}


def committed(offset: int, at: float, member: str = "a", outcome: Outcome = Outcome.DONE) -> OffsetCommit:
    return OffsetCommit("g", P, offset, at, at + 0.1, outcome, member=member)


def test_rule_finds_a_commit_made_while_another_member_owned_the_partition() -> None:
    owned = Ownership("g", "b", (P,), 2.0, 5.0)
    for commit, broken in (
        (committed(1, 3.0), True),
        (committed(1, 3.0, member="b"), False),
        (committed(1, 3.0, outcome=Outcome.REFUSED), False),
        (committed(1, 1.95), False),
        (committed(1, 4.95), False),
    ):
        history = History(commits=[commit], ownerships=[owned])
        assert ("only owners commit" in rules(history, FinalView())) == broken


def test_rule_finds_a_record_below_the_committed_offset_that_no_member_has_read() -> None:
    found = FinalView(records={P: {}}, committed={P: {0: StoredRecord(b"a", 0), 1: StoredRecord(b"b", 0)}})
    found.group_offsets["g", P] = 1
    read = Read("class301#2", P, 0, b"a", True, 1.0, 1.1)
    assert "groups read what they commit" not in rules(History(reads=[read]), found)
    assert "groups read what they commit" in rules(History(), found)
