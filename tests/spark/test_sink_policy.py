"""The next decision for every combination of last decision, replayed rows and open transactions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.prepared import PreparedTxnState
from penstock.spark.errors import SourceError
from penstock.spark.sink_decisions import Decision, Prepared
from penstock.spark.sink_policy import next_decision, with_aborted

A, B, C = (("a", PreparedTxnState(1, 0)), ("b", PreparedTxnState(2, 0)), ("c", PreparedTxnState(3, 0)))
TRANSACTIONS = st.sets(st.sampled_from([A, B, C, ("a", PreparedTxnState(1, 2)), ("b", PreparedTxnState(2, 2))]))


def test_commit_decision_commits_the_prepared_transactions_of_a_batch_and_aborts_all_others() -> None:
    assert next_decision(None, 4, [B, A], [A, B, C], replayed=False) == Decision(4, (A, B), (C,))


def test_empty_replay_of_a_batch_does_not_change_its_recorded_commit_decision() -> None:
    decided = Decision(4, (A, B))
    assert next_decision(decided, 4, [], [A, B], replayed=False) == decided
    assert next_decision(decided, 4, [], [A, C], replayed=False) == Decision(4, (A, B), (C,))


def test_decision_about_the_next_batch_does_not_abort_transactions_of_the_previous_batch() -> None:
    decided = Decision(4, (A, B))
    assert next_decision(decided, 5, [C], [A, B, C], replayed=False) == Decision(5, (C,))
    assert next_decision(decided, 5, [], [A, B], replayed=False) == decided


def test_batch_without_rows_gets_a_decision_only_if_open_transactions_have_to_be_aborted() -> None:
    assert next_decision(None, 4, [], [], replayed=False) is None
    assert next_decision(None, 4, [], [C], replayed=False) == Decision(4, (), (C,))


def test_decision_to_commit_a_transaction_that_another_driver_aborted_is_refused() -> None:
    with pytest.raises(SourceError, match="aborted by another run"):
        next_decision(Decision(4, (A,), (C,)), 5, [C], [C], replayed=False)


def test_late_batch_and_replayed_batch_without_a_recorded_commit_decision_are_refused() -> None:
    with pytest.raises(SourceError, match="Batch 3 is late"):
        next_decision(Decision(4, (A,)), 3, [], [], replayed=False)
    with pytest.raises(SourceError, match="lost records"):
        next_decision(Decision(4, (A,)), 5, [], [], replayed=True)


def test_transactions_to_be_committed_are_not_added_to_the_aborted_transactions_of_a_decision() -> None:
    assert with_aborted(Decision(4, (A,), (B,)), [A, B, C]) == Decision(4, (A,), (B, C))
    assert with_aborted(None, [C]) == Decision(-1, (), (C,))


@given(TRANSACTIONS, TRANSACTIONS, TRANSACTIONS, st.integers(0, 2))
def test_commit_decision_never_commits_and_aborts_the_same_transaction(
    decided: set[Prepared], prepared: set[Prepared], opened: set[Prepared], ahead: int
) -> None:
    last = Decision(4, tuple(sorted(decided)))
    found = next_decision(last, 4 + ahead, prepared, opened, replayed=False)
    assert found is not None
    assert not set(found.aborted) & (set(found.transactions) | decided)
    if ahead:
        assert found == last or set(found.transactions) == prepared
    else:
        assert found.transactions == last.transactions
    assert Decision.from_bytes(found.to_bytes()).batch == found.batch


def test_stored_commit_decision_is_read_in_the_current_format_and_in_format_version_1() -> None:
    decision = Decision(4, (A, B), (C,))
    assert Decision.from_bytes(decision.to_bytes()) == decision
    older = b'{"version": 1, "batch": 4, "transactions": {"a": "1:0"}}'
    assert Decision.from_bytes(older) == Decision(4, (A,))
