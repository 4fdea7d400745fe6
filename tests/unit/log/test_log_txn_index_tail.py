"""Tests a transaction index after a crash.

Entries before the first impossible entry are kept, and all later entries are rebuilt from the log.
"""

import pytest

from penstock.log.txn_index import ENTRY, AbortedTransaction, read_txn_index

WHOLE = [AbortedTransaction(7, 100, 105, 106), AbortedTransaction(8, 103, 110, 111)]
DATA = b"".join(entry.pack() for entry in WHOLE)


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        ENTRY.pack(0, 9, 120, 130, 131)[:20],
        ENTRY.pack(0, 9, 0, 0, 0),
        bytes(ENTRY.size),
        bytes(3 * ENTRY.size + 1),
        ENTRY.pack(0, 9, 120, 108, 121),
        ENTRY.pack(0, 9, 130, 120, 121),
        ENTRY.pack(1, 9, 120, 130, 131),
    ],
    ids=[
        "nothing",
        "half",
        "zeros after the id",
        "zeros",
        "more zeros",
        "an earlier end",
        "end before start",
        "version",
    ],
)
def test_incomplete_bytes_at_the_end_of_a_transaction_index_are_ignored(tail: bytes) -> None:
    assert read_txn_index(100, DATA + tail) == WHOLE


def test_transaction_index_entries_after_an_impossible_entry_are_ignored() -> None:
    later = AbortedTransaction(9, 120, 130, 131).pack()
    assert read_txn_index(100, DATA + bytes(ENTRY.size) + later) == WHOLE


def test_transaction_index_entry_of_a_transaction_from_an_earlier_segment_is_valid() -> None:
    entry = AbortedTransaction(7, 3, 105, 4)
    assert read_txn_index(100, entry.pack()) == [entry]
