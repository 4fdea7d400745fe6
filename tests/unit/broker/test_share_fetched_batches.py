"""Tests the batches of fetched bytes: offsets, markers, aborted transactions, and the bytes that a member gets."""

from __future__ import annotations

from penstock.broker.share.fetched_batches import FetchedBatches
from penstock.log.txn_index import AbortedTransaction
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn
from penstock.records.header import parse_header
from penstock.share.states import Acquired, FetchedBatch


def placed(batch: bytes, offset: int) -> bytes:
    """Returns the batch with another base offset, which is not covered by the batch's checksum."""
    return offset.to_bytes(8, "big") + batch[8:]


def data(count: int, offset: int, producer_id: int = -1) -> bytes:
    records = [(0, None, b"v", ()) for _ in range(count)]
    if producer_id < 0:
        return placed(build_batch(records), offset)
    return placed(
        build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True), offset
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    built = build_end_txn(EndTxn(commit, 0), producer_id=producer_id, producer_epoch=0, timestamp=0)
    return placed(built, offset)


LOG = (
    data(2, 0) + data(2, 2, 7) + data(2, 4, 8) + marker(6, 7, commit=False) + marker(7, 8, commit=True) + data(1, 8, 7)
)


def test_transaction_markers_are_not_deliverable_to_a_share_group() -> None:
    assert list(FetchedBatches(LOG)) == [
        FetchedBatch(0, 1),
        FetchedBatch(2, 3),
        FetchedBatch(4, 5),
        FetchedBatch(6, 6, deliverable=False),
        FetchedBatch(7, 7, deliverable=False),
        FetchedBatch(8, 8),
    ]


def test_batches_of_an_aborted_transaction_are_not_deliverable_until_its_marker() -> None:
    aborted = [AbortedTransaction(producer_id=7, first_offset=2, last_offset=6, last_stable_offset=6)]
    kinds = [(batch.first, batch.deliverable) for batch in FetchedBatches(LOG, aborted)]
    assert kinds == [(0, True), (2, False), (4, True), (6, False), (7, False), (8, True)]


def test_share_member_gets_the_batches_from_its_first_to_its_last_acquired_record() -> None:
    batches = FetchedBatches(LOG)
    list(batches)
    cut = batches.cut([Acquired(3, 3, 1), Acquired(4, 4, 2)])
    assert parse_header(cut).base_offset == 2
    assert bytes(cut) == data(2, 2, 7) + data(2, 4, 8)


def test_share_member_does_not_get_a_batch_that_the_byte_limit_has_cut() -> None:
    assert [batch.first for batch in FetchedBatches((data(1, 0) + data(1, 1))[:-1])] == [0]
