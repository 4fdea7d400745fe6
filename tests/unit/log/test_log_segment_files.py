"""Tests the files of one segment: their names, their order, what is durable, and what stays after an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from log_harness import finish
from segment_harness import BASE, LONG, PATH, Kind, append, check, filled, reopened

from penstock.disk.memory import MemoryDisk
from penstock.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    segment_path,
)
from penstock.log.txn_index import AbortedTransaction
from penstock.records.header import parse_header


def aborted(first: int, last: int) -> AbortedTransaction:
    return AbortedTransaction(7, BASE + first, BASE + last, BASE + last + 1)


def test_truncation_keeps_the_aborted_transactions_whose_markers_stay() -> None:
    entries = [aborted(0, 1), aborted(2, 3), aborted(4, 5)]
    for cut in range(BASE + 1, BASE + 8):
        segment, _ = filled(((0, 1, 10),) * 6)
        for each in entries:
            segment.append_aborted(each)
        segment.truncate_to(cut)
        kept = [each for each in entries if each.last_offset < cut]
        assert (segment.aborted, segment.has_aborted) == (kept, bool(kept))
        assert segment.disk.exists(segment.path(TXN_INDEX_SUFFIX)) is bool(kept)
        if kept:
            assert Segment(segment.disk, PATH, BASE, size=segment.size, has_aborted=True).aborted == kept


def test_transaction_index_of_a_restarted_process_continues_the_entries_of_the_file() -> None:
    segment, _ = filled(((0, 1, 10),) * 6)
    segment.append_aborted(aborted(0, 1))
    again = Segment(segment.disk, PATH, BASE, size=segment.size, has_aborted=True)
    again.append_aborted(aborted(2, 3))
    last = Segment(segment.disk, PATH, BASE, size=segment.size, has_aborted=True)
    assert again.aborted == last.aborted == [aborted(0, 1), aborted(2, 3)]


def test_renamed_and_moved_segment_writes_its_indexes_under_its_present_name() -> None:
    disk = MemoryDisk()
    segment, model = filled(LONG, disk)
    segment.change_suffix(".swap")
    disk.rename(PATH, "/other")
    disk.mkdir(PATH)
    segment.moved_to("/other")
    segment.store_indexes()
    names = {f"{BASE:020d}{suffix}.swap" for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)}
    assert (set(disk.listdir("/other")), disk.listdir(PATH)) == (names, [])
    assert segment.file.path == segment_path("/other", BASE, LOG_SUFFIX) + ".swap"
    assert segment.index.file.path == segment_path("/other", BASE, INDEX_SUFFIX) + ".swap"
    assert segment.time_index.file.path == segment_path("/other", BASE, TIME_INDEX_SUFFIX) + ".swap"
    append(segment, model, (0, 1, 50))
    segment.seal()
    assert (set(disk.listdir("/other")), disk.listdir(PATH)) == (names, [])


@pytest.mark.parametrize("suffix", [".swap", ".deleted", ""])
def test_data_file_of_a_segment_is_renamed_before_its_indexes_only_if_the_segment_is_deleted(suffix: str) -> None:
    disk = MemoryDisk()
    segment, _ = filled(LONG, disk)
    segment.seal()
    segment.append_aborted(aborted(0, 1))
    segment.change_suffix(".cleaned")
    renamed: list[str] = []
    disk.on_write = lambda operation, path: renamed.append(path.removesuffix(".cleaned").rpartition("0")[2])
    segment.change_suffix(suffix)
    assert renamed == (list(SUFFIXES) if suffix == ".deleted" else list(SUFFIXES)[::-1])
    assert set(disk.listdir(PATH)) == {f"{BASE:020d}{each}{suffix}" for each in SUFFIXES}


def test_sync_of_a_finished_segment_makes_all_its_files_durable() -> None:
    disk = MemoryDisk(crashable=True)
    segment, _ = filled(LONG, disk)
    segment.append_aborted(aborted(0, 1))
    segment.seal()
    assert all(disk.inode(segment.path(suffix)).pending for suffix in SUFFIXES)
    segment.sync_files()
    assert not any(disk.inode(segment.path(suffix)).pending for suffix in SUFFIXES)
    assert segment.synced_size == segment.size


def test_removed_segment_leaves_no_file_and_no_open_handle() -> None:
    disk = MemoryDisk()
    segment, _ = filled(LONG, disk)
    segment.append_aborted(aborted(0, 1))
    segment.seal()
    segment.remove_files()
    assert disk.listdir(PATH) == []
    assert segment.file.size == 0, "a handle that is still open would keep the bytes"


def test_truncation_of_a_segment_is_durable_when_it_returns() -> None:
    disk = MemoryDisk(crashable=True)
    segment, model = filled(LONG, disk)
    segment.seal()
    segment.sync_files()
    segment.truncate_to(BASE + 6)
    for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        assert not disk.inode(segment.path(suffix)).pending
    assert segment.synced_size == segment.size < model.size


def writes(segment: Segment, data: bytes) -> list[Callable[[], object]]:
    """Returns the three ways to append a batch to a segment."""
    header = parse_header(data)
    return [
        lambda: segment.append(header, data[:61], data[61:]),
        lambda: segment.append_many([header], [data]),
        lambda: finish(segment.append_many_later([header], data)),
    ]


def refuse(operation: str, path: str) -> None:
    raise OSError(28, "no space")


@pytest.mark.parametrize("history", [LONG[:1], LONG])
def test_failed_write_leaves_the_segment_unchanged(history: tuple[Kind, ...]) -> None:
    disk = MemoryDisk()
    segment, model = filled(history, disk)
    disk.on_write = refuse
    for write in writes(segment, model.next_batch((0, 1, 99))):
        with pytest.raises(OSError, match="no space"):
            write()
        check(segment, model)


def test_segment_whose_indexes_cannot_be_opened_accepts_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    segment, model = filled(LONG)
    segment.seal()
    again = reopened(segment)

    def failing(disk: MemoryDisk, path: str) -> int:
        raise OSError(5, "unreadable")

    monkeypatch.setattr(MemoryDisk, "size", failing)
    for write in writes(again, model.next_batch((0, 1, 99))):
        with pytest.raises(OSError, match="unreadable"):
            write()
    assert again.file.size == again.size == model.size
