"""Tests the rules for histories: each rule finds the violation that it forbids, and accepts allowed cases."""

from dataclasses import replace

import pytest

from penstock.sim.checks.history import (
    Deletion,
    FinalView,
    History,
    Loss,
    OffsetAnswer,
    OffsetCommit,
    Outcome,
    Read,
    StoredRecord,
    TopicChange,
    Transaction,
    Write,
)
from penstock.sim.checks.history_rules import judge
from penstock.sim.plan.plan import Plan, TopicPlan

P = ("t", 0)
PLAN = Plan(1, "calm", 1, 10, {}, (TopicPlan("t", 1, {}, fsync=False),), (), ())
FSYNC = replace(PLAN, topics=(TopicPlan("t", 1, {}, fsync=True),))
EVERYWHERE = replace(FSYNC, fsync_everywhere=True)


def wrote(number: int, offset: int, *, at: float = 1.0, idempotent: bool = True, key: bytes | None = None) -> Write:
    value = f"w:{number}:".encode()
    return Write("w", number, P, value, at, -1, idempotent, None, key, at + 0.1, Outcome.DONE, offset)


def view(*values: str, start: int = 0) -> FinalView:
    records = {start + slot: StoredRecord(value.encode(), 0) for slot, value in enumerate(values)}
    return FinalView({P: records}, {P: dict(records)}, {P: start}, {P: start + len(values)}, {"t": 1})


def rules(plan: Plan, history: History, found: FinalView) -> list[str]:
    return sorted({violation.rule for violation in judge(plan, history, found)})


def test_records_at_their_acknowledged_offsets_break_no_rule() -> None:
    history = History(writes=[wrote(1, 0), wrote(2, 1)])
    assert rules(PLAN, history, view("w:1:", "w:2:")) == []


def test_rule_finds_a_lost_acknowledged_record() -> None:
    history = History(writes=[wrote(1, 0), wrote(2, 1)])
    assert rules(PLAN, history, view("w:1:")) == ["nothing acknowledged is lost"]


def test_losing_the_unsynced_end_of_a_log_in_a_power_loss_breaks_no_rule() -> None:
    history = History(writes=[wrote(1, 0), wrote(2, 1)], power_losses=[5.0], losses=[Loss(5.0, P, 1)])
    assert rules(PLAN, history, view("w:1:")) == []


def test_rule_finds_a_lost_record_that_the_power_loss_cannot_have_erased() -> None:
    history = History(writes=[wrote(1, 0), wrote(2, 1)], power_losses=[5.0], losses=[Loss(5.0, P, 1)])
    assert rules(PLAN, history, view()) == ["nothing acknowledged is lost"]
    history.losses = [Loss(5.0, ("t", 1), 0)]
    assert rules(PLAN, history, view("w:1:")) == ["nothing acknowledged is lost"]


def test_rule_finds_a_lost_record_that_was_written_after_the_power_loss() -> None:
    history = History(writes=[wrote(1, 0, at=9)], power_losses=[5.0])
    assert rules(PLAN, history, view()) == ["nothing acknowledged is lost"]


def test_rule_finds_a_record_lost_in_a_power_loss_although_a_later_record_was_kept() -> None:
    history = History(writes=[wrote(1, 0), wrote(2, 1), wrote(3, 2)], power_losses=[5.0])
    assert "losses are at the end" in rules(PLAN, history, view("w:1:", "other", "w:3:"))


def test_records_that_a_client_deleted_do_not_count_as_lost() -> None:
    history = History(writes=[wrote(1, 0), wrote(2, 1)], deletions=[Deletion(P, 1)])
    assert rules(PLAN, history, view("w:2:", start=1)) == []


def test_compaction_may_remove_a_record_whose_key_has_a_later_record() -> None:
    history = History(writes=[wrote(1, 0, key=b"k"), wrote(2, 1, key=b"k")])
    newest = {1: StoredRecord(b"w:2:", 0, b"k")}
    found = FinalView({P: newest}, {P: newest}, {P: 0}, {P: 2}, {"t": 1})
    assert rules(PLAN, history, found) == []
    found.committed[P] = {}  # an aborted record does not supersede another
    assert "nothing acknowledged is lost" in rules(PLAN, history, found)
    found.records[P] = {}
    assert rules(PLAN, history, found) == ["nothing acknowledged is lost"]


def test_compaction_may_remove_aborted_and_superseded_records_of_a_transaction() -> None:
    plan = replace(PLAN, topics=(TopicPlan("t", 1, {"cleanup.policy": "compact"}, fsync=False),))
    aborted, whole = Transaction("a", 1.0, 2.0, Outcome.DONE, False), Transaction("c", 1.0, 2.0, Outcome.DONE, True)
    aborted.writes, whole.writes = [wrote(1, 0, key=b"k")], [wrote(2, 1, key=b"k"), wrote(3, 2, key=b"other")]
    for each in (aborted, whole):
        for write in each.writes:
            write.transaction = each
    later = wrote(4, 4, key=b"k")
    history = History(writes=[*aborted.writes, *whole.writes, later], transactions=[aborted, whole])
    left = {2: StoredRecord(b"w:3:", 0, b"other"), 4: StoredRecord(b"w:4:", 0, b"k")}
    assert rules(plan, history, FinalView({P: left}, {P: left}, {P: 0}, {P: 5}, {"t": 1})) == []
    del left[2]
    found = rules(plan, history, FinalView({P: left}, {P: left}, {P: 0}, {P: 5}, {"t": 1}))
    assert found == ["tables are complete at the end", "transactions are whole"]


