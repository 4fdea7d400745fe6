import pytest
from transaction_driver import T0, T1, V1, V2, WALL_START_MS, Driver

from penstock.protocol.errors import ErrorCode
from penstock.transactions.states import State
from penstock.transactions.turn import Answer

NONE = ErrorCode.NONE


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_adding_the_first_partition_starts_a_transaction(state: State) -> None:
    driver = Driver()
    who = driver.in_state(state)
    driver.advance(5)
    assert driver.add(who, T0) is NONE
    txn = driver.transaction()
    assert (txn.state, txn.partitions) == (State.ONGOING, frozenset({T0}))
    assert txn.start_ms == txn.update_ms == WALL_START_MS + 5


def test_adding_partitions_keeps_the_start_time_of_the_transaction() -> None:
    driver = Driver()
    who = driver.in_state(State.ONGOING)
    driver.advance(5)
    assert driver.add(who, T0, T1) is NONE
    txn = driver.transaction()
    assert txn.partitions == {T0, T1}
    assert (txn.start_ms, txn.update_ms) == (WALL_START_MS, WALL_START_MS + 5)


def test_adding_a_partition_again_writes_no_record() -> None:
    driver = Driver()
    who = driver.in_state(State.ONGOING)
    written = len(driver.journal)
    assert driver.add(who, T0) is NONE
    assert len(driver.journal) == written


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_adding_a_partition_is_refused_while_markers_are_written(state: State, version: int) -> None:
    driver = Driver()
    who = driver.in_state(state, version=version)
    assert driver.add(who) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert driver.verify(who) is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("state", [each for each in State if each not in (State.DEAD, State.PREPARE_EPOCH_FENCE)])
@pytest.mark.parametrize(
    ("producer_id", "epoch_shift", "code"),
    [
        (999, 0, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (1000, -1, ErrorCode.PRODUCER_FENCED),
        (1000, +1, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_only_the_owner_of_a_transactional_id_may_add_and_verify_partitions(
    state: State, producer_id: int, epoch_shift: int, code: ErrorCode
) -> None:
    driver = Driver()
    who = driver.in_state(state)
    other = Answer(NONE, producer_id, who.producer_epoch + epoch_shift)
    assert driver.add(other, T1) is code
    assert driver.verify(other) is code


def test_adding_or_verifying_partitions_of_an_unknown_transactional_id_is_refused() -> None:
    driver = Driver()
    assert driver.add(Answer(NONE, 1, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert driver.verify(Answer(NONE, 1, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert driver.add(Answer(NONE, 1, 0), name="") is ErrorCode.INVALID_REQUEST


def test_verification_accepts_a_partition_only_for_the_open_transaction_it_was_added_to() -> None:
    driver = Driver()
    who = driver.init()
    assert driver.verify(who, T0) is ErrorCode.TRANSACTION_ABORTABLE
    driver.add(who, T0, version=V1)
    assert driver.verify(who, T0) is NONE
    assert driver.verify(who, T1) is ErrorCode.TRANSACTION_ABORTABLE
    driver.commit(who, version=V1)
    driver.write_markers()
    # The same epoch, but the transaction has ended: a late batch of it is refused.
    assert driver.verify(who, T0) is ErrorCode.TRANSACTION_ABORTABLE


def test_late_batch_of_an_earlier_transaction_does_not_join_the_next_transaction() -> None:
    driver = Driver()
    first = driver.in_state(State.ONGOING)
    second = driver.commit(first)
    driver.write_markers()
    assert driver.add(second, T1) is NONE
    assert driver.add(first, T0) is ErrorCode.PRODUCER_FENCED
    assert driver.transaction().partitions == {T1}
