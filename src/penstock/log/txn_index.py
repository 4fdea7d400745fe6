"""Implements the transaction index of a segment: it lists the aborted transactions whose markers are in the segment.

An entry has 34 bytes. The index is often empty.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = ENTRY.size
VERSION = 0


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def pack(self) -> bytes:
        return ENTRY.pack(VERSION, *self)


def parse_txn_index(base_offset: int, data: bytes) -> list[AbortedTransaction] | None:
    """Parses a transaction index. Returns None if an entry is incomplete or impossible."""
    if len(data) % ENTRY_SIZE:
        return None
    found: list[AbortedTransaction] = []
    for version, *fields in ENTRY.iter_unpack(data):
        aborted = AbortedTransaction(*fields)
        if version > VERSION or aborted.last_offset < base_offset:
            return None
        found.append(aborted)
    return found


def read_txn_index(base_offset: int, data: bytes) -> list[AbortedTransaction]:
    """Returns the entries before the first impossible entry. After a crash, any bytes may follow the last valid entry.

    The marker of a valid entry is above the first record of its transaction, and above the marker of the previous
    entry.
    """
    found: list[AbortedTransaction] = []
    last_offset = base_offset - 1
    whole = len(data) // ENTRY_SIZE * ENTRY_SIZE
    for version, *fields in ENTRY.iter_unpack(memoryview(data)[:whole]):
        aborted = AbortedTransaction(*fields)
        if version > VERSION or aborted.last_offset <= max(last_offset, aborted.first_offset):
            break
        found.append(aborted)
        last_offset = aborted.last_offset
    return found
