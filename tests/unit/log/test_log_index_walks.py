"""Compares both indexes with plain lists, in random walks of appends, spills, truncations, renames and restarts.

Every look-up is asked after every step, so that nothing which a look-up keeps in memory outlives a truncation.
"""

from __future__ import annotations

import struct
from random import Random

import pytest
from segment_harness import BASE, INTERVAL, PATH, append, check, filled, reopened

from penstock.disk.memory import MemoryDisk
from penstock.log import offset_index, time_index
from penstock.log.entries import EntryFile
from penstock.log.offset_index import OffsetIndex
from penstock.log.scan import CorruptBatchError
from penstock.log.segment import INDEX_SUFFIX, MAX_RELATIVE_OFFSET, TIME_INDEX_SUFFIX, Segment
from penstock.log.time_index import TimeIndex
from penstock.records.build import build_batch
from penstock.records.header import parse_header

SPILL, BLOCK = 5, 4


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets spill and block sizes so small that a few entries exceed them."""
    monkeypatch.setattr(offset_index, "SPILL_ENTRIES", SPILL)
    monkeypatch.setattr(offset_index, "BLOCK", BLOCK)
    monkeypatch.setattr(time_index, "SPILL_ENTRIES", SPILL)


class Walk:
    """Changes an index and a list of its entries in the same way."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = MemoryDisk()
        self.path = "/index0"
        self.entries: list[tuple[int, int]] = []

    @property
    def index(self) -> OffsetIndex | TimeIndex:
        raise NotImplementedError

    def open(self) -> None:
        raise NotImplementedError

    def append(self) -> None:
        raise NotImplementedError

    def check_lookups(self) -> None:
        raise NotImplementedError

    def offset_of(self, entry: tuple[int, int]) -> int:
        raise NotImplementedError

    def file_entry(self, entry: tuple[int, int]) -> bytes:
        raise NotImplementedError

    def step(self) -> None:
        steps = [self.append] * 10 + [self.index.store, self.truncate, self.reopen, self.rename, self.index.file.close]
        if self.random.random() < 0.04:
            self.index.clear()
            self.entries = []
        self.random.choice(steps)()

    def truncate(self) -> None:
        newest = max([BASE + 2, *map(self.offset_of, self.entries)])
        cut = self.random.randrange(max(BASE, newest - 12), newest + 2)
        self.index.truncate_to(cut)
        self.entries = [entry for entry in self.entries if self.offset_of(entry) < cut]

    def reopen(self) -> None:
        """Restarts the process: entries that are not in the file are lost."""
        self.entries = self.entries[: self.index.file.stored]
        file = self.disk.open(self.path)
        if file.size == self.index.file.stored * self.index.file.entry_size and self.random.random() < 0.5:
            file.append(b"torn")
        self.open()

    def rename(self) -> None:
        if self.index.file.exists:
            moved = f"/index{self.random.random()}"
            self.disk.rename(self.path, moved)
            self.path = moved
            self.index.file.moved(moved)

    def check(self) -> None:
        assert self.index.entries() == self.entries
        assert len(self.index) == len(self.entries)
        self.check_lookups()
        stored = self.index.file.stored
        assert len(self.entries) - stored < SPILL
        assert self.index.file.exists == self.disk.exists(self.path)
        assert self.disk.listdir("/") == ([self.path[1:]] if self.index.file.exists else [])
        if stored:
            whole = b"".join(map(self.file_entry, self.entries[:stored]))
            assert self.disk.read_bytes(self.path)[: len(whole)] == whole


class OffsetWalk(Walk):
    def open(self) -> None:
        self.offsets = OffsetIndex(self.disk, self.path, BASE)

    @property
    def index(self) -> OffsetIndex:
        return self.offsets

    def append(self) -> None:
        offset, position = self.entries[-1] if self.entries else (BASE, 0)
        entry = offset + self.random.randrange(1, 4), position + self.random.randrange(1, 4)
        self.offsets.append(*entry)
        self.entries.append(entry)

    def offset_of(self, entry: tuple[int, int]) -> int:
        return entry[0]

    def file_entry(self, entry: tuple[int, int]) -> bytes:
        return struct.pack(">ii", entry[0] - BASE, entry[1])

    def check_lookups(self) -> None:
        end, size = self.entries[-1] if self.entries else (BASE, 0)
        for offset in range(BASE - 1, end + 2):
            below = [position for known, position in self.entries if known <= offset]
            assert self.offsets.lookup(offset) == (below[-1] if below else 0)
        for position in range(size + 2):
            later = [offset for offset, known in self.entries if known >= position]
            assert self.offsets.first_past(position) == (later[0] if later else None)
        assert self.offsets.last == (self.entries[-1] if self.entries else None)
        assert self.offsets.is_sane(size + 1)
        assert self.offsets.is_sane(size) is not bool(self.entries)


class TimeWalk(Walk):
    def open(self) -> None:
        self.times = TimeIndex(self.disk, self.path, BASE)

    @property
    def index(self) -> TimeIndex:
        return self.times

    def append(self) -> None:
        timestamp, offset = self.entries[-1] if self.entries else (5, BASE)
        entry = timestamp + self.random.randrange(-2, 4), offset + self.random.randrange(1, 4)
        self.times.maybe_append(*entry)
        if not self.entries or entry[0] > timestamp:
            self.entries.append(entry)

    def offset_of(self, entry: tuple[int, int]) -> int:
        return entry[1]

    def file_entry(self, entry: tuple[int, int]) -> bytes:
        return struct.pack(">qi", entry[0], entry[1] - BASE)

    def check_lookups(self) -> None:
        last = self.entries[-1] if self.entries else (-1, BASE)
        for timestamp in range(last[0] + 2):
            below = [offset for known, offset in self.entries if known <= timestamp]
            assert self.times.lookup(timestamp) == (below[-1] if below else BASE)
        assert self.times.last == last
        assert self.times.is_sane()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", [OffsetWalk, TimeWalk])
