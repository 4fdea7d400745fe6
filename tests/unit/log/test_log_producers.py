"""Tests the producer state of a log: which batch may follow, what is unstable, and what a snapshot restores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from penstock.log.producers import REMEMBERED_BATCHES, AppendOrigin, CompletedTxn, ProducerStateManager
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import MAX_PRODUCER_EPOCH, MAX_SEQUENCE
from penstock.records.batches import iter_batches
from penstock.records.build import build_batch
from penstock.records.control import EndTxn
from penstock.records.header import BatchHeader

COMMIT, ABORT = EndTxn(True, 5), EndTxn(False, 5)
CLIENT, COORDINATOR, REPLICATION = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR, AppendOrigin.REPLICATION


def batch(
    offset: int,
    sequence: int = 0,
    *,
    producer: int = 7,
    epoch: int = 1,
    records: int = 1,
    transactional: bool = False,
    control: bool = False,
    timestamp: int = 1000,
) -> BatchHeader:
    data = build_batch(
        [(timestamp, b"k", b"v", ())] * records,
        base_offset=offset,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=-1 if control else sequence,
        transactional=transactional or control,
        control=control,
    )
    ((header, _),) = iter_batches(data)
    return header


def marker(offset: int, *, producer: int = 7, epoch: int = 1, timestamp: int = 1000) -> BatchHeader:
    return batch(offset, producer=producer, epoch=epoch, control=True, timestamp=timestamp)


def code_of(call: Callable[[], object]) -> ErrorCode:
    try:
        call()
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def unstable(state: ProducerStateManager) -> int | None:
    return state.first_unstable_offset


def with_batches(*headers: BatchHeader) -> ProducerStateManager:
    state = ProducerStateManager()
    for header in headers:
        state.update(header)
    return state


@pytest.mark.parametrize(
    ("sequence", "epoch", "code"),
    [
        pytest.param(3, 1, ErrorCode.NONE, id="the next"),
        pytest.param(4, 1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, id="a gap"),
        pytest.param(2, 1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, id="inside the last batch"),
        pytest.param(0, 2, ErrorCode.NONE, id="a new epoch from 0"),
        pytest.param(3, 2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, id="a new epoch goes on"),
        pytest.param(3, 0, ErrorCode.INVALID_PRODUCER_EPOCH, id="an old epoch"),
    ],
)
def test_batch_with_a_sequence_out_of_order_or_an_old_producer_epoch_is_refused(
    sequence: int, epoch: int, code: ErrorCode
) -> None:
    state = with_batches(batch(0, 0, records=3))
    header = batch(3, sequence, epoch=epoch)
    assert code_of(partial(state.admit, header)) is code
    assert code_of(partial(state.validate, header, CLIENT)) is code
    expected = ErrorCode.NONE if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER else code
    assert code_of(partial(state.validate, header, COORDINATOR)) is expected
    assert code_of(partial(state.validate, header, REPLICATION)) is ErrorCode.NONE


def test_sequences_wrap_and_an_unknown_producer_may_begin_with_any_sequence() -> None:
    state = with_batches(batch(0, MAX_SEQUENCE))
    assert state.admit(batch(1, 0)) is None
    state.update(batch(1, MAX_SEQUENCE, records=3, producer=8))
    entry = state.get(8)
    assert entry is not None
    assert (entry.last_sequence, entry.last_offset, entry.batches[-1].first_sequence) == (1, 3, MAX_SEQUENCE)
    assert entry.batches[-1].first_offset == 1
    assert state.admit(batch(4, 123, producer=9)) is None


def test_duplicate_batch_is_recognised_among_the_last_five_batches_of_its_producer_epoch() -> None:
    headers = [batch(2 * n, 2 * n, records=2) for n in range(REMEMBERED_BATCHES + 1)]
    state = with_batches(*headers)
    found = [state.find_duplicate(header) for header in headers]
    assert found[0] is None
    assert [each.first_offset for each in found[1:] if each is not None] == [2, 4, 6, 8, 10]
    assert state.admit(headers[1]) == found[1]
    assert state.find_duplicate(batch(2, 2, records=1)) is None
    assert state.find_duplicate(batch(2, 1, records=3)) is None
    assert state.find_duplicate(batch(2, 2, records=2, epoch=2)) is None
    assert state.find_duplicate(batch(2, 2, records=2, producer=8)) is None
    state.update(batch(12, 0, epoch=2))
    assert state.find_duplicate(headers[-1]) is None
    assert state.find_duplicate(batch(12, 0, epoch=2)) is not None


def test_producer_with_an_open_transaction_cannot_write_non_transactional_records() -> None:
    state = with_batches(batch(0, 0, transactional=True))
    assert code_of(partial(state.admit, batch(1, 1))) is ErrorCode.INVALID_TXN_STATE
    assert state.admit(batch(1, 1, transactional=True)) is None
    state.update(marker(1), COMMIT)
    assert state.admit(batch(2, 1)) is None


def test_transaction_is_unstable_from_its_first_record_until_its_marker_is_replicated() -> None:
    state = ProducerStateManager()
    assert (state.first_unstable_offset, state.first_undecided_offset) == (None, None)
    state.update(batch(0, 0, transactional=True))
    state.update(batch(1, 0, transactional=True, producer=8))
    state.update(batch(2, 1, transactional=True))
    assert (state.first_unstable_offset, state.first_undecided_offset) == (0, 0)
    done = state.update(marker(3), ABORT)
    assert done == CompletedTxn(7, 0, 3, True)
    assert state.last_stable_offset_after(done) == 1
    assert (state.first_unstable_offset, state.first_undecided_offset) == (0, 1)
    state.on_high_watermark(3)
    assert state.first_unstable_offset == 0
    state.on_high_watermark(4)
    assert state.first_unstable_offset == 1
    other = state.update(marker(4, producer=8), COMMIT)
    assert other == CompletedTxn(8, 1, 4, False)
    assert state.last_stable_offset_after(other) == 5
    assert (state.first_unstable_offset, state.first_undecided_offset) == (1, None)
    state.on_log_start(5)
    assert unstable(state) is None
    state.on_log_start(2)
    assert state.map_end_offset == 5
    assert state.update(marker(6), COMMIT) is None, "a repeated marker ends nothing"


def test_marker_sets_the_epoch_timestamp_and_coordinator_epoch_of_its_producer() -> None:
    state = with_batches(batch(0, 0, transactional=True))
    state.update(marker(1, epoch=2, timestamp=2000), COMMIT)
    entry = state.get(7)
    assert entry is not None
    assert (entry.producer_epoch, entry.coordinator_epoch, entry.last_timestamp) == (2, 5, 2000)
    assert (entry.batches, entry.txn_first_offset) == ([], None)
    assert state.admit(batch(2, 0, epoch=2)) is None
    state.update(batch(2, 0, epoch=2))
    state.update(marker(3, epoch=2), COMMIT)
    assert len(entry.batches) == 1, "a marker of the same epoch keeps the batches"


@pytest.mark.parametrize(
    ("epoch", "version", "is_open", "code"),
    [
        pytest.param(0, 1, True, ErrorCode.INVALID_PRODUCER_EPOCH, id="an older epoch"),
        pytest.param(1, 1, True, ErrorCode.NONE, id="its epoch"),
        pytest.param(2, 1, True, ErrorCode.NONE, id="a newer epoch"),
        pytest.param(0, 2, True, ErrorCode.INVALID_PRODUCER_EPOCH, id="an older epoch, version 2"),
        pytest.param(1, 2, True, ErrorCode.INVALID_PRODUCER_EPOCH, id="its epoch, version 2"),
        pytest.param(1, 2, False, ErrorCode.NONE, id="a repeated marker, version 2"),
        pytest.param(2, 2, True, ErrorCode.NONE, id="the next epoch, version 2"),
    ],
)
def test_transaction_marker_with_an_ended_producer_epoch_is_refused(
    epoch: int, version: int, is_open: bool, code: ErrorCode
) -> None:
    state = with_batches(batch(0, 0, transactional=is_open))
    header = marker(1, epoch=epoch)
    found = code_of(partial(state.validate, header, COORDINATOR, marker=COMMIT, transaction_version=version))
    assert found is code
    replicated = partial(state.validate, header, REPLICATION, marker=COMMIT, transaction_version=version)
    assert code_of(replicated) is ErrorCode.NONE


def test_transaction_marker_of_an_older_coordinator_epoch_is_refused() -> None:
    state = with_batches(batch(0, 0, transactional=True, epoch=MAX_PRODUCER_EPOCH))
    header = marker(1, epoch=MAX_PRODUCER_EPOCH)
    assert code_of(partial(state.validate, header, COORDINATOR, marker=COMMIT, transaction_version=2)) is ErrorCode.NONE
    state.update(header, EndTxn(True, 6))
    for epoch, code in ((5, ErrorCode.TRANSACTION_COORDINATOR_FENCED), (6, ErrorCode.NONE), (7, ErrorCode.NONE)):
        assert code_of(partial(state.validate, header, COORDINATOR, marker=EndTxn(True, epoch))) is code
        assert code_of(partial(state.validate, header, CLIENT, marker=EndTxn(True, epoch))) is ErrorCode.NONE


def test_producer_expires_after_exactly_the_expiration_time_unless_its_transaction_is_open() -> None:
    state = with_batches(
        batch(0, 0, timestamp=1000),
        batch(1, 0, producer=8, timestamp=1001),
        batch(2, 0, producer=9, timestamp=1000, transactional=True),
        batch(3, 0, producer=10, timestamp=1000),
    )
    assert state.remove_expired(1499, 500) == 0
    assert state.remove_expired(1500, 500) == 2
    assert [entry.producer_id for entry in state] == [8, 9]
    assert len(state) == 2


def test_loading_a_producer_snapshot_restores_all_producers_except_expired_producers() -> None:
    state = with_batches(
        batch(0, 4, records=2, transactional=True, timestamp=100),
        batch(2, 0, producer=8, timestamp=1000),
        batch(3, 0, producer=9, timestamp=100),
        batch(4, 0, producer=6, transactional=True, timestamp=1000),
    )
    state.update(marker(5, producer=10, timestamp=1000), COMMIT)
    loaded = ProducerStateManager()
    loaded.update(batch(0, 0, producer=99))
    loaded.load(state.snapshot(), 6, 600, 500)
    assert [entry.producer_id for entry in loaded] == [7, 8, 6, 10]
    assert loaded.map_end_offset == 6
    assert [loaded.get(each) for each in (7, 8, 6, 10)] == [state.get(each) for each in (7, 8, 6, 10)]
    assert (loaded.first_unstable_offset, loaded.first_undecided_offset) == (0, 0)
    assert loaded.snapshot() == [each for each in state.snapshot() if each.producer_id != 9]
    loaded.update(marker(6), COMMIT)
    loaded.on_high_watermark(7)
    assert loaded.first_unstable_offset == 4
    loaded.update(marker(7, producer=6), COMMIT)  # not replicated yet
    loaded.load([], 0, 0, 0)
    assert (len(loaded), loaded.map_end_offset) == (0, 0)
    assert loaded.first_unstable_offset is None


def test_high_watermark_makes_every_completed_transaction_below_it_stable() -> None:
    state = with_batches(batch(0, 0, transactional=True), batch(1, 0, producer=8, transactional=True))
    state.update(marker(2), COMMIT)
    state.update(marker(3, producer=8), COMMIT)
    state.on_high_watermark(4)
    assert state.first_unstable_offset is None


def test_verified_transactional_batch_is_accepted_until_another_batch_or_marker_arrives() -> None:
    state = ProducerStateManager()
    pending = state.start_verification(7, 1, 3, supports_epoch_bump=False)
    assert pending is not None
    assert state.start_verification(7, 1, 2, supports_epoch_bump=False) is pending
    assert pending.lowest_sequence == 2
    assert state.start_verification(7, 1, 5, supports_epoch_bump=False) is pending
    assert pending.lowest_sequence == 2
    first = batch(0, 2, transactional=True)
    assert state.is_verified(first, pending)
    assert not state.is_verified(first, None)
    assert code_of(partial(state.admit, batch(0, 3, transactional=True))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.admit(first) is None
    newer = state.start_verification(7, 2, 0, supports_epoch_bump=False)
    assert newer is not None
    assert newer is not pending
    assert not state.is_verified(first, pending)
    state.end_verification(7, pending)
    assert state.is_admitted(7, 2, newer)
    state.end_verification(7, newer)
    assert not state.is_admitted(7, 2, newer)
    again = state.start_verification(7, 1, 2, supports_epoch_bump=False)
    state.update(first)
    assert state.has_ongoing_transaction(7, 1)
    assert not state.has_ongoing_transaction(7, 2)
    assert state.start_verification(7, 1, 3, supports_epoch_bump=False) is None
    state.update(marker(1), COMMIT)
    assert not state.is_admitted(7, 1, again)


def test_any_batch_or_marker_of_a_producer_ends_its_transaction_verification() -> None:
    for header, end in ((batch(0, 0), None), (marker(0), COMMIT)):
        state = ProducerStateManager()
        pending = state.start_verification(7, 1, 0, supports_epoch_bump=False)
        assert state.is_admitted(7, 1, pending)
        state.update(header, end)
        assert not state.is_admitted(7, 1, pending)


def test_transaction_verification_of_another_producer_epoch_replaces_the_pending_verification() -> None:
    state = ProducerStateManager()
    newer = state.start_verification(7, 2, 0, supports_epoch_bump=False)
    older = state.start_verification(7, 1, 0, supports_epoch_bump=False)
    assert older is not None
    assert older.producer_epoch == 1
    assert not state.is_admitted(7, 2, newer)
    assert code_of(partial(state.check_open, 7, 2, newer)) is ErrorCode.INVALID_TXN_STATE


def test_batch_is_refused_while_a_batch_with_a_lower_sequence_is_being_verified() -> None:
    state = with_batches(batch(0, 0, records=3))
    state.start_verification(7, 1, 2, supports_epoch_bump=False)
    assert code_of(partial(state.admit, batch(3, 3))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producer_with_a_new_epoch_per_transaction_must_begin_at_sequence_0() -> None:
    state = ProducerStateManager()
    state.start_verification(7, 1, 3, supports_epoch_bump=True)
    assert code_of(partial(state.admit, batch(0, 3, transactional=True))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.admit(batch(0, 0, transactional=True)) is None


def test_offsets_are_written_only_into_an_open_or_verified_transaction_of_the_current_epoch() -> None:
    state = with_batches(batch(0, 0, transactional=True))
    assert code_of(partial(state.check_open, 7, 1, None)) is ErrorCode.NONE
    assert code_of(partial(state.check_open, 7, 0, None)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(partial(state.check_open, 7, 2, None)) is ErrorCode.INVALID_TXN_STATE
    pending = state.start_verification(8, 1, 0, supports_epoch_bump=False)
    assert code_of(partial(state.check_open, 8, 1, pending)) is ErrorCode.NONE
    assert code_of(partial(state.check_open, 8, 1, None)) is ErrorCode.INVALID_TXN_STATE
    state.update(marker(1), COMMIT)
    assert code_of(partial(state.check_open, 7, 1, None)) is ErrorCode.INVALID_TXN_STATE
