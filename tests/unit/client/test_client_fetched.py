"""Tests which batches of a fetch are visible to a reader."""

import pytest

from penstock.client.fetched import Fetched, visible_batches
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_01_fetch import AbortedTransaction
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn


def data(offset: int, *values: bytes, producer: int = -1) -> bytes:
    records = [(1000 + index, None, value, ()) for index, value in enumerate(values)]
    if producer < 0:
        return build_batch(records, base_offset=offset)
    return build_batch(
        records, base_offset=offset, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
    )


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    return build_end_txn(EndTxn(commit, 0), producer_id=producer, producer_epoch=0, timestamp=2000, base_offset=offset)


def aborted(*transactions: tuple[int, int]) -> list[AbortedTransaction]:
    return [AbortedTransaction(producer_id=producer, first_offset=first) for producer, first in transactions]


def offsets(log: list[bytes], start: int = 0, transactions: list[AbortedTransaction] | None = None) -> list[int]:
    batches, _ = visible_batches(memoryview(b"".join(log)), start, aborted=transactions)
    return [header.base_offset for header, _ in batches]


def test_consumer_position_advances_past_control_batches_which_are_not_returned() -> None:
    log = [data(0, b"a", producer=7), marker(1, 7, commit=True)]
    batches, next_offset = visible_batches(memoryview(b"".join(log)), 0)
    assert [header.base_offset for header, _ in batches] == [0]
    assert next_offset == 2


def test_records_of_an_aborted_transaction_are_dropped_from_its_first_offset_to_its_marker() -> None:
    log = [
        data(0, b"committed", producer=7),
        marker(1, 7, commit=True),
        data(2, b"dropped", producer=7),
        data(3, b"plain"),
        data(4, b"other", producer=8),
        data(5, b"dropped too", producer=7),
        marker(6, 7, commit=False),
        data(7, b"kept again", producer=7),
        marker(8, 7, commit=True),
        marker(9, 8, commit=True),
    ]
    assert offsets(log, 0, aborted((7, 2))) == [0, 3, 4, 7]
    assert offsets(log, 0, None) == [0, 2, 3, 4, 5, 7]


def test_consumer_drops_only_the_aborted_records_of_two_producers_with_interleaved_transactions() -> None:
    log = [
        data(0, b"x", producer=1),
        data(1, b"x", producer=2),
        marker(2, 1, commit=False),
        data(3, b"y", producer=1),
        data(4, b"x", producer=2),
        marker(5, 2, commit=False),
        marker(6, 1, commit=True),
    ]
    assert offsets(log, 0, aborted((2, 1), (1, 0))) == [3]


def test_incomplete_last_batch_of_a_fetch_is_left_for_the_next_fetch() -> None:
    whole, cut = data(0, b"a"), data(1, b"b")
    batches, next_offset = visible_batches(memoryview(whole + cut[:-1]), 0)
    assert len(batches) == 1
    assert next_offset == 1


def test_fetched_batch_with_a_wrong_checksum_raises_an_error() -> None:
    damaged = bytearray(data(0, b"abcdef"))
    damaged[-2] ^= 1
    with pytest.raises(KafkaError, match="offset 0 came damaged"):
        visible_batches(memoryview(damaged), 0)
    assert visible_batches(memoryview(damaged), 0, check_crc=False)[1] == 1


def test_records_before_the_fetch_offset_are_left_out() -> None:
    batches, next_offset = visible_batches(memoryview(data(10, b"a", b"b", b"c")), 11)
    got = Fetched("t", 0, 11, next_offset, 13, 13, 0, batches)
    assert [record.value for record in got.records()] == [b"b", b"c"]
    assert next_offset == 13
