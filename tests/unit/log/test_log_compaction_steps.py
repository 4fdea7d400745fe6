"""Tests the steps of a compaction one by one: the job, the rewritten segments, and the swap of old and new segments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from log_harness import ROOT, TOPIC_ID, check_indexes, finish, manager, read_all

from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk, MemoryFile
from penstock.log.checkpoints import parse_offsets
from penstock.log.cleaner import Cleaner
from penstock.log.compaction import CompactedGroup, CompactionJob, CompactionResult, compact, group_segments
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.log.segment import SUFFIXES, Segment
from penstock.log.swap import finish_swaps, swap_in
from penstock.metadata.configs.topic import LogConfig
from penstock.records.build import build_batch
from penstock.records.record import read_records

NOW = 1_700_000_000_000
PATH = f"{ROOT}/t-0"
COMPACT = LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, index_interval_bytes=1)


def put(log: Log, key: str, value: str = "v") -> None:
    data = build_batch([(NOW, key.encode(), value.encode(), ())])
    log.append_as_leader(data, leader_epoch=0, now_ms=NOW)
    log.update_high_watermark(log.log_end_offset)


def filled(segments: tuple[str, ...], disk: MemoryDisk | None = None) -> tuple[LogManager, Log]:
    """Returns a log with a sealed segment for each string, which has the keys of its records."""
    logs = manager(disk, ManualClock(NOW))
    log = logs.create("t", TOPIC_ID, 0, COMPACT)
    for keys in segments:
        for key in keys:
            put(log, key)
        log.roll()
    return logs, log


def job(log: Log, **changes: Any) -> CompactionJob:
    fields: dict[str, Any] = {
        "directory": log.path,
        "segments": [(segment.base_offset, segment.size) for segment in log.segments[:-1]],
        "first_dirty_offset": 0,
        "first_uncleanable_offset": log.log_end_offset,
        "now_ms": NOW,
        "delete_retention_ms": 1000,
        "segment_bytes": 1 << 20,
        "segment_index_bytes": 1 << 20,
        "index_interval_bytes": 1,
        "max_keys": 100,
    }
    return CompactionJob(**{**fields, **changes})


def offsets_in(disk: Any, result: CompactionResult) -> list[int]:
    """Returns the offsets of all records in the compacted segments."""
    found: list[int] = []
    for group in result.groups:
        data = disk.read_bytes(f"{PATH}/{group.sources[0]:020d}.log.cleaned")
        assert len(data) == group.size
        while data:
            size = 12 + int.from_bytes(data[8:12], "big")
            found += [record.offset for record in read_records(data[:size])]
            data = data[size:]
    return found


def test_job_and_result_are_the_same_after_their_way_through_json() -> None:
    sent = CompactionJob(
        directory="/logs/t-0",
        segments=[(0, 100), (7, 200)],
        first_dirty_offset=1,
        first_uncleanable_offset=2,
        now_ms=3,
        delete_retention_ms=4,
        segment_bytes=5,
        segment_index_bytes=6,
        index_interval_bytes=7,
        max_keys=8,
        aborted=[(5, 1, 2, 3), (6, 4, 5, 6)],
        last_records={5: (None, 3), 6: (8, 4)},
        uncommitted_producers=[5, 6],
        drops_tombstones=False,
    )
    assert CompactionJob.from_json(sent.to_json()) == sent
    result = CompactionResult([CompactedGroup([0, 7], 10, True), CompactedGroup([9], 0, False)], 1, 2, 3, 4)
    assert CompactionResult.from_json(result.to_json()) == result


@pytest.mark.parametrize("segments", [("ab", "a", "bc", "a"), ("a", "a", "b", "ab"), ("abc", "c", "c", "d")])
def test_compaction_drops_the_records_that_have_a_later_value_in_the_part_that_it_read(
    segments: tuple[str, ...],
) -> None:
    keys = "".join(segments)
    bases = [sum(map(len, segments[:number])) for number in range(len(segments))]
    sizes = {}
    for dirty, past, max_keys in product(range(len(keys)), range(1, len(keys) + 1), (1, 2, 3, 100)):
        if dirty >= past:
            continue
        logs, log = filled(segments)
        sizes = {segment.base_offset: segment.size for segment in log.segments}
        result = compact(
            logs.disk, job(log, first_dirty_offset=dirty, first_uncleanable_offset=past, max_keys=max_keys)
        )
        end = dirty
        latest: dict[str, int] = {}
        while end < past and (keys[end] in latest or len(latest) < max_keys):
            latest[keys[end]] = end
            end += 1
        read = [base for base in bases if base < end]
        upto = next((base for base in bases if base >= end), len(keys))
        assert result.end_offset == end
        assert [base for group in result.groups for base in group.sources] == read
        kept = [offset for offset in range(upto) if latest.get(keys[offset], -1) <= offset]
        assert offsets_in(logs.disk, result) == kept
        assert (result.records_read, result.records_kept) == (upto, len(kept))
        assert result.bytes_read == sum(sizes[base] for base in read)


def test_compaction_without_a_dirty_batch_rewrites_nothing() -> None:
    logs, log = filled(("ab", "a"))
    assert compact(logs.disk, job(log, first_dirty_offset=3)) == CompactionResult([], 3)
    assert compact(logs.disk, job(log, max_keys=0)) == CompactionResult([], 3)
    assert not [name for name in logs.disk.listdir(PATH) if name.endswith(".cleaned")]


def test_compacted_segments_and_their_indexes_are_on_disk_when_the_compaction_returns() -> None:
    disk = MemoryDisk(crashable=True)
    disk.mkdir(ROOT)
    _, log = filled(("abab", "cdc"), disk)
    finish(log.flush())
    result = compact(disk, job(log, segment_bytes=1))
    assert len(result.groups) == 2
    names = [f"{group.sources[0]:020d}{each}.cleaned" for group in result.groups for each in (".log", ".index")]
    names += [name.replace(".index", ".timeindex") for name in names if ".index" in name]
    written = {name: disk.read_bytes(f"{PATH}/{name}") for name in names}
    for seed in range(10):
        left = disk.crash(Random(seed))
        assert {name: left.read_bytes(f"{PATH}/{name}") for name in names} == written
    for group in result.groups:
        segment = Segment(disk, PATH, group.sources[0], size=group.size, index_interval=1, suffix=".cleaned")
        check_indexes(segment)
        assert segment.time_index.entries()


def test_compaction_and_completed_swap_close_all_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    logs, log = filled(("aab", "acd"))
    log.close()
    opened: list[MemoryFile] = []
    make = MemoryFile.__init__

    def recorded(file: MemoryFile, disk: MemoryDisk, path: str) -> None:
        make(file, disk, path)
        opened.append(file)

    monkeypatch.setattr(MemoryFile, "__init__", recorded)
    compact(logs.disk, job(log))
    for name in [name for name in logs.disk.listdir(PATH) if name.endswith(".cleaned")]:
        logs.disk.rename(f"{PATH}/{name}", f"{PATH}/{name.replace('.cleaned', '.swap')}")
    finish_swaps(logs.disk, PATH, set(logs.disk.listdir(PATH)))
    used = [file.path for file in opened if file.path.endswith((".log", ".log.cleaned", ".log.swap"))]
    assert {path.rpartition("/")[2][19:] for path in used} == {"0.log", "3.log", "0.log.cleaned", "0.log.swap"}
    assert [file.path for file in opened if file._inode is not None] == []


def stub(base: int, size: int, entries: int) -> Segment:
    indexes = {"index": range(entries), "time_index": range(entries)}
    return cast(Segment, SimpleNamespace(base_offset=base, size=size, **indexes))


def test_groups_are_filled_up_to_the_limits_of_a_segment_and_of_its_indexes() -> None:
    limits = cast(CompactionJob, SimpleNamespace(segment_bytes=10, segment_index_bytes=100))
    far = 1 << 30
    for sizes in product((0, 3, 4, 7, 10, 11), repeat=3):
        for entries in ((0, 0, 0), (2, 3, 1), (3, 2, 1), (4, 1, 2), (6, 1, 1)):
            for bases in ((0, 1, 2), (0, far - 1, far), (5, far + 4, far + 5)):
                segments = [stub(*each) for each in zip(bases, sizes, entries, strict=True)]
                groups: list[list[Segment]] = []
                for segment in segments:
                    together = [*(groups[-1] if groups else ()), segment]
                    index_bytes = sum(20 * len(each.index) for each in together if each.size)
                    if (
                        groups
                        and sum(each.size for each in together) <= 10
                        and index_bytes <= 100
                        and segment.base_offset - together[0].base_offset < far
                    ):
                        groups[-1].append(segment)
                    else:
                        groups.append([segment])
                assert group_segments(limits, segments) == groups


# The swap of old and new segments.


def leftovers(logs: LogManager) -> list[str]:
    return [name for name in logs.disk.listdir(PATH) if name.endswith((".cleaned", ".swap", ".deleted"))]


def after_compact(cleaner: Cleaner, change: Callable[[], object]) -> None:
    """Lets `change` happen between the end of the rewriting and the swap."""
    original = cleaner._compact

    async def slow(job: CompactionJob) -> CompactionResult:
        result = await original(job)
        change()
        return result

    cleaner._compact = slow  # type: ignore[method-assign]


def in_swap(logs: LogManager, change: Callable[[], object]) -> None:
    """Lets `change` happen while the swap waits for its first sync."""
    disk = cast(Any, logs.disk)
    run = disk.run

    async def slow(function: Callable[..., object], *args: object) -> object:
        result = await run(function, *args)
        if function == disk.sync_dir and args == (PATH,):
            disk.run = run
            change()
        return result

    disk.run = slow


def keys_of(log: Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.key) for _, data in read_all(log) for record in read_records(data)]


def three_groups() -> tuple[LogManager, Log, Cleaner]:
    """Returns a log with three sealed segments. Compaction rewrites each of them as a group of its own."""
    logs, log = filled(("aab", "aac", "ddd"))
    log.update_config(replace(COMPACT, segment_bytes=log.segments[0].size))
    return logs, log, Cleaner(logs)


def test_compacted_segments_replace_the_old_segments_and_their_files() -> None:
    logs, log, cleaner = three_groups()
    finish(cleaner.run())
    assert log.segments.bases == [0, 3, 6, 9]
    for segment in log.segments[:-1]:
        assert segment.synced_size == segment.size == segment.file.size
        assert not segment.needs_check(0, segment.size), "this compaction has verified the bytes"
        check_indexes(segment)
    assert keys_of(log) == [(2, b"b"), (4, b"a"), (5, b"c"), (8, b"d")]
    assert log.cleaned_offset == 9
    assert parse_offsets(logs.disk.read_bytes(f"{ROOT}/cleaner-offset-checkpoint")) == {("t", 0): 9}
    finish(logs.removal.run(all_of_them=True))
    assert not leftovers(logs)


def test_several_old_segments_are_replaced_by_one_compacted_segment() -> None:
    logs, log = filled(("aab", "aac", "ddd"))
    finish(Cleaner(logs).run())
    assert log.segments.bases == [0, 9]
    assert keys_of(log) == [(2, b"b"), (4, b"a"), (5, b"c"), (8, b"d")]
    finish(logs.removal.run(all_of_them=True))
    assert sorted(name for name in logs.disk.listdir(PATH) if ".log" in name) == [f"{0:020d}.log", f"{9:020d}.log"]


def test_log_truncated_after_its_segments_were_rewritten_keeps_no_file_of_the_compaction() -> None:
    logs, log, cleaner = three_groups()
    after_compact(cleaner, lambda: log.truncate_to(5))
    finish(cleaner.run())
    assert keys_of(log) == [(0, b"a"), (1, b"a"), (2, b"b"), (3, b"a"), (4, b"a")]
    finish(logs.removal.run(all_of_them=True))
    assert not leftovers(logs)
    assert log.cleaned_offset == 0


def test_log_deleted_after_its_segments_were_rewritten_keeps_its_directory_online() -> None:
    logs, log, cleaner = three_groups()
    after_compact(cleaner, lambda: logs.delete("t", 0))
    (due,) = cleaner.due()
    assert finish(cleaner.clean(due)) is None
    assert not logs.dirs[0].offline
    assert log.cleaned_offset == 0
    assert not cleaner.uncleanable


@pytest.mark.parametrize("late", [False, True])
def test_segment_that_retention_deletes_during_a_compaction_does_not_come_back(late: bool) -> None:
    logs, log, cleaner = three_groups()

    def delete() -> None:
        log.advance_log_start_offset(3)
        assert log.delete_old_segments(NOW) == 1

    if late:
        in_swap(logs, delete)
    else:
        after_compact(cleaner, delete)
    finish(cleaner.run())
    assert keys_of(log) == [(4, b"a"), (5, b"c"), (8, b"d")]
    assert log.segments.bases == [3, 6, 9]
    finish(logs.removal.run(all_of_them=True))
    assert not leftovers(logs)


@pytest.mark.parametrize("cut", [0, 2, 5])
def test_truncation_during_the_swap_removes_the_compacted_segments_that_are_not_in_use_yet(cut: int) -> None:
    logs, log, cleaner = three_groups()
    pending: list[int] = []

    def truncate() -> None:
        pending.append(len([name for name in leftovers(logs) if name.endswith(".log.swap")]))
        pending.append(len(log.pending_swaps))
        log.truncate_to(cut)
        pending.append(len(log.pending_swaps))

    in_swap(logs, truncate)
    finish(cleaner.run())
    assert pending == [3, 3, 0], "a crash before the swap ends would complete it"
    assert [offset for offset, _ in keys_of(log)] == list(range(cut))
    assert log.cleaned_offset == 0, "other records will get the offsets of the truncated records"
    finish(logs.removal.run(all_of_them=True))
    assert not leftovers(logs)


def test_full_truncation_during_the_swap_removes_the_compacted_segments() -> None:
    logs, log, cleaner = three_groups()
    in_swap(logs, lambda: log.truncate_fully_and_start_at(20))
    finish(cleaner.run())
    assert (log.log_start_offset, log.log_end_offset, log.cleaned_offset) == (20, 20, 0)
    finish(logs.removal.run(all_of_them=True))
    assert not leftovers(logs)


def test_compacted_segment_counts_as_swapped_only_if_its_old_segments_are_still_there() -> None:
    logs, log, cleaner = three_groups()
    (due,) = cleaner.due()
    compacted = cleaner._job(due, log.segments[:-1])
    result = compact(logs.disk, compacted)
    replacements = [
        ([old], cleaner._new_segment(compacted, old.base_offset, group.size, False))
        for old, group in zip(log.segments[:-1], result.groups, strict=True)
    ]

    def delete() -> None:
        log.advance_log_start_offset(3)
        log.delete_old_segments(NOW)

    in_swap(logs, delete)
    assert finish(swap_in(log, replacements)) == 2


def test_swapped_segments_are_on_disk_under_their_names_when_the_swap_returns() -> None:
    disk = MemoryDisk(crashable=True)
    disk.mkdir(ROOT)
    logs, log = filled(("aab", "aac"), disk)
    finish(Cleaner(logs).run())
    for seed in range(20):
        left = disk.crash(Random(seed))
        assert f"{0:020d}.log" in left.listdir(PATH)
        assert left.read_bytes(f"{PATH}/{0:020d}.log") == disk.read_bytes(f"{PATH}/{0:020d}.log")
        assert f"{3:020d}.log" not in left.listdir(PATH)
    assert len(log.segments) == 2


# A start after a crash in the middle of a swap.


def files_of(base: int, content: bytes, suffix: str = "", kinds: tuple[str, ...] = SUFFIXES) -> dict[str, bytes]:
    return {f"{base:020d}{kind}{suffix}": content for kind in kinds}


def test_restart_completes_every_swap_and_touches_no_segment_outside_of_it() -> None:
    data = {
        base: build_batch([(NOW, b"k", b"v", ())] * count, base_offset=base + gap)
        for base, gap, count in ((0, 2, 3), (10, 0, 2))
    }
    new = ((0, data[0]), (10, data[10]))  # these end at the offsets 5 and 12
    files: dict[str, bytes] = {}
    for base in (0, 1, 4, 5, 9, 10, 11, 12):
        files |= files_of(base, b"old %d" % base)
    for base, batch in new:
        files |= files_of(base, b"", ".swap", SUFFIXES[1:3])
        files[f"{base:020d}.log.swap"] = batch
    files |= files_of(12, b"undecided", ".swap", SUFFIXES[1:])
    files |= files_of(5, b"undecided", ".cleaned") | files_of(9, b"undecided", ".cleaned")
    disk = MemoryDisk()
    disk.mkdir("/t-0")
    for name, content in files.items():
        disk.write_new(f"/t-0/{name}", content)
    expected: dict[str, bytes] = {}
    for base in (5, 9, 12):
        expected |= files_of(base, b"old %d" % base)
    for base, batch in new:
        expected |= files_of(base, b"", "", SUFFIXES[1:3])
        expected[f"{base:020d}.log"] = batch
    left = finish_swaps(disk, "/t-0", set(files))
    assert left == set(disk.listdir("/t-0"))
    assert {name: disk.read_bytes(f"/t-0/{name}") for name in left} == expected


@pytest.mark.parametrize("suffix", [".cleaned", ".swap"])
def test_completed_swap_does_not_begin_again_after_a_power_loss(suffix: str) -> None:
    disk = MemoryDisk(crashable=True)
    disk.mkdir("/t-0")
    for name in [*files_of(0, b"", suffix), *files_of(7, b"")]:
        disk.write_new(f"/t-0/{name}", b"")
    disk.sync_dir("/t-0")
    left = finish_swaps(disk, "/t-0", set(disk.listdir("/t-0")))
    for seed in range(20):
        assert set(disk.crash(Random(seed)).listdir("/t-0")) == left
