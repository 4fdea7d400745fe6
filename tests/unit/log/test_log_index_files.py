"""Tests the files of indexes and producer snapshots: damaged files, the order of steps, and what an error leaves."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import product

import pytest

from penstock.disk.memory import MemoryDisk
from penstock.log import offset_index, time_index
from penstock.log.offset_index import OffsetIndex
from penstock.log.producers import ProducerStateManager
from penstock.log.snapshot_files import SnapshotFiles
from penstock.log.time_index import TimeIndex
from penstock.log.txn_index import AbortedTransaction, parse_txn_index, read_txn_index

BASE = 1000
Pairs = tuple[tuple[int, int], ...]


def files_of(values: range, others: range) -> Iterator[Pairs]:
    """Yields all short lists of entries, in order or not."""
    entries = list(product(values, others))
    for length in range(3):
        yield from product(entries, repeat=length)


def test_truncating_an_offset_index_keeps_the_leading_entries_that_are_in_order_and_below_the_offset() -> None:
    for entries in files_of(range(-1, 3), range(3)):
        for cut in range(4):
            disk = MemoryDisk()
            disk.write_new("/index", b"".join(struct.pack(">ii", *entry) for entry in entries) + b"torn")
            index = OffsetIndex(disk, "/index", BASE)
            index.truncate_to(BASE + cut)
            kept: list[tuple[int, int]] = []
            for offset, position in entries:
                before = kept[-1] if kept else (-1, 0)
                if not (before[0] < offset < cut and before[1] < position):
                    break
                kept.append((offset, position))
            assert index.entries() == [(BASE + offset, position) for offset, position in kept]
            index.append(BASE + 9, 99)
            index.store()
            expected = [*kept, (9, 99)]
            assert disk.read_bytes("/index") == b"".join(struct.pack(">ii", *entry) for entry in expected)


def test_truncating_a_time_index_keeps_the_leading_entries_that_are_in_order_and_below_the_offset() -> None:
    for entries in files_of(range(3), range(-1, 3)):
        for cut in range(4):
            disk = MemoryDisk()
            disk.write_new("/time", b"".join(struct.pack(">qi", *entry) for entry in entries) + b"torn")
            index = TimeIndex(disk, "/time", BASE)
            index.truncate_to(BASE + cut)
            kept: list[tuple[int, int]] = []
            for timestamp, offset in entries:
                before = kept[-1] if kept else (0, -1)
                if not (before[0] < timestamp and before[1] <= offset < cut):
                    break
                kept.append((timestamp, offset))
            assert index.entries() == [(timestamp, BASE + offset) for timestamp, offset in kept]
            index.maybe_append(9, BASE + 9)
            index.store()
            expected = [*kept, (9, 9)]
            assert disk.read_bytes("/time") == b"".join(struct.pack(">qi", *entry) for entry in expected)


def test_offset_index_is_sane_if_its_first_and_last_entry_are_in_order_and_inside_the_log() -> None:
    for entries in files_of(range(-1, 2), range(-1, 3)):
        disk = MemoryDisk()
        disk.write_new("/index", b"".join(struct.pack(">ii", *entry) for entry in entries))
        in_order = len(entries) < 2 or entries[0] < entries[-1]
        inside = all(offset >= 0 and position >= 0 for offset, position in entries) and (
            not entries or entries[-1][1] < 2
        )
        assert OffsetIndex(disk, "/index", BASE).is_sane(2) is (in_order and inside)


def test_time_index_is_sane_if_its_first_and_last_entry_are_in_order() -> None:
    for entries in files_of(range(2), range(-1, 2)):
        disk = MemoryDisk()
        disk.write_new("/time", b"".join(struct.pack(">qi", *entry) for entry in entries))
        sane = not entries or (
            entries[0][1] >= 0
            and (len(entries) == 1 or (entries[0][0] < entries[1][0] and entries[0][1] <= entries[1][1]))
        )
        assert TimeIndex(disk, "/time", BASE).is_sane() is sane


@pytest.mark.parametrize("kind", ["offset", "time"])
def test_index_entries_stay_in_memory_if_they_cannot_be_written(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (offset_index, time_index):
        monkeypatch.setattr(module, "SPILL_ENTRIES", 3)
    disk = MemoryDisk()
    offset_entries, time_entries = OffsetIndex(disk, "/index", BASE), TimeIndex(disk, "/index", BASE)
    index: OffsetIndex | TimeIndex = offset_entries if kind == "offset" else time_entries

    def add(number: int) -> None:
        if kind == "offset":
            offset_entries.append(BASE + number, number)
        else:
            time_entries.maybe_append(number, BASE + number)

    def refuse(operation: str, path: str) -> None:
        raise OSError(28, "no space")

    disk.on_write = refuse
    for number in range(1, 6):
        add(number)
        assert len(index.entries()) == number
    with pytest.raises(OSError, match="no space"):
        index.store()
    disk.on_write = None
    before = index.entries()
    add(6)
    assert index.file.stored == 6, "the next spill writes all entries"
    assert index.entries()[:5] == before
    index.clear()
    assert (index.entries(), len(index), disk.size("/index")) == ([], 0, 0)
    add(7)
    index.store()
    reopened = type(index)(disk, "/index", BASE)
    assert reopened.entries() == index.entries()
    assert len(reopened) == 1


def test_removed_index_entries_do_not_come_back_after_a_power_loss() -> None:
    disk = MemoryDisk(crashable=True)
    index = OffsetIndex(disk, "/index", BASE)
    for number in range(1, 4):
        index.append(BASE + number, number)
    index.store()
    disk.sync_file("/index")
    order: list[str] = []
    disk.on_write = lambda operation, path: order.append(operation)
    index.truncate_to(BASE + 2)
    assert (order, disk.inode("/index").pending) == (["truncate", "sync"], [])
    index.truncate_to(BASE + 2)
    assert order == ["truncate", "sync"], "nothing is left to remove"


def test_index_file_that_cannot_be_examined_is_not_taken_for_a_missing_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(disk: MemoryDisk, path: str) -> int:
        raise OSError(5, "unreadable")

    monkeypatch.setattr(MemoryDisk, "size", failing)
    with pytest.raises(OSError, match="unreadable"):
        OffsetIndex(MemoryDisk(), "/index", BASE)


def test_transaction_index_is_read_up_to_the_first_entry_that_is_out_of_order() -> None:
    good = AbortedTransaction(1, BASE - 5, BASE, BASE + 1)
    for first, last, version in product(range(-2, 4), range(-1, 4), (0, 1)):
        entry = AbortedTransaction(2, BASE + first, BASE + last, BASE + last + 1)
        packed = struct.pack(">h", version) + entry.pack()[2:]
        alone = [entry] if last > first and last >= 0 and not version else []
        assert read_txn_index(BASE, packed) == alone
        after = [good, entry] if last > max(first, 0) and not version else [good]
        assert read_txn_index(BASE, good.pack() + packed) == after
        whole = [good, entry] if last >= 0 and not version else None
        assert parse_txn_index(BASE, good.pack() + packed) == whole


# Producer snapshots.


def snapshots(disk: MemoryDisk, offsets: tuple[int, ...]) -> SnapshotFiles:
    files = SnapshotFiles(disk, "/log", [])
    producers = ProducerStateManager()
    disk.mkdir("/log")
    for offset in offsets:
        producers.map_end_offset = offset
        assert files.take(producers) == files.path(offset)
        assert files.take(producers) is None, "a snapshot at this offset exists"
        producers.map_end_offset = offset - 1
        assert files.take(producers) is None, "a later snapshot exists"
    return files


def stored(disk: MemoryDisk) -> list[int]:
    return sorted(int(name.partition(".")[0]) for name in disk.listdir("/log"))


def test_snapshots_above_an_offset_are_removed() -> None:
    for offset in range(-1, 9):
        disk = MemoryDisk()
        files = snapshots(disk, (2, 4, 5, 7))
        kept = [each for each in (2, 4, 5, 7) if each <= offset]
        assert files.remove_above(offset) is (len(kept) < 4)
        assert files.offsets == stored(disk) == kept
    assert not SnapshotFiles(MemoryDisk(), "/log", []).remove_above(0)


def test_all_snapshots_can_be_removed_also_after_the_directory_of_the_log_was_renamed() -> None:
    for renamed in (False, True):
        disk = MemoryDisk()
        files = snapshots(disk, (2, 4))
        if renamed:
            disk.rename("/log", "/renamed")
            files.moved_to("/renamed")
        producers = ProducerStateManager()
        producers.map_end_offset = 6
        path = "/renamed" if renamed else "/log"
        assert files.take(producers) == f"{path}/{6:020d}.snapshot"
        assert len(disk.listdir(path)) == 3
        files.remove_all()
        assert (files.offsets, disk.listdir(path)) == ([], [])


def test_newest_valid_snapshot_inside_the_log_is_loaded() -> None:
    for start, end, damaged in product(range(2, 8), range(2, 9), (None, 4, 7)):
        if end < start:
            continue
        disk = MemoryDisk()
        files = snapshots(disk, (2, 4, 7))
        if damaged is not None:
            disk.write_new(files.path(damaged), b"damaged")
        usable = [each for each in (2, 4, 7) if start <= each <= end and each != damaged]
        producers = ProducerStateManager()
        loaded = files.load_latest(producers, start, end, 0, 1000)
        assert loaded == (usable[-1] if usable else None)
        assert producers.map_end_offset == (loaded if loaded is not None else start)
        below = [each for each in (2, 4, 7) if each < start]
        assert (
            files.offsets == stored(disk) == ([each for each in (2, 4, 7) if each <= usable[-1]] if usable else below)
        )


def test_only_the_newest_snapshot_and_snapshots_at_segment_starts_are_kept() -> None:
    disk = MemoryDisk()
    files = snapshots(disk, (2, 3, 4, 5, 7, 8))
    files.keep_only([0, 3, 5])
    assert files.offsets == stored(disk) == [3, 5, 8]


def test_retaken_snapshot_replaces_a_snapshot_at_the_same_offset_and_is_not_written_below_the_newest() -> None:
    disk = MemoryDisk()
    files = snapshots(disk, (2, 4))
    producers = ProducerStateManager()
    for offset, path in ((3, None), (4, files.path(4)), (6, files.path(6))):
        producers.map_end_offset = offset
        assert files.retake(producers) == path
    assert files.offsets == stored(disk) == [2, 4, 6]
    none = SnapshotFiles(disk, "/log", [])
    assert none.retake(producers) is None, "the log never had a producer"
