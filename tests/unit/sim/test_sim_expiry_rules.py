"""Tests the rules for expiry: each rule finds the violation that it forbids, and accepts allowed cases."""

from dataclasses import replace

from penstock.sim.checks.history import (
    ClockJump,
    Deletion,
    FinalView,
    History,
    LogStart,
    OffsetCommit,
    Outcome,
    StoredRecord,
    Write,
)
from penstock.sim.checks.history_rules import judge
from penstock.sim.plan.plan import Plan, TopicPlan

P = ("t", 0)
DAY_MS = 86_400_000
PLAN = Plan(1, "expiry", 1, 10, {}, (TopicPlan("t", 1, {"retention.ms": "5000"}, fsync=False),), (), ())


def wrote(offset: int, at: float, *, ended: float | None = None) -> Write:
    value = f"w:{offset}:".encode()
    return Write("w", offset, P, value, at, -1, True, None, None, ended or at + 0.1, Outcome.DONE, offset)


def view(*offsets: int, start: int = 0, at: float = 20.0) -> FinalView:
    records = {offset: StoredRecord(f"w:{offset}:".encode(), 0) for offset in offsets}
    shown = FinalView({P: records}, {P: dict(records)}, {P: start}, {P: 10}, {"t": 1})
    shown.read_at, shown.ended = {P: at}, at
    return shown


def rules(plan: Plan, history: History, found: FinalView) -> list[str]:
    return sorted({violation.rule for violation in judge(plan, history, found)})


def test_rule_finds_a_record_that_expired_too_early() -> None:
    assert rules(PLAN, History(writes=[wrote(0, 18.0)]), view(start=1)) == ["only old records expire"]
    assert rules(PLAN, History(writes=[wrote(0, 10.0)]), view(start=1)) == []


def test_rule_finds_a_record_that_a_client_saw_deleted_before_its_retention_time() -> None:
    history = History(writes=[wrote(0, 10.0)], log_starts=[LogStart(P, 1, 12.0)])
    assert rules(PLAN, history, view(start=1)) == ["only old records expire"]


def test_record_may_be_deleted_early_after_a_delete_request_or_by_a_clock_that_is_ahead() -> None:
    history = History(writes=[wrote(0, 18.0)], deletions=[Deletion(P, 1)])
    assert rules(PLAN, history, view(start=1)) == []
    for jump in (ClockJump(19.0, DAY_MS, everywhere=True), ClockJump(1.0, DAY_MS, everywhere=False)):
        assert rules(PLAN, History(writes=[wrote(0, 18.0)], clock_jumps=[jump]), view(start=1)) == []
    before = ClockJump(17.0, DAY_MS, everywhere=True)
    assert rules(PLAN, History(writes=[wrote(0, 18.0)], clock_jumps=[before]), view(start=1)) != []


def test_rule_finds_a_record_that_is_kept_long_after_its_retention_time() -> None:
    history = History(writes=[wrote(0, 10.0)], clock_jumps=[ClockJump(11.0, DAY_MS, everywhere=True)])
    assert rules(PLAN, history, view(0)) == ["old records are deleted"]
    assert rules(PLAN, History(writes=[wrote(0, 10.0)]), view(0)) == []


def test_duplicate_record_is_allowed_only_if_its_producer_id_expired_before_the_retry() -> None:
    plan = replace(PLAN, settings={"producer.id.expiration.ms": str(DAY_MS)}, topics=())
    twice = view(0, 1)
    twice.records[P][1] = twice.records[P][0]
    history = History(writes=[wrote(0, 10.0, ended=14.0)])
    assert rules(plan, history, twice) == ["idempotence"]
    history.clock_jumps = [ClockJump(12.0, DAY_MS, everywhere=True)]
    assert rules(plan, history, twice) == []
    history.clock_jumps = [ClockJump(15.0, DAY_MS, everywhere=True)]
    assert rules(plan, history, twice) == ["idempotence"]


def test_rule_finds_a_committed_offset_that_is_gone_before_its_retention_time() -> None:
    plan = replace(PLAN, settings={"offsets.retention.minutes": "1440"})
    history = History(commits=[OffsetCommit("g", P, 5, 1.0, 1.1, Outcome.DONE)])
    found = view()
    found.group_offsets["g", P] = -1
    assert rules(plan, history, found) == ["committed offsets never go back"]
    history.clock_jumps = [ClockJump(2.0, DAY_MS, everywhere=True)]
    assert rules(plan, history, found) == []


def test_rule_reports_contradictory_broker_answers_that_the_history_contains() -> None:
    assert rules(PLAN, History(contradictions=["t-0 starts at 5 and is stable up to 3 only"]), view()) == [
        "answers agree"
    ]
