"""Compares a segment with a plain list of its batches, for all short histories of appends, truncations and restarts."""

from __future__ import annotations

import struct
from itertools import product

import pytest
from log_harness import finish
from segment_harness import BASE, HISTORIES, KINDS, LONG, Model, append, check, empty, filled, reopened

from penstock.disk.memory import MemoryDisk
from penstock.log import segment as segments
from penstock.log.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX, Segment


@pytest.fixture(autouse=True)
def short_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the segment forget positions of batches after four of them."""
    monkeypatch.setattr(segments, "TAIL_BATCHES", 4)


def test_segment_finds_every_batch_by_its_offsets_after_each_append() -> None:
    for history in HISTORIES:
        segment, model = empty(), Model()
        check(segment, model)
        for kind in history:
            append(segment, model, kind)
            check(segment, model)


@pytest.mark.parametrize("later", [False, True])
def test_batches_that_are_written_together_are_found_like_batches_that_are_written_one_by_one(later: bool) -> None:
    for history in HISTORIES:
        segment, model = filled(history)
        together, data = empty(), bytes(segment.file.pread(segment.size, 0))
        headers = [header for _, header in model.batches]
        if later:
            finish(together.append_many_later(headers, data))
        else:
            together.append_many(headers, [data])
        check(together, model)


def test_truncated_segment_has_only_the_batches_below_the_offset_and_accepts_new_batches() -> None:
    for history in (*HISTORIES[:21], LONG):
        for cut in range(BASE, filled(history)[1].end + 2):
            for stored in (False, True):
                segment, model = filled(history)
                if stored:
                    segment.store_indexes()
                    model.add_time()
                segment.truncate_to(cut)
                model.cut(cut)
                check(segment, model)
                for kind in KINDS:
                    append(segment, model, kind)
                check(segment, model)


@pytest.mark.parametrize("lost", [(), (INDEX_SUFFIX,), (TIME_INDEX_SUFFIX,), (INDEX_SUFFIX, TIME_INDEX_SUFFIX)])
def test_restarted_process_finds_the_batches_of_a_sealed_segment_even_if_an_index_file_is_missing(
    lost: tuple[str, ...],
) -> None:
    for history in HISTORIES:
        segment, model = filled(history)
        segment.seal()
        check_entries = Model(list(model.batches), list(model.entries), list(model.times), model.size)
        if not lost:
            check_entries.add_time()
        for suffix in lost:
            segment.disk.remove(segment.path(suffix))
        check(reopened(segment), check_entries)


def test_sealed_segment_finds_the_same_batches_as_before_and_has_complete_index_files() -> None:
    for history in HISTORIES[1:]:
        segment, model = filled(history)
        segment.seal()
        model.add_time()
        check(segment, model)
        for suffix, size in ((INDEX_SUFFIX, 8 * len(model.entries)), (TIME_INDEX_SUFFIX, 12 * len(model.times))):
            assert segment.disk.size(segment.path(suffix)) == size


#: Contents of an index file that another segment with the same base offset left behind.
LEFT_INDEX = [None, b"", struct.pack(">ii", 4, 100)]
LEFT_TIMES = [None, b"", struct.pack(">qi", 99, 4)]


@pytest.mark.parametrize("entries", LEFT_INDEX)
@pytest.mark.parametrize("times", LEFT_TIMES)
def test_new_segment_ignores_index_files_that_were_left_behind_at_its_base_offset(
    entries: bytes | None, times: bytes | None
) -> None:
    disk = MemoryDisk()
    segment, model = empty(disk), Model()
    for suffix, data in ((INDEX_SUFFIX, entries), (TIME_INDEX_SUFFIX, times)):
        if data is not None:
            disk.write_new(segment.path(suffix), data)
    for kind in KINDS:
        append(segment, model, kind)
    check(segment, model)


@pytest.mark.parametrize("index", [struct.pack(">iiii", 9, 50, 4, 20), struct.pack(">ii", 4, 1 << 20)])
def test_restarted_process_rebuilds_an_offset_index_that_does_not_fit_the_segment(index: bytes) -> None:
    segment, model = filled(LONG)
    segment.seal()
    segment.disk.write_new(segment.path(INDEX_SUFFIX), index)
    check(reopened(segment), model)


def test_restarted_process_rebuilds_a_time_index_whose_entries_are_out_of_order() -> None:
    segment, model = filled(LONG)
    segment.seal()
    segment.disk.write_new(segment.path(TIME_INDEX_SUFFIX), struct.pack(">qiqi", 90, 3, 20, 9))
    check(reopened(segment), model)


@pytest.mark.parametrize("rising", [False, True])
def test_offset_index_is_full_at_its_size_limit_and_time_index_one_entry_below_its_limit(rising: bool) -> None:
    segment, model = empty(), Model()
    assert not segment.is_index_full(0), "its indexes are not open yet"
    for number in range(12):
        append(segment, model, (0, 1, number if rising else -1))
        append(segment, model, (0, 9, -1))
        offset_entries, time_entries = len(model.entries), len(model.times)
        for limit in range(24, 120):
            full = offset_entries >= limit // 8 or time_entries >= limit // 12 - 1
            assert segment.is_index_full(limit) is full
    assert bool(time_entries) is rising


def test_each_byte_that_an_earlier_process_wrote_needs_one_check() -> None:
    _, model = filled(((0, 1, 10),) * 4)
    positions = [position for position, _ in model.batches] + [model.size]
    ranges = [(low, high) for low in positions for high in positions if low < high]
    for first, second in product(ranges, repeat=2):
        for cut in range(BASE + 1, BASE + 5):
            again = reopened(filled(((0, 1, 10),) * 4)[0])
            checked: set[int] = set()
            for low, high in (first, second):
                again.mark_checked(low, high)
                checked |= set(range(low, high))
                assert not again.needs_check(low, high)
            if first[1] == second[0]:
                assert not again.needs_check(first[0], second[1]), "two reads without a gap between them"
            _check_needs(again, ranges, checked)
            again.truncate_to(cut)
            grown = Model(model.batches[: cut - BASE], size=again.size)
            append(again, grown, (0, 1, 10))
            fresh = set(range(grown.batches[-1][0], grown.size))
            checked = {at for at in checked if at < grown.batches[-1][0]} | fresh
            _check_needs(again, [(low, high) for low, high in ranges if high <= grown.size], checked)
            assert not again.needs_check(grown.batches[-1][0], grown.size), "this process wrote these bytes"


def _check_needs(segment: Segment, ranges: list[tuple[int, int]], checked: set[int]) -> None:
    for low, high in ranges:
        if not set(range(low, high)) <= checked:
            assert segment.needs_check(low, high)


def test_last_time_index_entry_is_valid_only_if_its_batch_has_the_timestamp_of_the_entry() -> None:
    fits = {20: True, 21: False}
    for timestamp, expected in fits.items():
        segment, _ = filled(((0, 1, 20), (0, 1, 10)))
        assert segment.last_timestamp_fits(), "the time index has no entry"
        segment.time_index.maybe_append(timestamp, BASE)
        assert segment.last_timestamp_fits() is expected
    segment, _ = filled(((0, 1, 20),))
    segment.time_index.maybe_append(20, BASE + 256)
    assert not segment.last_timestamp_fits(), "no batch has the offset of the entry"


def test_newest_batches_are_found_without_reading_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    segment, model = empty(), Model()
    for kind in LONG:
        append(segment, model, kind)
        known = [header for _, header in model.batches[-3:]]
        with monkeypatch.context() as patched:
            patched.delattr(type(segment.file), "pread")
            for header in known:
                assert segment.locate(header.base_offset) is not None


def test_offset_of_the_largest_timestamp_is_read_from_the_files_after_a_restart() -> None:
    for history in HISTORIES:
        segment, model = filled(history)
        segment.seal()
        assert reopened(segment).max_timestamp_offset == model.newest[1]
