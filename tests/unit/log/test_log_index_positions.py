"""Tests look-ups in the offset index by position: the first offset after a range of bytes."""

from __future__ import annotations

import pytest

from penstock.disk.memory import MemoryDisk
from penstock.log.offset_index import OffsetIndex


@pytest.mark.parametrize("stored", [0, 1, 2, 3])
def test_the_first_index_entry_at_or_after_a_position_is_found_in_file_and_memory(stored: int) -> None:
    disk = MemoryDisk()
    disk.mkdir("/log")
    index = OffsetIndex(disk, "/log/00000000000000000100.index", 100, new=True)
    for number, (offset, position) in enumerate([(110, 50), (120, 90), (130, 200)], start=1):
        index.append(offset, position)
        if number == stored:
            index.store()
    asked = (0, 50, 51, 90, 200, 201)
    assert [index.first_past(position) for position in asked] == [110, 110, 120, 120, 130, None]


def test_an_empty_index_has_no_entry_after_any_position() -> None:
    disk = MemoryDisk()
    disk.mkdir("/log")
    assert OffsetIndex(disk, "/log/00000000000000000000.index", 0, new=True).first_past(0) is None
