"""Tests the rules for a clean restart of all nodes."""

from penstock.sim.checks.history import Deletion, FinalView, History, StoredRecord
from penstock.sim.checks.restart_rules import changes_by_restart

PART = ("t", 0)


def look(start: int, offsets: range, *, other: int | None = None) -> FinalView:
    records = {offset: StoredRecord(b"other" if offset == other else b"%d" % offset, 0) for offset in offsets}
    return FinalView(records={PART: records}, log_start={PART: start})


def found(first: FinalView, again: FinalView, *deleted: int, starts: set[int] | None = None) -> list[str]:
    """Returns the violations. `starts` are the replicas' log starts before the restart; by default, the log starts of
    both views."""
    history = History(deletions=[Deletion(PART, offset) for offset in deleted])
    had = {PART: {*first.log_start.values(), *again.log_start.values()} if starts is None else starts}
    return list(changes_by_restart(first, again, had, history, set()))


def test_partition_that_a_restart_does_not_change_breaks_no_rule() -> None:
    assert found(look(2, range(2, 9)), look(2, range(2, 9)), 2) == []


def test_deleted_records_that_an_old_leader_still_serves_may_be_gone_after_a_restart() -> None:
    """Repeats seed 128, profile hostile, three nodes.

    DeleteRecords before offset 11 was answered after n2 and n3 had moved their log starts. n2 was killed before it
    stored its new start. It came back with start 0 and led, so clients could read offsets 0 to 10. After the restart n3
    led.
    """
    assert found(look(0, range(20)), look(11, range(11, 20)), 11) == []


def test_restart_may_move_the_log_start_to_the_offset_of_an_earlier_deletion() -> None:
    assert found(look(0, range(20)), look(8, range(8, 20)), 8, 11) == []


def test_rule_finds_a_log_start_that_no_replica_had_before_the_restart() -> None:
    assert found(look(0, range(20)), look(11, range(11, 20)), 11, starts={0}) == [
        "t-0 started at 0 and starts at 11 after a clean restart",
        "t-0 changed with a clean restart",
    ]


def test_rule_finds_records_that_disappear_in_a_restart_without_a_deletion_request() -> None:
    assert found(look(0, range(20)), look(11, range(11, 20))) == [
        "t-0 started at 0 and starts at 11 after a clean restart",
        "t-0 changed with a clean restart",
    ]


def test_rule_finds_changed_records_above_the_offset_of_a_delete_records_request() -> None:
    assert found(look(0, range(20)), look(12, range(12, 20)), 11) == [
        "t-0 started at 0 and starts at 12 after a clean restart",
        "t-0 changed with a clean restart",
    ]
    assert found(look(0, range(20)), look(11, range(12, 20)), 11) == ["t-0 changed with a clean restart"]
    assert found(look(0, range(20)), look(11, range(11, 19)), 11) == ["t-0 changed with a clean restart"]
    assert found(look(0, range(20)), look(11, range(11, 21)), 11) == ["t-0 changed with a clean restart"]
    assert found(look(0, range(20)), look(11, range(11, 20), other=15), 11) == ["t-0 changed with a clean restart"]


def test_rule_finds_missing_records_above_an_unchanged_log_start_even_after_a_deletion() -> None:
    assert found(look(0, range(20)), look(0, range(5, 20)), 11) == ["t-0 changed with a clean restart"]


def test_rule_finds_deleted_records_that_come_back_with_a_clean_restart() -> None:
    assert found(look(11, range(11, 20)), look(0, range(20)), 11) == [
        "t-0 started at 11 and starts at 0 after a clean restart",
        "t-0 changed with a clean restart",
    ]


def test_rule_finds_a_log_start_that_moves_back_in_a_partition_without_records() -> None:
    assert found(look(11, range(0)), look(9, range(0)), 11) == [
        "t-0 started at 11 and starts at 9 after a clean restart"
    ]


def test_rule_finds_a_partition_that_is_unreadable_after_the_restart() -> None:
    assert found(look(0, range(3)), FinalView(), 11) == ["t-0 changed with a clean restart"]


def test_damaged_and_compacted_partitions_may_change_in_a_restart() -> None:
    first, again = look(0, range(5)), look(0, range(4))
    assert list(changes_by_restart(first, again, {}, History(damaged={PART}), set())) == []
    assert list(changes_by_restart(first, again, {}, History(), {"t"})) == []
