"""Tests the list of a log's segments: which segments an offset begins with, and what changes of the list leave."""

from __future__ import annotations

from itertools import combinations

from log_harness import batch, manager, new_log, offsets, produce

from penstock.disk.memory import MemoryDisk
from penstock.log.log import Log
from penstock.log.segment import Segment
from penstock.log.segment_list import SegmentList
from penstock.metadata.configs.topic import LogConfig
from penstock.records.header import parse_header

BASES = (2, 4, 5, 9)


def segment(disk: MemoryDisk, base: int, batches: int, suffix: str = "") -> Segment:
    made = Segment.create(disk, "/log", base, created_ms=0, index_interval=0, suffix=suffix)
    for number in range(batches):
        data = batch(base_offset=base + number)
        made.append(parse_header(data), data[:61], data[61:])
    return made


def segments(disk: MemoryDisk) -> list[Segment]:
    disk.mkdir("/log")
    return [segment(disk, base, number + 1) for number, base in enumerate(BASES)]


def check(found: SegmentList, expected: list[Segment]) -> None:
    assert list(found) == expected
    assert found.bases == [each.base_offset for each in expected]
    assert (len(found), found.active) == (len(expected), expected[-1])
    assert found.size == sum(each.size for each in expected)
    for offset in range(expected[-1].base_offset + 3):
        first = max((slot for slot, each in enumerate(expected) if each.base_offset <= offset), default=0)
        assert found.starting_at(offset) == expected[first:], "an offset below all segments begins with the first"


def test_list_of_segments_knows_its_bases_its_size_and_its_active_segment_after_every_change() -> None:
    for first, last in combinations(range(len(BASES)), 2):
        disk = MemoryDisk()
        every = segments(disk)
        found = SegmentList(list(every))
        check(found, every)
        new = segment(disk, every[first].base_offset, 7, suffix=".cleaned")
        found.replace(every[first:last], new)
        left = [*every[:first], new, *every[last:]]
        check(found, left)
        found.remove([new])
        left.remove(new)
        check(found, left)
        added = segment(disk, 20, 2)
        found.add(added)
        check(found, [*left, added])
        found.remove(left)
        check(found, [added])


def test_size_of_the_list_follows_appends_to_the_active_segment() -> None:
    every = segments(MemoryDisk())
    found = SegmentList(every)
    data = batch(base_offset=20)
    every[-1].append(parse_header(data), data[:61], data[61:])
    check(found, every)


def filled() -> Log:
    log = new_log(LogConfig(segment_bytes=2 * len(batch()), retention_bytes=3 * len(batch())), manager())
    for _ in range(9):
        produce(log)
    return log


def test_log_without_its_first_segments_stores_the_indexes_of_all_segments_that_are_left() -> None:
    log = filled()
    assert log.delete_old_segments(0)
    assert log.recovery_point < log.segments.bases[0]
    log.store()
    for each in log.segments:
        assert each.disk.exists(each.path(".index")), each.base_offset


def test_truncation_below_the_first_segment_removes_all_records_and_starts_there() -> None:
    for cut in range(7):
        log = filled()
        log.delete_old_segments(0)
        first = log.segments.bases[0]
        assert log.truncate_to(cut)
        assert (log.log_end_offset, offsets(log)) == (cut, list(range(first, cut)))
        assert log.log_start_offset == min(first, cut)