def test_rule_finds_an_offset_committed_for_a_deleted_topic_of_the_same_name() -> None:
    history = History(commits=[OffsetCommit("g", P, 2000, 1.0, 1.1, Outcome.DONE)], outlived={("g", P): {1000}})
    shown = view("a")
    for offset, found in (
        (2000, []),
        (-1, []),
        (1000, ["committed offsets never go back", "topics made again start anew"]),
    ):
        shown.group_offsets["g", P] = offset
        assert rules(PLAN, history, shown) == found


def read(offset: int, value: str, *, at: float = 2.0, committed: bool = False) -> Read:
    return Read("r", P, offset, value.encode(), committed, at, at)


def test_rule_finds_two_different_values_at_one_offset_of_a_partition() -> None:
    history = History(writes=[wrote(1, 0)], reads=[read(0, "other")])
    assert "offsets keep their values" in rules(PLAN, history, view("w:1:"))
    history.power_losses.append(1.5)
    history.losses.append(Loss(1.5, P, 0))
    assert rules(PLAN, history, view("other")) == []


def test_duplicates_are_violations_for_idempotent_producers_only() -> None:
    for idempotent in (True, False):
        history = History(writes=[wrote(1, 0, idempotent=idempotent)])
        assert rules(PLAN, history, view("w:1:", "w:1:")) == (["idempotence"] if idempotent else [])


def test_rule_finds_acknowledged_records_stored_out_of_sending_order() -> None:
    history = History(writes=[wrote(1, 1), wrote(2, 0)])
    assert rules(PLAN, history, view("w:2:", "w:1:")) == ["idempotence"]


def transaction(outcome: Outcome, *, committed: bool, writes: int = 2) -> tuple[History, Transaction]:
    found = Transaction("x", 1.0, 2.0, outcome, committed)
    found.writes = [wrote(number + 1, number) for number in range(writes)]
    return History(writes=list(found.writes), transactions=[found]), found


def test_rule_finds_a_visible_record_of_an_aborted_transaction() -> None:
    history, _ = transaction(Outcome.DONE, committed=False)
    shown = view("w:1:", "w:2:")
    assert rules(PLAN, history, shown) == ["transactions are whole"]
    shown.committed[P] = {}
    assert rules(PLAN, history, shown) == []


def test_rule_finds_a_missing_record_of_a_committed_transaction() -> None:
    history, _ = transaction(Outcome.DONE, committed=True)
    shown = view("w:1:", "w:2:")
    del shown.committed[P][1]
    assert rules(PLAN, history, shown) == ["transactions are whole"]


def test_rule_finds_a_transaction_with_an_unknown_result_that_is_visible_only_in_part() -> None:
    history, _ = transaction(Outcome.UNKNOWN, committed=True)
    shown = view("w:1:", "w:2:")
    assert rules(PLAN, history, shown) == []
    del shown.committed[P][0]
    assert rules(PLAN, history, shown) == ["transactions are whole"]
    del shown.committed[P][1]
    assert rules(PLAN, history, shown) == []


def test_rule_finds_a_committed_record_that_a_reader_got_but_that_is_missing_later() -> None:
    history = History(reads=[read(0, "a", committed=True)])
    shown = view("a")
    assert rules(PLAN, history, shown) == []
    shown.committed[P] = {}
    assert rules(PLAN, history, shown) == ["committed reads stay"]


def committed(offset: int, *, at: float = 1.0, outcome: Outcome = Outcome.DONE) -> OffsetCommit:
    return OffsetCommit("g", P, offset, at, at + 0.1, outcome)


def test_rule_finds_a_committed_offset_that_goes_back() -> None:
    history = History(commits=[committed(5), committed(8, at=2.0)], committed=[OffsetAnswer("g", P, 5, 3.0, 3.1)])
    assert rules(PLAN, history, view()) == ["committed offsets never go back"]
    history.power_losses.append(2.5)
    assert rules(PLAN, history, view()) == []
    assert rules(EVERYWHERE, history, view()) == ["committed offsets never go back"]


def test_offset_commit_without_an_answer_may_take_effect_later() -> None:
    late = committed(5, outcome=Outcome.UNKNOWN)
    history = History(commits=[late, committed(8, at=2.0)], committed=[OffsetAnswer("g", P, 5, 3.0, 3.1)])
    assert rules(PLAN, history, view()) == []


def test_rule_finds_a_created_topic_that_is_missing_and_a_deleted_topic_that_exists() -> None:
    history = History(topics=[TopicChange("a", 2, 1.0, Outcome.DONE), TopicChange("b", 1, 1.0, Outcome.DONE)])
    history.topics.append(TopicChange("b", 0, 2.0, Outcome.DONE))
    found = view()
    found.topics["a"] = 2
    assert rules(PLAN, history, found) == []
    found.topics = {"t": 1, "b": 1}
    assert rules(PLAN, history, found) == ["topics are as told"]
    history.topics.append(TopicChange("a", 3, 3.0))
    found.topics = {"t": 1, "a": 3}
    assert rules(PLAN, history, found) == []


@pytest.mark.parametrize(("seconds", "broken"), [(0.5, ["topics are as told"]), (3.0, [])])
def test_recreated_topic_may_be_missing_only_if_the_earlier_deletion_took_long_enough_to_be_sent_twice(
    seconds: float, broken: list[str]
) -> None:
    deleted = TopicChange("a", 0, 2.0, Outcome.DONE, 2.0 + seconds)
    history = History(topics=[deleted, TopicChange("a", 1, 6.0, Outcome.DONE, 6.1)])
    assert rules(PLAN, history, view()) == broken


def test_losses_in_a_partition_with_damaged_files_break_no_rule() -> None:
    history = History(writes=[wrote(1, 0)], damaged={P})
    assert rules(PLAN, history, view()) == []
