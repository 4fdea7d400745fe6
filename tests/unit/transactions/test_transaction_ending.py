import pytest
from transaction_driver import T0, T1, TIMEOUT_MS, V1, V2, WALL_START_MS, Driver

from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import MAX_PRODUCER_EPOCH
from penstock.transactions.config import TransactionConfig
from penstock.transactions.states import AT_REST, DECIDED, State
from penstock.transactions.turn import Answer, Markers

NONE, FENCED = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED
INVALID, WAIT = ErrorCode.INVALID_TXN_STATE, ErrorCode.CONCURRENT_TRANSACTIONS
EMPTY, ONGOING = State.EMPTY, State.ONGOING
PREPARE_COMMIT, COMPLETE_COMMIT = State.PREPARE_COMMIT, State.COMPLETE_COMMIT
PREPARE_ABORT, COMPLETE_ABORT = State.PREPARE_ABORT, State.COMPLETE_ABORT
LAST_EPOCH = MAX_PRODUCER_EPOCH - 1


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_is_first_prepared_then_markers_are_written_and_then_it_is_completed(commit: bool) -> None:
    driver = Driver()
    who = driver.init()
    driver.add(who, T0, T1)
    assert driver.end(who, commit) == Answer(NONE, 1000, 1)
    assert driver.state() is (PREPARE_COMMIT if commit else PREPARE_ABORT)
    assert driver.transaction().partitions == {T0, T1}
    assert driver.markers == [Markers("tx", 1000, 1, commit, V2, frozenset({T0, T1}))]
    driver.write_markers()
    assert driver.state() is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
    assert driver.transaction().partitions == frozenset()


def test_end_txn_before_transaction_version_2_does_not_change_the_producer_epoch() -> None:
    driver = Driver()
    who = driver.in_state(ONGOING, version=V1)
    assert driver.commit(who, version=V1) == Answer(NONE, 1000, 0)
    [markers] = driver.write_markers()
    assert (markers.producer_epoch, markers.client_version) == (0, 0)
    assert driver.add(who) is NONE


@pytest.mark.parametrize(
    ("state", "commit", "code"),
    [
        (EMPTY, True, INVALID),
        (EMPTY, False, INVALID),
        (ONGOING, True, NONE),
        (ONGOING, False, NONE),
        (PREPARE_COMMIT, True, WAIT),
        (PREPARE_COMMIT, False, INVALID),
        (PREPARE_ABORT, True, INVALID),
        (PREPARE_ABORT, False, WAIT),
        (COMPLETE_COMMIT, True, NONE),
        (COMPLETE_COMMIT, False, INVALID),
        (COMPLETE_ABORT, True, INVALID),
        (COMPLETE_ABORT, False, NONE),
    ],
)
def test_end_txn_before_transaction_version_2_gets_the_error_code_of_the_transaction_state(
    state: State, commit: bool, code: ErrorCode
) -> None:
    driver = Driver()
    who = driver.in_state(state, version=V1)
    written = len(driver.journal)
    assert driver.end(who, commit, version=V1).code is code
    assert (len(driver.journal) > written) == (state is ONGOING)
    other = Answer(NONE, who.producer_id, who.producer_epoch + 1)
    assert driver.end(other, commit, version=V1).code is FENCED


NEXT, RETRY = 0, -1


@pytest.mark.parametrize(
    ("state", "epoch", "commit", "code", "ends"),
    [
        (EMPTY, NEXT, True, INVALID, False),
        (EMPTY, NEXT, False, NONE, True),
        (EMPTY, RETRY, True, FENCED, False),
        (EMPTY, RETRY, False, FENCED, False),
        (ONGOING, NEXT, True, NONE, True),
        (ONGOING, NEXT, False, NONE, True),
        (ONGOING, RETRY, True, FENCED, False),
        (ONGOING, RETRY, False, FENCED, False),
        (PREPARE_COMMIT, NEXT, True, FENCED, False),
        (PREPARE_COMMIT, NEXT, False, FENCED, False),
        (PREPARE_COMMIT, RETRY, True, WAIT, False),
        (PREPARE_COMMIT, RETRY, False, INVALID, False),
        (PREPARE_ABORT, NEXT, True, FENCED, False),
        (PREPARE_ABORT, NEXT, False, FENCED, False),
        (PREPARE_ABORT, RETRY, True, INVALID, False),
        (PREPARE_ABORT, RETRY, False, WAIT, False),
        (COMPLETE_COMMIT, NEXT, True, INVALID, False),
        (COMPLETE_COMMIT, NEXT, False, NONE, True),
        (COMPLETE_COMMIT, RETRY, True, NONE, False),
        (COMPLETE_COMMIT, RETRY, False, INVALID, False),
        (COMPLETE_ABORT, NEXT, True, INVALID, False),
        (COMPLETE_ABORT, NEXT, False, NONE, True),
        (COMPLETE_ABORT, RETRY, True, INVALID, False),
        (COMPLETE_ABORT, RETRY, False, NONE, False),
    ],
)
def test_coordinator_recognises_a_retried_end_txn_by_its_epoch_since_transaction_version_2(
    state: State, epoch: int, commit: bool, code: ErrorCode, ends: bool
) -> None:
    driver = Driver()
    who = driver.in_state(state)
    written = len(driver.journal)
    asked = Answer(NONE, who.producer_id, who.producer_epoch + epoch)
    answer = driver.end(asked, commit)
    assert answer.code is code
    assert (len(driver.journal) > written) == ends
    if code is NONE:
        # A successful answer contains the producer's next epoch; a retry gets the same answer.
        assert (answer.producer_id, answer.producer_epoch) == (1000, who.producer_epoch + (1 if ends else 0))


