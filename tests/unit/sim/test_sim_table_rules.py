"""Tests the rules for compacted topics: each rule finds the violation that it forbids, and accepts allowed cases."""

from dataclasses import replace

from penstock.sim.checks.history import FinalView, History, Outcome, StoredRecord, TablePass, Transaction, Write
from penstock.sim.checks.history_rules import judge
from penstock.sim.plan.plan import Plan, TopicPlan

P = ("t", 0)
TABLE = TopicPlan("t", 1, {"cleanup.policy": "compact"}, fsync=False)
PLAN = Plan(1, "calm", 1, 10, {}, (TABLE,), (), ())


def wrote(
    number: int, offset: int, *, at: float = 1.0, tombstone: bool = False, of: Transaction | None = None
) -> Write:
    value = f"w:{number}:".encode()
    return Write("w", number, P, value, at, -1, True, of, b"k", at + 0.1, Outcome.DONE, offset, tombstone)


def view(*offsets: int, end: int = 10) -> FinalView:
    records = {offset: StoredRecord(f"w:{offset}:".encode(), 0, b"k") for offset in offsets}
    return FinalView({P: records}, {P: dict(records)}, {P: 0}, {P: end}, {"t": 1})


def read(last: int | None, *, began: float = 5.0, ended: float = 6.0, end: int = 10) -> TablePass:
    return TablePass("r", P, began, ended, end, True, {} if last is None else {b"k": (last, b"")})


def rules(plan: Plan, history: History, found: FinalView) -> list[str]:
    return sorted({violation.rule for violation in judge(plan, history, found)})


def test_rule_finds_a_reader_that_misses_the_last_record_of_a_key() -> None:
    history = History(writes=[wrote(1, 1), wrote(2, 2)], passes=[read(1)])
    assert rules(PLAN, history, view(2)) == ["tables are complete"]
    assert rules(PLAN, History(writes=history.writes, passes=[read(2)]), view(2)) == []


def test_rule_finds_a_reader_that_misses_a_tombstone_and_saw_an_older_value() -> None:
    history = History(writes=[wrote(1, 1), wrote(2, 2, tombstone=True)], passes=[read(1)])
    assert rules(PLAN, history, view()) == ["tables are complete"]
    assert rules(PLAN, History(writes=history.writes, passes=[read(None)]), view()) == []


def test_reader_may_miss_a_record_that_a_later_write_replaced_during_the_read() -> None:
    writes = [wrote(1, 1), wrote(12, 12, at=5.5)]
    assert rules(PLAN, History(writes=writes, passes=[read(None)]), view(12)) == []
    late = [wrote(1, 1), wrote(12, 12, at=7.0)]
    assert rules(PLAN, History(writes=late, passes=[read(None)]), view(12)) == ["tables are complete"]


def test_rule_finds_a_missing_record_of_a_key_whose_only_newer_record_was_aborted() -> None:
    aborted = Transaction("x", 1.0, 2.0, Outcome.DONE, committed=False)
    writes = [wrote(1, 1), wrote(12, 12, at=5.5, of=aborted)]
    assert rules(PLAN, History(writes=writes, passes=[read(None)]), view(1)) == ["tables are complete"]


def test_tombstone_of_a_transaction_with_an_unknown_result_may_delete_a_key() -> None:
    for outcome, broken in ((Outcome.UNKNOWN, []), (Outcome.DONE, ["tables are complete at the end"])):
        other = Transaction("x", 1.0, 2.0, outcome, committed=False)
        writes = [wrote(1, 1), wrote(2, 2, tombstone=True, of=other)]
        found = rules(PLAN, History(writes=writes), view())
        assert [rule for rule in found if rule.startswith("tables")] == broken


def test_rule_finds_a_value_that_still_exists_at_the_end_of_the_run_although_a_tombstone_deleted_it() -> None:
    history = History(writes=[wrote(1, 1), wrote(2, 2, tombstone=True)])
    assert rules(PLAN, history, view(1)) == ["tables are complete at the end"]
    assert rules(PLAN, history, view()) == []


def test_table_may_lose_records_in_a_power_loss_unless_all_records_are_synced_before_acks() -> None:
    history = History(writes=[wrote(1, 1), wrote(2, 2)], passes=[read(1)], power_losses=[4.0])
    fsync = replace(PLAN, topics=(replace(TABLE, fsync=True),), fsync_everywhere=True)
    assert rules(PLAN, history, view(2)) == []
    assert rules(fsync, history, view(2)) == ["tables are complete"]
