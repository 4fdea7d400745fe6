"""Tests appends of several batches at once: their segments, their leader epochs, their producers and their limits."""

from __future__ import annotations

from itertools import product

import pytest
from log_harness import batch, manager, new_log, offsets, produce, read_all
from move_harness import state

from penstock.disk.memory import MemoryDisk
from penstock.log.appending import start_with_first_batch
from penstock.log.log import AppendOrigin, Log
from penstock.log.manager import LogManager
from penstock.log.segment import MAX_RELATIVE_OFFSET
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn

NOW = 1_700_000_000_000
SIZE = len(batch(value=b""))
SMALL = LogConfig(segment_bytes=3 * SIZE, index_interval_bytes=0, retention_ms=-1)


def fetched(offset: int, more: int = 0, *, epoch: int = 0, count: int = 1) -> bytes:
    """Returns a batch as a follower fetches it, with `more` bytes than the smallest."""
    return build_batch([(1, b"key", bytes(more), ())] * count, base_offset=offset, leader_epoch=epoch)


def segments(log: Log) -> list[tuple[int, int]]:
    return [(segment.base_offset, segment.size) for segment in log.segments]


def test_batches_that_a_follower_appends_together_or_one_by_one_go_into_the_same_segments() -> None:
    logs = manager()
    for number, sizes in enumerate(product((0, 1, SIZE), repeat=4)):
        batches = [fetched(offset, more, epoch=offset // 2) for offset, more in enumerate(sizes)]
        together = new_log(SMALL, logs, topic=f"together{number}")
        together.append_as_follower(b"".join(batches), 9)
        alone = new_log(SMALL, logs, topic=f"alone{number}")
        for data in batches:
            alone.append_as_follower(data, 9)
        assert segments(together) == segments(alone)
        assert state(together) == state(alone)
        assert together.epochs.entries == [(0, 0), (1, 2)]
        assert together.appended_bytes == together.size


@pytest.mark.parametrize("last", [MAX_RELATIVE_OFFSET - 1, MAX_RELATIVE_OFFSET, MAX_RELATIVE_OFFSET + 1])
@pytest.mark.parametrize("together", [False, True])
def test_batch_whose_offset_does_not_fit_the_indexes_of_the_segment_begins_a_new_segment(
    last: int, together: bool
) -> None:
    log = new_log()
    batches = [fetched(0), fetched(last)]
    for data in [b"".join(batches)] if together else batches:
        log.append_as_follower(data, 0)
    assert log.segments.bases == ([0] if last <= MAX_RELATIVE_OFFSET else [0, 1])
    assert offsets_of(log) == [0, last]


def offsets_of(log: Log) -> list[int]:
    return [header.base_offset for header, _ in read_all(log)]


@pytest.mark.parametrize("epochs", list(product((3, 4, 5, 6), repeat=2)))
def test_follower_appends_batches_up_to_the_epoch_of_its_leader(epochs: tuple[int, int]) -> None:
    log = new_log()
    info = log.append_as_follower(fetched(0, epoch=epochs[0]) + fetched(1, epoch=epochs[1]), 5)
    allowed = next((number for number, epoch in enumerate(epochs) if epoch > 5), 2)
    assert log.log_end_offset == allowed
    assert (None if info is None else (info.base_offset, info.last_offset)) == ((0, allowed - 1) if allowed else None)


@pytest.mark.parametrize("offset", [0, 2, 3, 4])
def test_follower_refuses_a_batch_below_its_log_end_and_accepts_a_batch_after_a_gap(offset: int) -> None:
    log = new_log()
    log.append_as_follower(fetched(0, count=3), 0)
    if offset < 3:
        with pytest.raises(KafkaError) as error:
            log.append_as_follower(fetched(offset), 0)
        assert error.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert log.log_end_offset == 3
    else:
        log.append_as_follower(fetched(offset) + fetched(offset + 1, count=2), 0)
        assert offsets_of(log) == [0, offset, offset + 1]


def test_empty_log_that_would_start_inside_the_first_batch_starts_with_this_batch() -> None:
    logs = manager()
    for start in range(1, 8):
        log = logs.create(f"t{start}", bytes(range(16)), 0, SMALL, start_offset=start)
        data = fetched(3, count=3)
        start_with_first_batch(log, data[:60])
        assert log.log_start_offset == start, "the header is incomplete"
        start_with_first_batch(log, data)
        assert log.log_start_offset == log.log_end_offset == (3 if 3 < start < 6 else start)
        start_with_first_batch(log, fetched(-1, count=20))
        assert log.log_start_offset >= min(start, 3), "no log starts at a negative offset"


@pytest.mark.parametrize("start", [2, 3, 4, 5])
def test_empty_log_that_would_start_inside_a_batch_without_records_starts_with_this_batch(start: int) -> None:
    log = manager().create("t", bytes(range(16)), 0, SMALL, start_offset=start)
    start_with_first_batch(log, fetched(2, count=3)[:61])
    assert log.log_start_offset == (2 if 2 < start < 5 else start)


@pytest.mark.parametrize("more", [0, 1])
def test_batch_of_exactly_segment_bytes_is_accepted_and_a_larger_one_refused(more: int) -> None:
    marker = build_end_txn(EndTxn(True, 0), producer_id=1, producer_epoch=0, timestamp=NOW)
    for data, origin in ((batch(value=bytes(9)), AppendOrigin.CLIENT), (marker, AppendOrigin.COORDINATOR)):
        log = new_log(LogConfig(segment_bytes=len(data) - more))
        if more:
            with pytest.raises(KafkaError) as error:
                log.append_as_leader(data, leader_epoch=0, now_ms=NOW, origin=origin)
            assert error.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
        else:
            log.append_as_leader(data, leader_epoch=0, now_ms=NOW, origin=origin)
        assert log.log_end_offset == 1 - more


# Producers.


def transact(log: Log, producer: int) -> None:
    """Appends an aborted transaction and an open one."""
    for sequence in (0, 1):
        produce(log, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True)
        if not sequence:
            marker = build_end_txn(EndTxn(False, 3), producer_id=producer, producer_epoch=0, timestamp=NOW)
            log.append_as_leader(marker, leader_epoch=0, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)


@pytest.mark.parametrize("producer", [0, 1])
def test_state_of_a_producer_is_the_same_in_leader_and_follower_and_after_a_crash(producer: int) -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    leader, follower = new_log(SMALL, logs, "leader"), new_log(SMALL, logs, "follower")
    transact(leader, producer)
    follower.append_as_follower(b"".join(data for _, data in read_all(leader)), 0)
    follower.update_high_watermark(3)
    assert state(follower) == state(leader)
    assert [entry.producer_id for entry in leader.producers] == [producer]
    assert (leader.last_stable_offset, len(leader.aborted_transactions(0, 3))) == (2, 1)
    logs.abandon()
    again = manager(disk)
    for name in ("leader", "follower"):
        log = again.get(name, 0)
        assert log is not None
        log.update_high_watermark(3)
        assert state(log) == state(leader)


# Flushes.


def wanted(logs: LogManager, log: Log) -> bool:
    return log in logs.flush_queue


def test_log_asks_for_a_flush_at_exactly_the_limit_of_unflushed_bytes_or_messages() -> None:
    for limit, asks in ((2 * SIZE - 1, True), (2 * SIZE, True), (2 * SIZE + 1, False)):
        logs = manager()
        logs.environment.unflushed_bytes = limit
        log = new_log(LogConfig(), logs)
        produce(log, value=b"")
        assert not wanted(logs, log)
        produce(log, value=b"")
        assert wanted(logs, log) is asks
    for messages, asks in ((2, True), (3, True), (4, False), (1, False)):
        logs = manager()
        log = new_log(LogConfig(flush_messages=messages), logs)
        produce(log, 3)
        assert wanted(logs, log) is asks


def test_new_segment_asks_for_a_flush_of_the_previous_segment() -> None:
    logs = manager()
    log = new_log(SMALL, logs)
    produce(log, value=b"")
    assert not wanted(logs, log)
    log.roll()
    assert wanted(logs, log)


def test_high_watermark_is_at_most_the_log_end_and_never_goes_back() -> None:
    log = new_log()
    produce(log, 3, commit=False)
    for asked, expected in ((1, 1), (0, 1), (2, 2), (9, 3), (3, 3)):
        assert log.update_high_watermark(asked) == log.high_watermark == expected
    assert offsets(log) == [0, 1, 2]