@pytest.mark.parametrize("state", sorted(AT_REST | DECIDED | {ONGOING}))
@pytest.mark.parametrize("version", [V1, V2])
def test_ending_the_transaction_of_another_producer_is_refused(state: State, version: int) -> None:
    driver = Driver()
    who = driver.in_state(state)
    written = len(driver.journal)
    assert driver.commit(who._replace(producer_id=5), version=version).code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert driver.commit(who._replace(producer_epoch=who.producer_epoch + 1), version=version).code is FENCED
    assert driver.commit(who._replace(producer_epoch=who.producer_epoch - 2), version=version).code is FENCED
    assert len(driver.journal) == written


def test_end_txn_with_another_producer_id_is_refused_and_not_treated_as_a_retry() -> None:
    driver = Driver()
    who = driver.in_state(COMPLETE_COMMIT)
    other = Answer(NONE, who.producer_id + 1, who.producer_epoch - 1)
    assert driver.commit(other).code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_end_txn_with_an_unknown_transactional_id_is_refused() -> None:
    driver = Driver()
    assert driver.commit(Answer(NONE, 1, 0)).code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert driver.end(Answer(NONE, 1, 0), True, name="").code is ErrorCode.INVALID_REQUEST


def test_delayed_end_of_an_earlier_transaction_does_not_affect_the_next_transaction() -> None:
    driver = Driver()
    first = driver.in_state(ONGOING)
    second = driver.commit(first)
    driver.write_markers()
    driver.add(second)
    assert driver.commit(first).code is FENCED
    assert driver.abort(first).code is FENCED
    assert driver.state() is ONGOING


def test_an_abort_without_a_transaction_bumps_the_epoch_and_writes_no_markers() -> None:
    driver = Driver()
    who = driver.init()
    driver.advance(7)
    assert driver.abort(who) == Answer(NONE, 1000, 1)
    [markers] = driver.write_markers()
    assert markers.partitions == frozenset()
    assert driver.state() is COMPLETE_ABORT
    assert driver.transaction().start_ms == WALL_START_MS + 7  # Kafka requires a new epoch on every end


def test_next_transaction_has_a_new_producer_id_when_the_epochs_are_used_up() -> None:
    driver = Driver()
    driver.init()
    who = driver.set_epoch(LAST_EPOCH)
    driver.add(who)
    assert driver.commit(who) == Answer(NONE, 1001, 0)
    [markers] = driver.write_markers()
    assert (markers.producer_id, markers.producer_epoch) == (1000, MAX_PRODUCER_EPOCH)
    assert driver.commit(who) == Answer(NONE, 1001, 0)  # a retry
    assert driver.add(Answer(NONE, 1001, 0)) is NONE
    assert driver.commit(who).code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert driver.state() is ONGOING


def test_markers_of_a_transaction_at_the_largest_epoch_keep_the_largest_epoch() -> None:
    driver = Driver()
    driver.init()
    who = driver.set_epoch(MAX_PRODUCER_EPOCH)
    driver.add(who)
    assert driver.commit(who) == Answer(NONE, 1001, 0)
    assert driver.markers[0].producer_epoch == MAX_PRODUCER_EPOCH


def test_abort_of_a_timed_out_transaction_does_not_exceed_the_largest_epoch() -> None:
    driver = Driver()
    driver.init()
    driver.add(driver.set_epoch(MAX_PRODUCER_EPOCH))
    driver.advance(TIMEOUT_MS)
    assert driver.markers[0].producer_epoch == MAX_PRODUCER_EPOCH
    driver.write_markers()
    assert driver.transaction().owner == (1001, 0)


