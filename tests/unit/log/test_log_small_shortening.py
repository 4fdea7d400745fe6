"""Compares retention and truncation of small logs with their rules, for all combinations of limits and offsets."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from log_harness import batch, finish, manager, new_log, offsets, produce

from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.checkpoints import CLEANER_FILE, LOG_START_FILE, RECOVERY_POINT_FILE, parse_offsets
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import KafkaError

SIZE = len(batch(value=b""))
NOW = 100
CONFIG = LogConfig(segment_bytes=2 * SIZE, index_interval_bytes=0, retention_ms=10)
OLD, YOUNG = NOW - 11, NOW - 10
#: Sizes of the three segments, beyond the smallest batch.
SHAPES = ((0, 0, 0), (30, 0, 0))


STAMPS = ((OLD, OLD, OLD), (OLD, YOUNG, YOUNG), (YOUNG, OLD, OLD))


def segments_with(logs: LogManager, name: str, shape: tuple[int, ...], stamps: tuple[int, ...]) -> Log:
    """Returns a log with one batch of one record per segment."""
    log = new_log(CONFIG, logs, topic=name)
    for more, stamp in zip(shape, stamps):
        if log.size:
            log.roll()
        produce(log, value=bytes(more), timestamp=stamp, commit=False)
    return log


def to_delete(log: Log, stamps: tuple[int, ...], by_size: int) -> int:
    """Returns the number of segments that retention must delete: the oldest, up to the first that has to stay."""
    sizes = [segment.size for segment in log.segments if segment.size]
    for slot, stamp in enumerate(stamps):
        last = slot + 1 == len(log.segments)
        expired = log.config.delete and NOW - stamp > log.config.retention_ms
        too_much = log.config.delete and by_size >= 0 and sum(sizes[slot + 1 :]) >= by_size
        below_start = not last and slot + 1 <= log.log_start_offset
        if slot + 1 > log.high_watermark or not (expired or too_much or below_start):
            return slot
    return len(stamps)


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("rolled", [False, True])
def test_retention_deletes_old_segments_that_are_expired_or_beyond_the_size_limit_or_below_the_log_start(
    policy: str, rolled: bool
) -> None:
    logs = manager(clock=ManualClock(NOW))
    for number, (shape, stamps, committed, start) in enumerate(product(SHAPES, STAMPS, (0, 2, 3), (0, 1, 2))):
        if start > committed:
            continue
        for limit in (-1, 0, SIZE, SIZE + 30, 2 * SIZE, 2 * SIZE + 1, 3 * SIZE) if policy == "delete" else (0,):
            log = segments_with(logs, f"t{number}.{limit}", shape, stamps)
            log.update_config(replace(CONFIG, retention_bytes=limit, cleanup_policy=frozenset({policy})))
            if rolled:
                log.roll()
            log.update_high_watermark(committed)
            log.advance_log_start_offset(start)
            expected = to_delete(log, stamps, limit)
            assert log.delete_old_segments(NOW) == expected
            assert log.log_start_offset == max(start, expected)
            assert offsets(log) == list(range(log.log_start_offset, 3))
            assert log.segments.bases[0] == expected


def test_record_with_timestamp_zero_expires_but_without_a_timestamp_the_time_of_the_file_counts() -> None:
    """A segment without timestamps counts from the modification time of its file, which is NOW here."""
    for stamp, deleted in ((-1, 0), (0, 1)):
        logs = manager(MemoryDisk(now_ms=lambda: NOW), ManualClock(NOW))
        log = segments_with(logs, "t", (0,), (stamp,))
        log.update_high_watermark(1)
        assert log.delete_old_segments(NOW + 5) == deleted


def test_log_start_moves_up_to_the_high_watermark_and_never_back() -> None:
    logs = manager()
    for number, (committed, start, asked) in enumerate(product(range(4), range(4), range(5))):
        if start > committed:
            continue
        log = segments_with(logs, f"t{number}", (0, 0, 0), (1, 1, 1))
        log.update_high_watermark(committed)
        log.advance_log_start_offset(start)
        if asked > committed:
            with pytest.raises(KafkaError):
                log.advance_log_start_offset(asked)
        else:
            assert log.advance_log_start_offset(asked) is (asked > start)
        assert log.log_start_offset == (max(start, asked) if asked <= committed else start)
        assert log.update_high_watermark(asked) == max(committed, min(asked, 3))


class Cut:
    """Holds a log of four batches with two records each, two batches per segment, and truncates it."""

    def __init__(self, flushed: int, committed: int, cleaned: int, start: int) -> None:
        self.disk = MemoryDisk()
        self.logs = manager(self.disk)
        log = self.log = new_log(replace(CONFIG, segment_bytes=2 * len(batch(2, value=b""))), self.logs)
        for number in range(4):
            produce(log, 2, value=b"", epoch=number, commit=False)
            if log.log_end_offset == flushed:
                finish(log.flush())
        log.update_high_watermark(committed)
        log.advance_log_start_offset(start)
        log.note_compacted(cleaned)
        self.logs.write_checkpoints()
        self.told: list[int] = []
        log.on_truncation = self.told.append
        self.checked = False
        self.disk.on_write = self.check_order

    def saved(self, file: str) -> int:
        return parse_offsets(self.disk.read_bytes(f"/logs/{file}")).get(("t", 0), 0)

    def check_order(self, operation: str, path: str) -> None:
        if path.startswith(self.log.path) and operation in {"truncate", "rename", "remove"}:
            self.checked = True
            assert self.told, "the copy of the log is told before a file changes"
            for file in (RECOVERY_POINT_FILE, CLEANER_FILE):
                assert self.saved(file) <= self.told[0], "the checkpoint is lowered before a file changes"


@pytest.mark.parametrize("flushed", [2, 4, 8])
def test_truncation_lowers_the_offsets_of_a_log_that_are_above_its_new_end_and_raises_none(flushed: int) -> None:
    for committed, cleaned, start, cut in product((2, 8), (0, 4, 8), (0, 1), range(10)):
        case = Cut(flushed, committed, cleaned, start)
        log = case.log
        end = cut // 2 * 2 if cut < 8 else 8
        assert log.truncate_to(cut) is (cut < 8)
        assert log.log_end_offset == end
        assert log.high_watermark == min(committed, end)
        assert log.log_start_offset == min(start, end)
        assert (log.recovery_point, log.flushed_offset) == (min(flushed, end), min(flushed, end))
        assert log.cleaned_offset == min(cleaned, end)
        assert (log.truncations, case.checked, case.told[:1]) == ((1, True, [end]) if cut < 8 else (0, False, []))
        assert case.saved(RECOVERY_POINT_FILE) <= log.recovery_point
        assert case.saved(CLEANER_FILE) <= log.cleaned_offset
        assert case.saved(LOG_START_FILE) <= log.log_start_offset
        assert [epoch for epoch, _ in log.epochs.entries] == list(range(end // 2))
        case.disk.on_write = None
        assert produce(log, 3, value=b"", epoch=9) == end
        assert [each for each in offsets(log) if each >= log.log_start_offset] == list(
            range(log.log_start_offset, end + 3)
        )


@pytest.mark.parametrize("offset", [0, 3, 8, 20])
def test_full_truncation_leaves_an_empty_log_that_starts_at_the_offset(offset: int) -> None:
    case = Cut(8, 8, 8, 2)
    log = case.log
    log.truncate_fully_and_start_at(offset)
    bounds = (log.log_start_offset, log.high_watermark, log.log_end_offset, log.recovery_point, log.flushed_offset)
    assert bounds == (offset,) * 5
    assert (log.size, log.epochs.entries, log.snapshots.offsets) == (0, [], [])
    assert log.cleaned_offset <= min(offset, 2)
    assert case.saved(RECOVERY_POINT_FILE) == case.saved(LOG_START_FILE) == offset
    assert case.told == [min(offset, 2)]


def test_cleaned_offset_of_a_log_is_never_above_the_log_end() -> None:
    log = segments_with(manager(), "t", (0, 0), (1, 1))
    for offset, noted in ((0, 0), (1, 1), (2, 2), (3, 2)):
        log.note_compacted(offset)
        assert log.cleaned_offset == noted
