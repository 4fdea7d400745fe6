"""The rules for a clean restart of all nodes."""

from penstock.sim.checks.history import Deletion, FinalView, History, StoredRecord
from penstock.sim.checks.restart_rules import changes_by_restart

PART = ("t", 0)


def look(start: int, offsets: range, *, other: int | None = None) -> FinalView:
    records = {offset: StoredRecord(b"other" if offset == other else b"%d" % offset, 0) for offset in offsets}
    return FinalView(records={PART: records}, log_start={PART: start})


def found(first: FinalView, again: FinalView, *deleted: int, starts: set[int] | None = None) -> list[str]:
    """Returns the violations. `starts`: starts of the replicas before the restart; by default those of both views."""
    history = History(deletions=[Deletion(PART, offset) for offset in deleted])
    had = {PART: {*first.log_start.values(), *again.log_start.values()} if starts is None else starts}
    return list(changes_by_restart(first, again, had, history, set()))


def test_an_unchanged_partition_breaks_no_rule() -> None:
    assert found(look(2, range(2, 9)), look(2, range(2, 9)), 2) == []


def test_deleted_records_that_a_stale_leader_still_serves_may_be_gone_under_the_next_leader() -> None:
    """Repeats seed 128, hostile, three nodes: a deletion before 11 was answered when n2 and n3 had moved their starts.

    n2 was killed before it stored its new start. It came back with start 0 and led, so clients could read offsets 0 to
    10. After the restart n3 led.
    """
    assert found(look(0, range(20)), look(11, range(11, 20)), 11) == []


def test_log_start_may_move_in_a_restart_to_an_earlier_deletion_offset_of_another_replica() -> None:
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


def test_a_deletion_excuses_no_change_above_its_offset() -> None:
    assert found(look(0, range(20)), look(12, range(12, 20)), 11) == [
        "t-0 started at 0 and starts at 12 after a clean restart",
        "t-0 changed with a clean restart",
    ]
    assert found(look(0, range(20)), look(11, range(12, 20)), 11) == ["t-0 changed with a clean restart"]
    assert found(look(0, range(20)), look(11, range(11, 19)), 11) == ["t-0 changed with a clean restart"]
    assert found(look(0, range(20)), look(11, range(11, 21)), 11) == ["t-0 changed with a clean restart"]
    assert found(look(0, range(20)), look(11, range(11, 20), other=15), 11) == ["t-0 changed with a clean restart"]


def test_deletion_excuses_no_missing_records_if_the_log_start_is_unchanged() -> None:
    assert found(look(0, range(20)), look(0, range(5, 20)), 11) == ["t-0 changed with a clean restart"]


def test_deleted_records_do_not_come_back_with_a_clean_restart() -> None:
    assert found(look(11, range(11, 20)), look(0, range(20)), 11) == [
        "t-0 started at 11 and starts at 0 after a clean restart",
        "t-0 changed with a clean restart",
    ]


def test_a_log_start_that_moves_back_is_found_even_without_records() -> None:
    assert found(look(11, range(0)), look(9, range(0)), 11) == [
        "t-0 started at 11 and starts at 9 after a clean restart"
    ]


def test_a_partition_that_is_unreadable_after_the_restart_is_found() -> None:
    assert found(look(0, range(3)), FinalView(), 11) == ["t-0 changed with a clean restart"]


def test_partitions_with_damage_or_compaction_may_change_in_a_restart() -> None:
    first, again = look(0, range(5)), look(0, range(4))
    assert list(changes_by_restart(first, again, {}, History(damaged={PART}), set())) == []
    assert list(changes_by_restart(first, again, {}, History(), {"t"})) == []