def test_reloaded_coordinator_completes_a_commit_that_changes_the_producer_id() -> None:
    driver = Driver()
    driver.init()
    who = driver.set_epoch(LAST_EPOCH)
    driver.add(who)
    driver.commit(who)
    after = driver.reload()
    after.write_markers()
    assert after.commit(who) == Answer(NONE, 1001, 0)


def test_end_txn_that_needs_a_new_producer_id_changes_nothing_while_no_id_is_available() -> None:
    driver = Driver()
    driver.init()
    who = driver.set_epoch(LAST_EPOCH)
    driver.add(who)
    driver.next_producer_id = None
    assert driver.commit(who) == Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert driver.state() is ONGOING


# --- timeouts


def test_a_transaction_that_stays_open_for_its_timeout_is_aborted() -> None:
    driver = Driver()
    who = driver.in_state(ONGOING)
    driver.advance(TIMEOUT_MS - 1)
    assert driver.state() is ONGOING
    driver.advance(1)
    assert driver.state() is PREPARE_ABORT
    [markers] = driver.write_markers()
    assert (markers.committed, markers.producer_epoch, markers.partitions) == (False, 1, frozenset({T0}))
    assert driver.commit(who).code is INVALID
    assert driver.add(who) is FENCED


def test_a_producer_whose_transaction_timed_out_continues_with_a_new_epoch() -> None:
    driver = Driver()
    who = driver.in_state(ONGOING)
    driver.advance(TIMEOUT_MS)
    driver.write_markers()
    on = driver.init(expected=who)
    assert on.code is NONE
    assert driver.add(on) is NONE


def test_adding_partitions_does_not_extend_the_timeout() -> None:
    driver = Driver()
    who = driver.in_state(ONGOING)
    driver.advance(TIMEOUT_MS - 1)
    driver.add(who, T1)
    driver.advance(1)
    assert driver.state() is PREPARE_ABORT


@pytest.mark.parametrize("version", [V1, V2])
def test_timeout_of_a_finished_transaction_does_not_affect_the_next_transaction(version: int) -> None:
    driver = Driver()
    first = driver.in_state(ONGOING, version=version)
    driver.advance(TIMEOUT_MS - 10)
    second = driver.commit(first, version=version)
    driver.write_markers()
    driver.add(second, version=version)
    driver.advance(TIMEOUT_MS - 1)
    assert driver.state() is ONGOING
    driver.advance(1)
    assert driver.state() is PREPARE_ABORT


@pytest.mark.parametrize("version", [V1, V2])
def test_timeout_of_a_finished_transaction_changes_nothing(version: int) -> None:
    driver = Driver()
    driver.in_state(COMPLETE_COMMIT, version=version)
    ended = driver.transaction()
    driver.advance(2 * TIMEOUT_MS)
    assert driver.transaction() == ended
    assert driver.shard.next_deadline() is None


def test_deleted_transactional_id_has_no_transaction_timeout() -> None:
    driver = Driver(config=TransactionConfig(id_expiration_ms=1))
    driver.in_state(COMPLETE_COMMIT)
    driver.now_ms += 1
    driver.expire()
    driver.advance(2 * TIMEOUT_MS)
    assert not driver.shard.transactions
    assert driver.shard.next_deadline() is None


def test_the_abort_of_a_timed_out_transaction_is_retried_while_no_producer_id_is_available() -> None:
    driver = Driver()
    driver.init()
    who = driver.set_epoch(LAST_EPOCH)
    driver.add(who)
    driver.next_producer_id = None
    driver.advance(TIMEOUT_MS)
    assert driver.state() is ONGOING
    driver.next_producer_id = 2000
    driver.advance(driver.config.abort_retry_ms)
    assert driver.state() is PREPARE_ABORT
    driver.write_markers()
    assert driver.transaction().producer_id == 2000


# --- markers


def test_repeated_marker_result_of_one_transaction_does_not_complete_the_next_transaction() -> None:
    driver = Driver()
    first = driver.in_state(ONGOING)
    second = driver.commit(first)
    [markers] = driver.write_markers()
    driver.add(second)
    driver.markers.append(markers)
    driver.write_markers()
    assert driver.state() is ONGOING
    driver.commit(second)
    later = driver.markers.pop()
    driver.markers.append(markers)
    driver.write_markers()
    assert driver.state() is PREPARE_COMMIT
    driver.markers.append(later)
    driver.write_markers()
    assert driver.state() is COMPLETE_COMMIT
