"""Tests that index lookups return the same entries as a plain list, and that index files have Kafka's format."""

from __future__ import annotations

import struct
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_harness import batch, manager, new_log, produce

from penstock.disk.memory import MemoryDisk
from penstock.log import offset_index, time_index
from penstock.log.offset_index import OffsetIndex
from penstock.log.scan import CorruptBatchError
from penstock.log.time_index import TimeIndex
from penstock.log.txn_index import AbortedTransaction, parse_txn_index
from penstock.metadata.configs.topic import LogConfig

BASE = 1000


@st.composite
def ascending(draw: st.DrawFn) -> list[tuple[int, int]]:
    steps = draw(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=60))
    entries, offset, position = [], BASE - 1, 0
    for more_offset, more_position in steps:
        offset, position = offset + more_offset, position + more_position
        entries.append((offset, position))
    return entries


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets spill and block sizes so small that a few entries exceed them."""
    monkeypatch.setattr(offset_index, "SPILL_ENTRIES", 7)
    monkeypatch.setattr(offset_index, "BLOCK", 4)
    monkeypatch.setattr(time_index, "SPILL_ENTRIES", 7)


def filled(disk: MemoryDisk, entries: list[tuple[int, int]]) -> OffsetIndex:
    index = OffsetIndex(disk, "/index", BASE)
    for offset, position in entries:
        index.append(offset, position)
    return index


@given(ascending(), st.integers(BASE - 5, BASE + 3000))
def test_a_lookup_returns_the_last_entry_at_or_below_the_offset(entries: list[tuple[int, int]], wanted: int) -> None:
    disk = MemoryDisk()
    index = filled(disk, entries)
    slot = bisect_right([offset for offset, _ in entries], wanted) - 1
    expected = entries[slot][1] if slot >= 0 else 0
    assert index.lookup(wanted) == expected
    assert index.entries() == entries
    later = (entries[-1][0] if entries else BASE) + 1
    for step in range(20):
        index.append(later + step, (1 << 30) + step)
        assert index.lookup(later + step) == (1 << 30) + step
        assert index.lookup(min(wanted, later - 1)) == (
            expected if wanted < later else entries[-1][1] if entries else 0
        )
    index.truncate_to(later)
    index.store()
    reopened = OffsetIndex(disk, "/index", BASE)
    assert reopened.lookup(wanted) == expected
    assert reopened.entries() == entries
    assert reopened.last == (entries[-1] if entries else None)


@given(ascending(), st.integers(BASE - 5, BASE + 3000))
def test_truncation_drops_entries_at_or_above_the_given_offset(entries: list[tuple[int, int]], cut: int) -> None:
    index = filled(MemoryDisk(), entries)
    index.truncate_to(cut)
    kept = [entry for entry in entries if entry[0] < cut]
    assert index.entries() == kept
    index.append(BASE + 100_000, 1 << 30)
    assert index.entries() == [*kept, (BASE + 100_000, 1 << 30)]


def test_the_offset_index_consists_of_pairs_of_big_endian_int32() -> None:
    disk = MemoryDisk()
    index = filled(disk, [(BASE + 3, 4100), (BASE + 9, 8300)])
    index.store()
    assert disk.read_bytes("/index") == struct.pack(">iiii", 3, 4100, 9, 8300)


@pytest.mark.parametrize(
    ("data", "log_size", "sane"),
    [
        (b"", 0, True),
        (struct.pack(">ii", 0, 0), 100, True),
        (struct.pack(">iiii", 3, 10, 5, 90), 100, True),
        (struct.pack(">iiii", 3, 10, 5, 100), 100, False),
        (struct.pack(">iiii", 9, 10, 5, 90), 100, False),
        (struct.pack(">ii", -1, 10), 100, False),
    ],
)
def test_sanity_check_of_an_index_finds_entries_that_do_not_fit_its_log(data: bytes, log_size: int, sane: bool) -> None:
    disk = MemoryDisk()
    disk.write_new("/index", data)
    assert OffsetIndex(disk, "/index", BASE).is_sane(log_size) is sane


def test_bytes_that_a_crash_left_after_the_last_good_index_entry_are_removed() -> None:
    disk = MemoryDisk()
    disk.write_new("/index", struct.pack(">iiiiii", 3, 10, 5, 90, 0, 0) + b"\1\2\3")
    index = OffsetIndex(disk, "/index", BASE)
    index.truncate_to(BASE + 100)
    index.append(BASE + 200, 500)
    index.store()
    assert disk.read_bytes("/index") == struct.pack(">iiiiii", 3, 10, 5, 90, 200, 500)


def test_zeros_that_a_crash_left_in_an_index_file_are_not_read_as_entries() -> None:
    disk = MemoryDisk()
    disk.write_new("/index", bytes(16) + struct.pack(">ii", 200, 900))
    index = OffsetIndex(disk, "/index", BASE)
    index.truncate_to(BASE + 100)
    assert index.entries() == []
    disk.write_new("/time", bytes(24) + struct.pack(">qi", 5000, 200))
    times = TimeIndex(disk, "/time", BASE)
    times.truncate_to(BASE + 100)
    assert times.entries() == []


@st.composite
def moments(draw: st.DrawFn) -> list[tuple[int, int]]:
    steps = draw(st.lists(st.tuples(st.integers(-20, 50), st.integers(1, 20)), max_size=60))
    entries, timestamp, offset = [], 1000, BASE - 1
    for more_time, more_offset in steps:
        timestamp, offset = timestamp + more_time, offset + more_offset
        entries.append((timestamp, offset))
    return entries


@given(moments(), st.integers(900, 4000))
def test_time_index_keeps_only_rising_timestamps_and_returns_the_last_entry_at_or_below_a_time(
    offered: list[tuple[int, int]], wanted: int
) -> None:
    disk = MemoryDisk()
    index = TimeIndex(disk, "/time", BASE)
    kept: list[tuple[int, int]] = []
    for timestamp, offset in offered:
        index.maybe_append(timestamp, offset)
        if not kept or timestamp > kept[-1][0]:
            kept.append((timestamp, offset))
    assert index.entries() == kept
    below = [offset for timestamp, offset in kept if timestamp <= wanted]
    assert index.lookup(wanted) == (below[-1] if below else BASE)
    index.store()
    reopened = TimeIndex(disk, "/time", BASE)
    assert reopened.lookup(wanted) == index.lookup(wanted)
    assert reopened.last == (kept[-1] if kept else (-1, BASE))
    assert reopened.is_sane()


@given(moments(), st.integers(BASE, BASE + 1300))
def test_a_time_index_is_truncated_at_an_offset_and_then_accepts_new_entries(
    offered: list[tuple[int, int]], cut: int
) -> None:
    index = TimeIndex(MemoryDisk(), "/time", BASE)
    for timestamp, offset in offered:
        index.maybe_append(timestamp, offset)
    kept = [entry for entry in index.entries() if entry[1] < cut]
    index.truncate_to(cut)
    assert index.entries() == kept
    index.maybe_append(100_000, cut)
    assert index.entries() == [*kept, (100_000, cut)]


def test_the_time_index_consists_of_pairs_of_int64_and_int32() -> None:
    disk = MemoryDisk()
    index = TimeIndex(disk, "/time", BASE)
    index.maybe_append(1_700_000_000_000, BASE + 4)
    index.store()
    assert disk.read_bytes("/time") == struct.pack(">qi", 1_700_000_000_000, 4)


def test_an_entry_of_the_transaction_index_has_34_bytes() -> None:
    aborted = [AbortedTransaction(7, 1010, 1020, 1021), AbortedTransaction(8, 1011, 1022, 1023)]
    data = b"".join(each.pack() for each in aborted)
    assert len(data) == 68
    assert data[:2] == b"\0\0"
    assert parse_txn_index(BASE, data) == aborted
    assert parse_txn_index(BASE, data[:-1]) is None
    assert parse_txn_index(2000, data) is None


def test_a_damaged_offset_beyond_the_segment_is_reported_when_indexes_are_rebuilt() -> None:
    disk = MemoryDisk()
    log = new_log(LogConfig(index_interval_bytes=1), manager(disk))
    for _ in range(4):
        produce(log)
    segment = log.segments.active
    disk.inode(segment.file.path).data[len(batch()) * 2 + 2] ^= 0x40  # a bit of a batch's base offset
    with pytest.raises(CorruptBatchError, match="too large for the segment"):
        segment.rebuild_indexes()
