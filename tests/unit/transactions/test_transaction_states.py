import pytest

from penstock.check import InvariantError
from penstock.transactions.states import AT_REST, BY_LABEL, COMES_FROM, State
from penstock.transactions.transaction import Transaction

NO = ()
FOLLOWERS = {
    State.EMPTY: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD},
    State.ONGOING: {State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE},
    State.PREPARE_COMMIT: {State.COMPLETE_COMMIT},
    State.PREPARE_ABORT: {State.COMPLETE_ABORT},
    State.COMPLETE_COMMIT: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD},
    State.COMPLETE_ABORT: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD},
    State.DEAD: set(NO),
    State.PREPARE_EPOCH_FENCE: {State.PREPARE_ABORT},
}


@pytest.mark.parametrize("before", State)
@pytest.mark.parametrize("after", State)
def test_transaction_state_change_that_is_not_allowed_raises_an_invariant_error(before: State, after: State) -> None:
    txn = Transaction("tx", 1, 0, 1000, before)
    assert (before in COMES_FROM[after]) == (after in FOLLOWERS[before])
    if after in FOLLOWERS[before]:
        assert txn.to(after, 5).state is after
    else:
        with pytest.raises(InvariantError, match="no transition leads from"):
            txn.to(after, 5)


def test_every_transaction_state_is_reachable_and_only_state_dead_is_final() -> None:
    assert set(COMES_FROM) == set(State)
    left = set().union(*COMES_FROM.values())
    assert set(State) - left == {State.DEAD}
    assert COMES_FROM[State.DEAD] == AT_REST


def test_transaction_states_have_the_names_and_numbers_of_kafka() -> None:
    assert [state.label for state in State] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
    assert BY_LABEL["PrepareEpochFence"] == 7


def test_transition_to_a_new_producer_id_records_the_previous_producer_id() -> None:
    txn = Transaction("tx", 7, 3, 1000).to(State.EMPTY, 5, producer_id=8, producer_epoch=0)
    assert (txn.previous_producer_id, txn.producer_id, txn.update_ms) == (7, 8, 5)


@pytest.mark.parametrize("changes", [{"producer_id": -1}, {"producer_epoch": -1}, {"producer_epoch": 1 << 15}])
def test_transition_to_an_invalid_producer_raises_an_invariant_error(changes: dict[str, int]) -> None:
    with pytest.raises(InvariantError):
        Transaction("tx", 7, 3, 1000).to(State.EMPTY, 5, **changes)
