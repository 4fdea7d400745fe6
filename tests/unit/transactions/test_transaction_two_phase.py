"""Tests KIP-939: an external coordinator decides, and a producer other than the writer may end the transaction."""

import random

import pytest
from transaction_driver import T0, T1, TIMEOUT_MS, V1, Driver

from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import MAX_PRODUCER_EPOCH, NO_TRANSACTION_TIMEOUT_MS
from penstock.transactions.config import TransactionConfig
from penstock.transactions.states import State
from penstock.transactions.turn import Answer

NONE, FENCED, CONCURRENT = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS
LAST_EPOCH = MAX_PRODUCER_EPOCH - 1
ENABLED = TransactionConfig(two_phase_commit=True)
CENTURY_MS = 100 * 365 * 24 * 60 * 60 * 1000


def prepared(driver: Driver) -> Answer:
    """Returns a producer that has written all its records and leaves the decision to an external coordinator."""
    who = driver.init(two_phase=True)
    assert driver.add(who) is NONE
    return who


def test_two_phase_commit_is_refused_unless_enabled() -> None:
    assert Driver().init(two_phase=True) == Answer(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


@pytest.mark.parametrize("timeout_ms", [0, TIMEOUT_MS, NO_TRANSACTION_TIMEOUT_MS])
def test_transactions_of_a_two_phase_commit_producer_have_no_timeout(timeout_ms: int) -> None:
    driver = Driver(config=ENABLED)
    assert driver.init(two_phase=True, timeout_ms=timeout_ms) == Answer(NONE, 1000, 0)
    assert driver.transaction().timeout_ms == NO_TRANSACTION_TIMEOUT_MS


def test_two_phase_commit_transaction_stays_open_until_it_is_ended() -> None:
    driver = Driver(config=ENABLED)
    prepared(driver)
    driver.advance(CENTURY_MS)
    assert driver.state() is State.ONGOING
    driver = driver.reload()
    driver.advance(CENTURY_MS)
    assert driver.state() is State.ONGOING


@pytest.mark.parametrize(("two_phase", "state"), [(True, State.ONGOING), (False, State.PREPARE_ABORT)])
def test_transaction_kept_by_a_new_producer_times_out_without_two_phase_commit(two_phase: bool, state: State) -> None:
    driver = Driver(config=ENABLED)
    driver.in_state(State.ONGOING)
    assert driver.init(two_phase=two_phase, keep=True).code is NONE
    driver.advance(TIMEOUT_MS)
    assert driver.state() is state


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("reloads", [False, True])
def test_next_producer_can_end_the_prepared_transaction_that_it_kept(commit: bool, reloads: bool) -> None:
    driver = Driver(config=ENABLED)
    before = prepared(driver)
    kept = driver.init(two_phase=True, keep=True)
    assert kept == Answer(NONE, 1000, 1, before.producer_id, before.producer_epoch)
    if reloads:
        driver = driver.reload()
    ended = driver.end(kept, commit)
    assert ended == Answer(NONE, 1000, 2)
    if reloads:
        driver = driver.reload()
    [markers] = driver.write_markers()
    # The markers name the producer that wrote the records, with the epoch after its own.
    assert (markers.producer_id, markers.producer_epoch, markers.committed) == (1000, 1, commit)
    assert markers.partitions == frozenset({T0})
    txn = driver.transaction()
    assert (txn.producer_id, txn.producer_epoch, txn.next_producer_id, txn.next_epoch) == (1000, 2, -1, -1)
    assert driver.add(ended) is NONE


def test_retried_end_txn_of_a_kept_transaction_succeeds() -> None:
    driver = Driver(config=ENABLED)
    prepared(driver)
    kept = driver.init(two_phase=True, keep=True)
    ended = driver.commit(kept)
    assert driver.commit(kept) == Answer(CONCURRENT)
    assert driver.abort(kept) == Answer(ErrorCode.INVALID_TXN_STATE)
    driver.write_markers()
    assert driver.commit(kept) == ended
    assert driver.abort(kept) == Answer(ErrorCode.INVALID_TXN_STATE)


def test_late_retry_of_end_txn_does_not_end_the_next_transaction() -> None:
    driver = Driver(config=ENABLED)
    prepared(driver)
    kept = driver.init(two_phase=True, keep=True)
    ended = driver.commit(kept)
    driver.write_markers()
    driver.add(ended, T1)
    assert driver.commit(kept) == Answer(FENCED)
    assert driver.state() is State.ONGOING


def test_only_the_newest_producer_can_end_a_transaction_that_several_producers_kept() -> None:
    driver = Driver(config=ENABLED)
    first = prepared(driver)
    second = driver.init(two_phase=True, keep=True)
    third = driver.init(two_phase=True, keep=True)
    assert third == Answer(NONE, 1000, 2, 1000, 0)
    for zombie in (first, second):
        assert driver.commit(zombie) == Answer(FENCED)
        assert driver.abort(zombie) == Answer(FENCED)
        assert driver.add(zombie, T1) is FENCED
        assert driver.verify(zombie) is FENCED
        assert driver.init(expected=zombie, keep=True) == Answer(FENCED)
    assert driver.commit(third) == Answer(NONE, 1000, 3)


def test_adding_and_verifying_partitions_of_a_kept_transaction_is_refused() -> None:
    driver = Driver(config=ENABLED)
    prepared(driver)
    kept = driver.init(two_phase=True, keep=True)
    assert driver.add(kept, T1) is ErrorCode.INVALID_TXN_STATE
    assert driver.verify(kept) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_producer_that_asks_to_keep_a_transaction_starts_normally_if_no_transaction_is_open(state: State) -> None:
    driver = Driver(config=ENABLED)
    before = driver.in_state(state)
    assert driver.init(two_phase=True, keep=True) == Answer(NONE, 1000, before.producer_epoch + 1)
    assert driver.state() is State.EMPTY


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_keeping_a_transaction_that_is_already_ending_is_refused(state: State) -> None:
    driver = Driver(config=ENABLED)
    driver.in_state(state)
    assert driver.init(two_phase=True, keep=True) == Answer(CONCURRENT)


def test_a_producer_that_does_not_keep_the_transaction_aborts_it_and_fences_all_earlier_producers() -> None:
    driver = Driver(config=ENABLED)
    prepared(driver)
    kept = driver.init(two_phase=True, keep=True)
    assert driver.init() == Answer(CONCURRENT)
    [markers] = driver.write_markers()
    assert (markers.producer_epoch, markers.committed) == (1, False)
    assert driver.commit(kept).code is not NONE
    assert driver.init() == Answer(NONE, 1000, 3)
    assert driver.commit(kept) == Answer(FENCED)
    assert driver.transaction().timeout_ms == TIMEOUT_MS


def test_keeping_a_transaction_at_the_last_epoch_gives_a_new_producer_id_but_markers_have_the_old_id() -> None:
    driver = Driver(config=ENABLED)
    driver.init(two_phase=True)
    before = driver.set_epoch(LAST_EPOCH)
    driver.add(before)
    kept = driver.init(two_phase=True, keep=True)
    assert kept == Answer(NONE, 1001, 0, 1000, LAST_EPOCH)
    assert driver.commit(before) == Answer(FENCED)
    assert driver.commit(kept) == Answer(NONE, 1001, 1)
    [markers] = driver.write_markers()
    assert (markers.producer_id, markers.producer_epoch) == (1000, MAX_PRODUCER_EPOCH)
    assert driver.commit(kept) == Answer(NONE, 1001, 1)


def test_end_txn_at_the_last_epoch_gives_a_new_producer_id_and_accepts_a_retry() -> None:
    driver = Driver(config=ENABLED)
    driver.init(two_phase=True)
    before = driver.set_epoch(LAST_EPOCH - 1)
    driver.add(before)
    kept = driver.init(two_phase=True, keep=True)
    assert kept == Answer(NONE, 1000, LAST_EPOCH, 1000, LAST_EPOCH - 1)
    ended = driver.commit(kept)
    assert ended == Answer(NONE, 1001, 0)
    assert driver.commit(kept) == Answer(CONCURRENT)
    assert driver.add(ended) is CONCURRENT
    [markers] = driver.write_markers()
    assert (markers.producer_id, markers.producer_epoch) == (1000, LAST_EPOCH)
    assert driver.commit(kept) == ended


def test_markers_of_a_kept_transaction_have_the_first_epoch_before_transaction_version_2() -> None:
    driver = Driver(config=ENABLED)
    who = driver.init(two_phase=True)
    driver.add(who, version=V1)
    kept = driver.init(two_phase=True, keep=True)
    assert driver.commit(kept, version=V1).code is NONE
    [markers] = driver.write_markers()
    assert markers.producer_epoch == 0
    assert driver.add(kept, version=V1) is NONE


@pytest.mark.parametrize("seed", range(20))
def test_only_the_last_initialized_producer_can_end_a_prepared_transaction(seed: int) -> None:
    driver, source = Driver(config=ENABLED), random.Random(seed)
    known: list[Answer] = []
    for _ in range(200):
        match source.randrange(6):
            case 0 | 1:
                answer = driver.init(two_phase=True, keep=source.random() < 0.8)
                known += [answer] if answer.code is NONE else []
            case 2 if known:
                driver.add(known[-1], source.choice((T0, T1)))
            case 3 if known:
                state, who = driver.state(), source.choice(known)
                answer = driver.end(who, source.random() < 0.5)
                if state is State.ONGOING and who[1:3] != known[-1][1:3]:
                    assert answer.code is not NONE
                elif answer.code is NONE and who is known[-1]:
                    known.append(answer)
            case 4:
                driver.write_markers()
            case _:
                driver = driver.reload()


def test_add_partitions_gets_concurrent_transactions_until_the_previous_markers_are_written() -> None:
    driver = Driver()
    driver.init()
    who = driver.set_epoch(LAST_EPOCH)
    driver.add(who)
    ended = driver.commit(who)
    assert ended == Answer(NONE, 1001, 0)
    assert driver.add(ended, T1) is CONCURRENT
    driver.write_markers()
    assert driver.add(ended, T1) is NONE
