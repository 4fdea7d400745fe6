import pytest
from transaction_driver import T0, TIMEOUT_MS, WALL_START_MS, Driver

from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import MAX_PRODUCER_EPOCH
from penstock.transactions.config import TransactionConfig
from penstock.transactions.states import State
from penstock.transactions.turn import Answer

NONE, FENCED, CONCURRENT = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS
LAST_EPOCH = MAX_PRODUCER_EPOCH - 1  # the last epoch that a client gets


def test_first_producer_of_a_transactional_id_gets_a_new_producer_id_and_epoch_0() -> None:
    driver = Driver()
    assert driver.init() == Answer(NONE, 1000, 0)
    txn = driver.transaction()
    assert (txn.state, txn.timeout_ms, txn.start_ms, txn.update_ms) == (State.EMPTY, TIMEOUT_MS, -1, WALL_START_MS)


def test_next_producer_gets_the_next_epoch_and_fences_the_previous_producer() -> None:
    driver = Driver()
    zombie = driver.init()
    assert driver.init(timeout_ms=5) == Answer(NONE, 1000, 1)
    assert driver.transaction().timeout_ms == 5
    assert driver.add(zombie) is FENCED
    assert driver.verify(zombie) is FENCED
    assert driver.commit(zombie) == Answer(FENCED)
    assert driver.init(expected=zombie) == Answer(FENCED)


@pytest.mark.parametrize("state", [State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_transactional_id_is_in_state_empty_after_a_new_producer_starts(state: State) -> None:
    driver = Driver()
    before = driver.in_state(state)
    assert driver.init() == Answer(NONE, 1000, before.producer_epoch + 1)
    assert driver.state() is State.EMPTY
    assert driver.transaction().start_ms == -1


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_init_producer_id_gets_concurrent_transactions_while_markers_are_written(state: State) -> None:
    driver = Driver()
    driver.in_state(state)
    journal = len(driver.journal)
    assert driver.init() == Answer(CONCURRENT)
    assert len(driver.journal) == journal


@pytest.mark.parametrize("server_version", [0, 1, 2])
def test_init_producer_id_aborts_the_open_transaction_of_the_previous_producer(server_version: int) -> None:
    driver = Driver(server_version=server_version)
    zombie = driver.in_state(State.ONGOING)
    assert driver.init() == Answer(CONCURRENT)
    assert driver.state() is State.PREPARE_ABORT
    assert driver.init() == Answer(CONCURRENT)
    [markers] = driver.write_markers()
    assert (markers.committed, markers.partitions, markers.producer_epoch) == (False, frozenset({T0}), 1)
    assert markers.client_version == (2 if server_version == 2 else 0)
    # The epoch of the markers belongs to no producer: the new producer gets the epoch after it.
    assert driver.init() == Answer(NONE, 1000, 2)
    assert driver.commit(zombie) == Answer(FENCED)


@pytest.mark.parametrize(
    ("timeout_ms", "code"),
    [
        (0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (-1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (1, NONE),
        (5000, NONE),
        (5001, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_transaction_timeout_must_be_positive_and_within_the_broker_limit(timeout_ms: int, code: ErrorCode) -> None:
    driver = Driver(config=TransactionConfig(max_timeout_ms=5000))
    assert driver.init(timeout_ms=timeout_ms).code is code


def test_an_empty_transactional_id_is_refused() -> None:
    assert Driver().init("") == Answer(ErrorCode.INVALID_REQUEST)


def test_init_producer_id_gets_a_retriable_error_while_no_producer_id_is_available() -> None:
    driver = Driver()
    driver.next_producer_id = None
    assert driver.init() == Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert driver.journal == []


# --- KIP-360: a producer continues after an error


def test_init_producer_id_with_the_current_id_and_epoch_returns_the_next_epoch() -> None:
    driver = Driver()
    who = driver.init()
    assert driver.init(expected=who) == Answer(NONE, 1000, 1)


def test_retried_init_producer_id_with_the_same_id_and_epoch_returns_the_same_answer() -> None:
    driver = Driver()
    who = driver.init()
    assert driver.init(expected=who) == driver.init(expected=who) == Answer(NONE, 1000, 1)


def test_init_producer_id_of_an_old_producer_is_fenced_after_a_new_producer_has_started() -> None:
    driver = Driver()
    who = driver.init()
    on = driver.init(expected=who)
    driver.init()
    assert driver.init(expected=who) == Answer(FENCED)
    assert driver.init(expected=on) == Answer(FENCED)


def test_init_producer_id_with_an_unknown_producer_id_is_fenced() -> None:
    driver = Driver()
    driver.init()
    assert driver.init(expected=Answer(NONE, 999, 0)) == Answer(FENCED)


def test_a_producer_whose_transactional_id_expired_continues_with_a_new_producer_id() -> None:
    assert Driver().init(expected=Answer(NONE, 5, 17)) == Answer(NONE, 1000, 0)


# --- epochs run out


def test_a_producer_that_starts_when_epochs_are_used_up_gets_a_new_producer_id() -> None:
    driver = Driver()
    driver.init()
    driver.set_epoch(LAST_EPOCH - 1)
    assert driver.init() == Answer(NONE, 1000, LAST_EPOCH)
    assert driver.init() == Answer(NONE, 1001, 0)


def test_init_producer_id_at_the_last_epoch_can_be_repeated_and_gives_the_same_new_producer_id() -> None:
    driver = Driver()
    driver.init()
    who = driver.set_epoch(LAST_EPOCH)
    assert driver.init(expected=who) == Answer(NONE, 1001, 0)
    assert driver.init(expected=who) == Answer(NONE, 1001, 0)
    assert driver.init() == Answer(NONE, 1001, 1)
    assert driver.init(expected=who) == Answer(FENCED)


def test_fencing_a_producer_at_the_last_epoch_gives_the_next_producer_a_new_producer_id() -> None:
    driver = Driver()
    driver.init()
    who = driver.set_epoch(LAST_EPOCH)
    driver.add(who)
    assert driver.init() == Answer(CONCURRENT)
    [markers] = driver.write_markers()
    assert (markers.producer_id, markers.producer_epoch) == (1000, MAX_PRODUCER_EPOCH)
    assert driver.init() == Answer(NONE, 1001, 1)


def test_before_transaction_version_2_fencing_at_the_last_epoch_gives_the_next_producer_a_new_id() -> None:
    driver = Driver(server_version=1)
    driver.init()
    who = driver.set_epoch(LAST_EPOCH)
    driver.add(who)
    driver.init()
    driver.write_markers()
    assert driver.init() == Answer(NONE, 1001, 0)
