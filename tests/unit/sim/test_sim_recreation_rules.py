"""Tests the rules for recreated topics: they find a deleted record that comes back, and ignore other losses."""

from dataclasses import replace

from penstock.sim.checks.history import FinalView, History, Outcome, StoredRecord, TopicChange, Write
from penstock.sim.checks.history_rules import judge
from penstock.sim.engine.cluster_layout import simple_layout
from penstock.sim.plan.plan import Plan, TopicPlan

P = ("t", 0)
PLAN = Plan(1, "recreation", 1, 10, {}, (TopicPlan("t", 1, {}, fsync=False, recreated=True),), (), ())
MADE_AGAIN = [TopicChange("t", 0, 5.0, Outcome.DONE, 5.1), TopicChange("t", 1, 6.0, Outcome.DONE, 6.1)]


def wrote(offset: int, at: float) -> Write:
    return Write("w", offset, P, b"w:%d:" % offset, at, -1, True, None, None, at + 0.1, Outcome.DONE, offset)


def view(*offsets: int) -> FinalView:
    records = {offset: StoredRecord(b"w:%d:" % offset, 0) for offset in offsets}
    return FinalView({P: records}, {P: dict(records)}, {P: 0}, {P: 10}, {"t": 1})


def rules(plan: Plan, history: History, found: FinalView) -> list[str]:
    return sorted({violation.rule for violation in judge(plan, history, found)})


def test_rule_finds_a_record_of_a_deleted_topic_in_the_new_topic_of_that_name() -> None:
    for found, broken in ((view(0), ["deleted records stay deleted"]), (view(), [])):
        assert rules(PLAN, History(topics=list(MADE_AGAIN), writes=[wrote(0, 1.0)]), found) == broken


def test_loss_of_a_record_written_after_the_topic_was_recreated_is_reported_only_on_a_single_node() -> None:
    assert rules(PLAN, History(topics=list(MADE_AGAIN), writes=[wrote(0, 7.0)]), view()) == [
        "nothing acknowledged is lost"
    ]
    cluster = replace(PLAN, layout=simple_layout(3))
    assert rules(cluster, History(topics=list(MADE_AGAIN), writes=[wrote(0, 7.0)]), view()) == []


def test_record_written_while_the_topic_was_deleted_may_be_lost() -> None:
    assert rules(PLAN, History(topics=list(MADE_AGAIN), writes=[wrote(0, 5.05)]), view()) == []
