"""Tests that reads return the right batches by offset and by time, no batch beyond the bound, and no damaged batch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_harness import TOPIC_ID, manager, new_log, offsets, produce, read_all, run

from penstock.disk.memory import MemoryDisk
from penstock.log import slices
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.batches import split_batches
from penstock.records.build import build_batch
from tools.examples import examples

NOW = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=600, index_interval_bytes=150)


def spans(data: object) -> list[tuple[int, int]]:
    return [(h.base_offset, h.last_offset) for h, _ in split_batches(data, allow_partial=True)]  # type: ignore[arg-type]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 120)), min_size=1, max_size=60),
    st.data(),
)
def test_read_returns_the_batches_from_the_offset_to_the_upper_bound(
    sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    logs = manager()
    log = new_log(SMALL, logs)
    for count, size in sizes:
        produce(log, count, value=bytes(size))
    if data.draw(st.booleans()):
        log = reopened(logs)
    everything = [(h.base_offset, h.last_offset) for h, _ in read_all(log)]
    ends = [0, *(last + 1 for _, last in everything)]
    for _ in range(10):
        offset = data.draw(st.integers(0, log.log_end_offset))
        bound = data.draw(st.sampled_from(ends))
        max_bytes = data.draw(st.integers(0, 2000))
        one = data.draw(st.booleans())
        found = log.read(offset, max_bytes, upper_bound=bound, min_one_batch=one)
        got = spans(found.read_now())
        expected = [span for span in everything if span[1] >= offset and span[1] < bound]
        assert got == expected[: len(got)]
        if expected and one:
            assert got
        assert found.size <= max_bytes or len(got) == 1


def reopened(logs: LogManager) -> Log:
    run(logs.close())
    logs = manager(logs.disk)
    found = logs.get("t", 0)
    assert found is not None
    assert logs.dirs[0].clean
    return found


def test_read_at_an_offset_outside_of_the_log_fails_with_offset_out_of_range() -> None:
    log = new_log()
    produce(log, 5)
    log.advance_log_start_offset(2)
    for offset in (-1, 0, 1, 6):
        with pytest.raises(KafkaError) as error:
            log.read(offset, 100, upper_bound=5)
        assert error.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(5, 100, upper_bound=5).size == 0


def test_first_batch_that_exceeds_the_byte_limit_is_returned_unless_min_one_batch_is_false() -> None:
    log = new_log()
    produce(log, value=bytes(1000))
    produce(log, value=bytes(1000))
    first = log.read(0, 10, upper_bound=2)
    assert spans(first.read_now()) == [(0, 0)]
    assert log.read(0, 10, upper_bound=2, min_one_batch=False).size == 0


def test_a_read_inside_of_a_batch_starts_with_that_batch() -> None:
    log = new_log()
    produce(log, 10)
    assert spans(log.read(7, 1000, upper_bound=10).read_now()) == [(0, 9)]


def test_read_returns_no_batch_at_or_above_the_upper_bound() -> None:
    log = new_log(SMALL)
    for _ in range(20):
        produce(log, 2)
    assert spans(log.read(6, 1 << 20, upper_bound=8).read_now()) == [(6, 7)]
    assert log.read(8, 1 << 20, upper_bound=8).size == 0
    assert log.read(9, 1 << 20, upper_bound=8).size == 0


def test_cached_and_asynchronous_and_blocking_reads_of_a_slice_return_the_same_bytes() -> None:
    log = new_log()
    produce(log, 3)
    found = log.read(0, 1000, upper_bound=3)
    expected = found.read_now()
    assert bytes(found.read_cached() or b"") == expected
    assert asyncio.run(found.read()) == expected
    empty = log.read(3, 1000, upper_bound=3)
    assert empty.read_cached() == b""
    assert empty.segment_base_offset == -1


def test_records_are_found_by_their_time_across_segments() -> None:
    log = new_log(SMALL)
    for number in range(60):
        stamp = NOW + number * 10
        data = build_batch([(stamp + step, b"k", b"v" * 20, ()) for step in (0, 5)])
        log.append_as_leader(data, leader_epoch=number // 20, now_ms=NOW)
    assert len(log.segments) > 3
    for wanted, offset in (
        (0, 0),
        (NOW, 0),
        (NOW + 1, 1),
        (NOW + 5, 1),
        (NOW + 6, 2),
        (NOW + 333, 67),
        (NOW + 595, 119),
    ):
        found = asyncio.run(log.offset_for_timestamp(wanted))
        assert found is not None
        assert found.offset == offset
        assert found.leader_epoch == offset // 40
        assert found.timestamp >= wanted
    assert asyncio.run(log.offset_for_timestamp(NOW + 596)) is None
    newest = asyncio.run(log.max_timestamp_offset())
    assert newest is not None
    assert (newest.timestamp, newest.offset) == (NOW + 595, 119)


def test_largest_timestamp_is_found_even_if_the_last_record_has_a_smaller_timestamp() -> None:
    log = new_log(SMALL)
    for stamp in (10, 20, 99, 30, 99, 40):
        produce(log, timestamp=NOW + stamp, value=bytes(200))
    newest = asyncio.run(log.max_timestamp_offset())
    assert newest is not None
    assert (newest.timestamp, newest.offset) == (NOW + 99, 2)
    found = asyncio.run(log.offset_for_timestamp(NOW + 25))
    assert found is not None
    assert found.offset == 2


def test_search_by_time_starts_at_the_log_start() -> None:
    log = new_log()
    for _ in range(4):
        produce(log, timestamp=NOW)
    log.advance_log_start_offset(2)
    found = asyncio.run(log.offset_for_timestamp(0))
    assert found is not None
    assert found.offset == 2
    assert asyncio.run(new_log().max_timestamp_offset()) is None


def restarted(disk: MemoryDisk) -> tuple[LogManager, Log]:
    logs = manager(disk)
    log = logs.get("t", 0)
    assert log is not None
    log.update_high_watermark(log.log_end_offset)
    return logs, log


def stopped_with(count: int) -> MemoryDisk:
    disk = MemoryDisk()
    logs = manager(disk)
    log = logs.create("t", TOPIC_ID, 0, SMALL)
    for _ in range(count):
        produce(log, value=bytes(100))
    run(logs.close())
    return disk


def test_bytes_written_by_an_earlier_process_are_verified_only_once() -> None:
    _, log = restarted(stopped_with(3))
    found = log.read(0, 1 << 20, upper_bound=3)
    assert found.read_cached() is None
    assert spans(asyncio.run(found.read())) == [(0, 0), (1, 1), (2, 2)]
    assert found.read_cached() is not None
    produce(log)
    assert log.read(3, 1 << 20, upper_bound=4).read_cached() is not None


def test_a_damaged_batch_is_reported_and_only_the_other_batches_are_served() -> None:
    disk = stopped_with(3)
    disk.inode("/logs/t-0/00000000000000000000.log").data[61 + 181 + 20] ^= 1
    logs, log = restarted(disk)
    data = asyncio.run(log.read(0, 1 << 20, upper_bound=3).read())
    assert spans(data) == [(0, 0)]
    damaged = log.read(1, 1 << 20, upper_bound=3)
    assert damaged.read_cached() is None
    for read in (damaged.read_now, lambda: asyncio.run(damaged.read())):
        with pytest.raises(KafkaError) as error:
            read()
        assert error.value.code == ErrorCode.CORRUPT_MESSAGE
    assert "checksum" in logs.corruptions["t", 0]
    assert spans(asyncio.run(log.read(2, 1 << 20, upper_bound=3).read())) == [(2, 2)]
    assert produce(log) == 3


def test_checksums_of_a_large_read_are_verified_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = stopped_with(30)
    _, log = restarted(disk)
    in_threads: list[Any] = []

    async def run_aside(function: Any, *args: Any) -> Any:
        in_threads.append(function)
        return function(*args)

    monkeypatch.setattr(disk, "run", run_aside)
    found = log.read(0, 1 << 20, upper_bound=30)
    monkeypatch.setattr(slices, "CHECKED_AT_ONCE", found.size - 1)
    assert len(spans(asyncio.run(found.read()))) == len(spans(found.read_cached())) > 1
    assert len(in_threads) == 1
    assert asyncio.run(found.read()) == found.read_cached()
    assert len(in_threads) == 1, "what was checked is not checked again"


@pytest.mark.parametrize("appends_after_truncation", [0, 30])
def test_read_that_overlaps_a_truncation_is_refused_and_reports_no_damage(appends_after_truncation: int) -> None:
    logs = manager()
    log = new_log(LogConfig(), logs)
    for _ in range(10):
        produce(log, value=bytes(100))
    located = log.read(1, 1 << 20, upper_bound=10)
    log.truncate_to(3)
    for _ in range(appends_after_truncation):
        produce(log, value=bytes(77))
    for read in (located.read_cached, located.read_now, lambda: asyncio.run(located.read())):
        with pytest.raises(KafkaError) as error:
            read()
        assert error.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not logs.corruptions
    assert spans(log.read(1, 1 << 20, upper_bound=3).read_now()) == [(1, 1), (2, 2)]


def test_batch_with_an_impossible_length_is_reported_as_damaged() -> None:
    disk = stopped_with(3)
    disk.inode("/logs/t-0/00000000000000000000.log").data[8] = 0x7F
    logs = manager(disk)
    assert logs.get("t", 0) is None, "the log could not be made sense of"
    assert ("t", 0) in logs.corruptions
    with pytest.raises(KafkaError, match="restore it, or move it away") as refused:
        logs.create("t", TOPIC_ID, 0, SMALL)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert disk.exists("/logs/t-0/00000000000000000000.log"), "it may be the only copy"


def test_damaged_log_is_renamed_when_its_topic_name_is_created_again() -> None:
    disk = stopped_with(3)
    disk.inode("/logs/t-0/00000000000000000000.log").data[8] = 0x7F
    logs = manager(disk)
    again = logs.create("t", bytes(15) + b"2", 0, SMALL)
    assert again.log_end_offset == 0
    assert any(name.endswith("-stray") for name in disk.listdir("/logs"))
    assert ("t", 0) not in logs.corruptions


def test_batches_can_be_read_while_new_batches_are_written_and_old_batches_are_deleted() -> None:
    log = new_log(LogConfig(segment_bytes=200, retention_bytes=0))
    for _ in range(6):
        produce(log, value=bytes(60))
    found = log.read(0, 1 << 20, upper_bound=6)
    assert log.delete_old_segments(NOW) > 0
    assert spans(found.read_now()) == [(0, 0)]
    assert offsets(log) == []
