"""Compares the choice of the logs and segments that are compacted with a plain rule, for every small log."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import pytest
from log_harness import TOPIC_ID, batch, finish, manager, produce

from penstock.clock import ManualClock
from penstock.log.cleaner import Cleaner, Due
from penstock.log.compaction import CompactionJob, CompactionResult
from penstock.log.log import AppendOrigin, Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.records.control import EndTxn, build_end_txn

NOW = 1_700_000_000_000
LAG = 1000
COMPACT = LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, segment_ms=2 * NOW)


@dataclass(frozen=True)
class Part:
    """Describes one segment: its offsets, its size and the timestamps of its records."""

    base: int
    end: int
    size: int
    stamps: tuple[int, ...]


def filled(
    stamps: tuple[tuple[int, ...], ...], config: LogConfig = COMPACT, logs: LogManager | None = None, topic: str = "t"
) -> tuple[Cleaner, Log, list[Part]]:
    """Returns a log with one segment for each tuple of timestamps. The last segment is active."""
    logs = manager(clock=ManualClock(NOW)) if logs is None else logs
    log = logs.create(topic, TOPIC_ID, 0, config)
    parts: list[Part] = []
    for number, each in enumerate(stamps):
        base = log.log_end_offset
        for stamp in each:
            produce(log, timestamp=stamp, value=b"v" * 7 * (number + 1), commit=False)
        parts.append(Part(base, log.log_end_offset, log.segments.active.size, each))
        if number < len(stamps) - 1:
            log.roll()
    return Cleaner(logs), log, parts


def expected(log: Log, parts: list[Part], cleaned: int) -> Due | None:
    config = log.config
    sealed, active = parts[:-1], parts[-1]
    first_dirty = cleaned if log.log_start_offset <= cleaned <= active.base else log.log_start_offset
    lag = config.min_compaction_lag_ms
    waiting = [
        part.base
        for part in sealed
        if part.end > log.high_watermark or (lag and max(part.stamps, default=-1) > NOW - lag)
    ]
    uncleanable = min([*waiting, active.base])
    clean = [part for part in sealed if part.end <= first_dirty]
    dirty = [part for part in sealed if part.end > first_dirty and part.base < uncleanable]
    overdue = any(part.stamps and 0 <= part.stamps[0] < NOW - config.max_compaction_lag_ms for part in dirty)
    dirty_bytes = sum(part.size for part in dirty)
    if not dirty_bytes:
        return None
    ratio = dirty_bytes / (dirty_bytes + sum(part.size for part in clean))
    if ratio <= config.min_cleanable_dirty_ratio and not overdue:
        return None
    return Due(log, first_dirty, uncleanable, dirty_bytes, ratio, overdue, log.generation)


OLD, YOUNG = NOW - LAG, NOW - LAG + 1


@pytest.mark.parametrize("lag", [0, LAG])
@pytest.mark.parametrize(
    "stamps",
    [
        ((OLD, OLD), (OLD,), (OLD, OLD), (OLD,)),
        ((OLD, OLD), (OLD, YOUNG), (OLD,), ()),
        ((OLD,), (OLD, OLD), (YOUNG,), (OLD,)),
    ],
    ids=["all old", "second young", "third young"],
)
def test_dirty_part_of_a_log_is_between_the_compacted_segments_and_the_first_segment_that_must_wait(
    stamps: tuple[tuple[int, ...], ...], lag: int
) -> None:
    end = sum(map(len, stamps))
    for committed in range(end + 1):
        for start in range(committed + 1):
            cleaner, log, parts = filled(stamps, replace(COMPACT, min_compaction_lag_ms=lag))
            log.truncations = 3
            log.update_high_watermark(committed)
            log.advance_log_start_offset(start)
            for cleaned in range(end + 2):
                log.cleaned_offset = cleaned
                due = expected(log, parts, cleaned)
                assert cleaner.due() == ([] if due is None else [due])
                if due is not None:
                    assert cleaner.clean_until(log) == due.first_dirty_offset
                    assert cleaner.first_uncleanable_offset(log, NOW) == due.first_uncleanable_offset


def test_log_is_due_above_its_dirty_ratio_and_not_at_the_ratio() -> None:
    cleaner, log, parts = filled(((OLD, OLD), (OLD,), (OLD,)))
    log.update_high_watermark(log.log_end_offset)
    log.note_compacted(2)
    due = expected(log, parts, 2)
    assert due is not None
    for ratio, found in ((due.ratio, []), (due.ratio - 1e-9, [due]), (due.ratio + 1e-9, [])):
        log.update_config(replace(COMPACT, min_cleanable_dirty_ratio=ratio))
        assert cleaner.due() == found


def test_log_is_overdue_if_the_first_batch_of_a_dirty_segment_is_older_than_max_compaction_lag_ms() -> None:
    config = replace(COMPACT, max_compaction_lag_ms=LAG, min_cleanable_dirty_ratio=1.0)
    stamps = (-1, 0, 1, NOW - LAG - 1, NOW - LAG, NOW)
    for first, second in product(stamps, stamps):
        for layout in (((first, second), (NOW,)), ((first,), (second,), (NOW,))):
            cleaner, log, parts = filled(layout)
            log.update_config(config)
            log.update_high_watermark(log.log_end_offset)
            due = expected(log, parts, 0)
            assert cleaner.due() == ([] if due is None else [due])


def test_segment_that_compaction_emptied_does_not_prevent_the_next_compaction() -> None:
    cleaner, log, _ = filled(((OLD,), (OLD,), (OLD,), ()), replace(COMPACT, segment_bytes=len(batch(value=b"v" * 21))))
    log.update_high_watermark(log.log_end_offset)
    finish(cleaner.run())
    assert [segment.size > 0 for segment in log.segments] == [False, False, True, False]
    log.cleaned_offset = 0  # as if the cleaner's checkpoint were lost
    log.update_config(replace(log.config, max_compaction_lag_ms=1))
    (due,) = cleaner.due()
    assert (due.dirty_bytes, due.overdue) == (log.size, True)
    finish(cleaner.run())
    assert cleaner.due() == []
    assert not cleaner.uncleanable


def offline(log: Log) -> None:
    log.health.take_offline(OSError(errno.EIO, "broken"))


def moving(log: Log) -> None:
    log.on_truncation = lambda offset: None


def not_compacted(log: Log) -> None:
    log.update_config(replace(log.config, cleanup_policy=frozenset({"delete"})))


@pytest.mark.parametrize("exclude", [offline, moving, not_compacted])
def test_log_that_is_offline_or_moving_or_not_compacted_is_left_out_and_the_next_log_is_due(
    exclude: Callable[[Log], None],
) -> None:
    logs = manager(clock=ManualClock(NOW))
    found = [filled(((OLD, OLD), (OLD,)), logs=logs, topic=f"t{number}") for number in range(3)]
    for _, log, _ in found:
        log.update_high_watermark(log.log_end_offset)
    cleaner, excluded, _ = found[0]
    exclude(excluded)
    assert [due.log for due in cleaner.due()] == [log for _, log, _ in found[1:]]
    bases = list(excluded.segments.bases)
    assert finish(cleaner.clean_now(excluded)) is None
    assert excluded.segments.bases == bases, "no new segment is started either"
    finish(cleaner.run())
    assert [log.cleaned_offset for _, log, _ in found] == [0, 2, 2]


def test_log_that_could_not_be_compacted_is_left_out_until_it_is_gone() -> None:
    logs = manager(clock=ManualClock(NOW))
    cleaner, first, _ = filled(((OLD,), (OLD,)), logs=logs, topic="first")
    _, second, _ = filled(((OLD,), (OLD,)), logs=logs, topic="second")
    for log in (first, second):
        log.update_high_watermark(log.log_end_offset)
    cleaner.uncleanable = {first: "damaged", second: "damaged"}
    assert cleaner.due() == []
    logs.delete("first", 0)
    assert cleaner.due() == []
    assert cleaner.uncleanable == {second: "damaged"}


def test_log_is_compacted_at_once_on_request_even_if_little_of_it_is_dirty() -> None:
    cleaner, log, _ = filled(((OLD, OLD), (OLD,), (OLD,)), replace(COMPACT, min_cleanable_dirty_ratio=1.0))
    log.update_high_watermark(log.log_end_offset)
    log.note_compacted(3)
    assert cleaner.due() == []
    result = finish(cleaner.clean_now(log))
    assert result is not None
    assert (result.end_offset, log.cleaned_offset, log.segments.bases[-1]) == (4, 4, 4)
    assert finish(cleaner.clean_now(log)) is None, "nothing is dirty"
    assert log.segments.bases[-1] == 4


def test_deleted_log_is_not_compacted_on_request() -> None:
    logs = manager(clock=ManualClock(NOW))
    cleaner, log, _ = filled(((OLD, OLD), (OLD,)), logs=logs)
    logs.delete("t", 0)
    assert finish(cleaner.clean_now(log)) is None
    assert log.segments.bases == [0, 2]


def test_overdue_logs_are_compacted_first_and_then_the_logs_with_the_largest_dirty_share() -> None:
    logs = manager(clock=ManualClock(NOW))
    lag = replace(COMPACT, max_compaction_lag_ms=LAG)
    for topic, stamp, cleaned in (("a", OLD, 2), ("b", OLD, 1), ("c", OLD - 1, 2), ("d", OLD, 0), ("e", OLD - 1, 0)):
        cleaner, log, _ = filled(((stamp,), (stamp,), (stamp,), (stamp,)), lag, logs, topic)
        log.update_high_watermark(log.log_end_offset)
        log.note_compacted(cleaned)
    order: list[str] = []

    async def clean(due: Due) -> CompactionResult | None:
        order.append(due.log.topic)
        return None

    cleaner.clean = clean  # type: ignore[method-assign]
    finish(cleaner.run())
    assert order == ["e", "c", "d", "b", "a"]


def test_producers_with_a_last_batch_or_marker_that_may_be_uncommitted_are_named_to_the_compaction() -> None:
    for committed in range(3, 8):
        logs = manager(clock=ManualClock(NOW))
        log = logs.create("t", TOPIC_ID, 0, COMPACT)
        for producer in (1, 2, 3):
            produce(log, producer_id=producer, producer_epoch=0, base_sequence=0, commit=False)
        log.roll()
        produce(log, producer_id=1, producer_epoch=0, base_sequence=1, commit=False)
        produce(log, producer_id=4, producer_epoch=0, base_sequence=0, transactional=True, commit=False)
        marker = build_end_txn(EndTxn(False, 0), producer_id=4, producer_epoch=1, timestamp=NOW)
        log.append_as_leader(marker, leader_epoch=0, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
        produce(log, producer_id=3, producer_epoch=0, base_sequence=1, commit=False)
        log.update_high_watermark(committed)
        assert not next(entry for entry in log.producers if entry.producer_id == 4).batches
        uncommitted = {producer for producer, last in ((1, 3), (2, 1), (3, 6)) if last >= committed}
        if committed < 7:
            uncommitted.add(4)  # the state does not tell the offset of its marker
        cleaner = Cleaner(logs, max_keys=77, may_drop_tombstones=lambda log: False)
        (due,) = cleaner.due()
        job = cleaner._job(due, log.segments[:-1])
        config = log.config
        assert set(job.uncommitted_producers) == uncommitted
        assert job == CompactionJob(
            log.path,
            [(0, log.segments[0].size)],
            0,
            3,
            NOW,
            config.delete_retention_ms,
            config.segment_bytes,
            config.segment_index_bytes,
            config.index_interval_bytes,
            77,
            [],
            {1: (3, 0), 2: (1, 0), 3: (6, 0), 4: (None, 1)},
            job.uncommitted_producers,
            False,
        )