def test_index_has_the_entries_of_a_plain_list_after_each_append_spill_truncation_rename_and_restart(
    kind: type[Walk], seed: int
) -> None:
    walk = kind(seed)
    walk.open()
    for _ in range(120):
        walk.step()
        walk.check()


def test_offset_index_that_was_cleared_and_filled_again_has_no_look_up_of_its_old_entries() -> None:
    index = OffsetIndex(MemoryDisk(), "/index", BASE)
    for step in (10, 3):
        entries = [(BASE + step * number, number) for number in range(1, 4 * SPILL + 1)]
        for entry in entries:
            index.append(*entry)
        assert [index.lookup(offset) for offset, _ in entries] == [position for _, position in entries]
        index.clear()


def test_entry_file_that_is_closed_is_opened_again_under_its_present_name() -> None:
    disk = MemoryDisk()
    file = EntryFile(disk, "/old", 4)
    file.append(b"1111")
    file.close()
    disk.rename("/old", "/new")
    file.moved("/new")
    file.append(b"2222")
    file.append(b"")
    assert (file.read(0, 2), file.stored, disk.listdir("/")) == (b"11112222", 2, ["new"])


def test_missing_file_of_entries_is_created_empty_and_an_existing_one_is_kept() -> None:
    disk = MemoryDisk()
    for _ in range(2):
        file = EntryFile(disk, "/index", 4)
        file.create()
        file.create()
        assert file.exists
        assert disk.exists("/index")
    file.append(b"1111")
    file.create()
    assert disk.read_bytes("/index") == b"1111"
    EntryFile(disk, "/index", 4).create()
    assert disk.read_bytes("/index") == b"1111"


# Rebuilt indexes.


@pytest.mark.parametrize("more", [0, 1])
def test_rebuilt_index_holds_a_batch_at_the_largest_offset_of_its_segment_and_none_above(more: int) -> None:
    disk = MemoryDisk()
    segment, model = filled(((0, 1, 10), (0, 1, 20)), disk)
    far = build_batch([(30, b"k", b"v", ())], base_offset=BASE + MAX_RELATIVE_OFFSET + more)
    segment.file.append(far)
    again = Segment(disk, PATH, BASE, size=model.size + len(far), index_interval=INTERVAL)
    if more:
        with pytest.raises(CorruptBatchError, match="too large for the segment"):
            again.rebuild_indexes()
    else:
        again.rebuild_indexes()
        assert again.locate(BASE + MAX_RELATIVE_OFFSET) == (model.size, len(far))
    assert again.size == again.file.size == model.size + len(far)


def test_segment_whose_indexes_cannot_be_rebuilt_keeps_its_size() -> None:
    disk = MemoryDisk()
    segment, model = filled(((0, 1, 10), (0, 1, 20), (0, 1, 30)), disk)
    disk.inode(segment.file.path).data[model.batches[1][0] + 16] ^= 1
    again = reopened(segment)
    with pytest.raises(CorruptBatchError):
        _ = again.index
    assert again.size == model.size


def test_rebuilding_the_indexes_of_a_segment_twice_gives_the_same_entries() -> None:
    for stored in (False, True):
        segment, model = filled(((0, 1, 10), (0, 3, 20), (2, 1, 15), (0, 2, 30), (0, 1, 5)))
        for _ in range(2):
            if stored:
                segment.store_indexes()
            segment.rebuild_indexes()
            check(segment, model)
        append(segment, model, (0, 1, 40))
        check(segment, model)
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            data = segment.disk.read_bytes(segment.path(suffix)) if segment.disk.exists(segment.path(suffix)) else b""
            assert data == b"", "the entries of the file were replaced by entries in memory"


def test_segment_counts_the_bytes_to_the_next_index_entry_as_kafka_does() -> None:
    """An entry is due when more than index.interval.bytes came since the last one, not at exactly this number."""
    data = build_batch([(10, b"k", b"v", ())], base_offset=BASE)
    for interval, entries in ((len(data) - 1, 2), (len(data), 1), (2 * len(data), 0)):
        disk = MemoryDisk()
        disk.mkdir(PATH)
        segment = Segment.create(disk, PATH, BASE, created_ms=0, index_interval=interval)
        for offset in range(3):
            data = build_batch([(10, b"k", b"v", ())], base_offset=BASE + offset)
            segment.append(parse_header(data), data[:61], data[61:])
        assert len(segment.index) == entries


# What a segment remembers.


def test_bytes_that_were_verified_once_are_not_verified_again_with_newly_written_bytes() -> None:
    segment, model = filled(((0, 1, 10),) * 3)
    again = reopened(segment)
    old = [position for position, _ in model.batches]
    again.mark_checked(0, model.size)
    again.mark_checked(0, old[1])
    again.mark_checked(old[1], old[2])
    before = model.size
    append(again, model, (0, 1, 10))
    for start in (*old, before):
        assert not again.needs_check(start, model.size), "a shorter read does not undo what a longer one verified"
    again = reopened(segment)
    again.mark_checked(old[1], old[2])
    again.mark_checked(old[1], before)
    assert not again.needs_check(old[1], before)
    assert again.needs_check(0, before)


def test_sealed_segment_keeps_no_positions_of_its_batches_in_memory() -> None:
    segment, model = filled(((0, 1, 10),) * 3)
    segment.seal()
    assert (segment._tail_ends, segment._tail_positions) == ([], [])
    model.add_time()
    check(segment, model)
