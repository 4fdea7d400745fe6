"""Compares reads, searches by time and aborted transactions of small logs with a plain list of the records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

import pytest
from log_harness import batch, manager, new_log, produce, read_all, run

from penstock.log.log import AppendOrigin, Log
from penstock.log.timestamps import TimestampedOffset
from penstock.log.txn_index import AbortedTransaction
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn

SIZE = len(batch(2, value=b"v", timestamp=1))
#: Two batches per segment, and an index entry for nearly every batch.
CONFIG = LogConfig(segment_bytes=2 * SIZE, index_interval_bytes=0, retention_ms=-1)


# Reads.


def test_read_returns_whole_batches_of_one_segment_below_the_bound_and_within_the_byte_limit() -> None:
    log = new_log(CONFIG)
    for _ in range(5):
        produce(log, 2, value=b"v", timestamp=1)
    assert log.segments.bases == [0, 4, 8]
    for offset, bound, limit, one in product(range(11), range(0, 12, 2), range(0, 3 * SIZE, SIZE // 2), (False, True)):
        segment_end = min(offset // 4 * 4 + 4, 10)
        batches = max(0, min(bound, segment_end) // 2 - offset // 2)
        expected = min(limit, batches * SIZE)
        if expected < SIZE:
            expected = SIZE if one and batches else 0
        assert log.read(offset, limit, upper_bound=bound, min_one_batch=one).size == expected


def test_read_below_the_log_start_or_above_the_log_end_fails() -> None:
    log = new_log(CONFIG)
    for _ in range(3):
        produce(log, 2, value=b"v", timestamp=1)
    log.advance_log_start_offset(3)
    for offset in range(-1, 9):
        if 3 <= offset <= 6:
            assert bool(log.read(offset, 1 << 20, upper_bound=6).size) is (offset < 6)
        else:
            with pytest.raises(KafkaError) as error:
                log.read(offset, 1 << 20, upper_bound=6)
            assert error.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


# Bytes of an earlier process.


def three_batches() -> tuple[Log, list[bytes]]:
    """Returns a log with three batches that an earlier process wrote, and the batches."""
    logs = manager()
    log = new_log(LogConfig(), logs)
    for _ in range(3):
        produce(log, 2, value=b"v", timestamp=1)
    batches = [data for _, data in read_all(log)]
    run(logs.close())
    found = manager(logs.disk).get("t", 0)
    assert found is not None
    return found, batches


def put(log: Log, at: int, data: bytes) -> None:
    """Changes bytes of the log's file behind the back of the process."""
    log.environment.disk.open(log.segments.active.file.path).pwrite(data, at)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_batch_with_any_changed_byte_is_not_served(number: int) -> None:
    log, batches = three_batches()
    for at in range(16, SIZE):  # the CRC covers no byte of the offset, the length and the leader epoch
        whole = log.read(0, 1 << 20, upper_bound=6)
        assert whole.size == 3 * SIZE
        put(log, number * SIZE + at, bytes([batches[number][at] ^ 0x41]))
        assert whole.read_cached() is None, "its bytes are not verified"
        for read in (whole.read_now, lambda slice=whole: asyncio.run(slice.read())):
            if number:
                assert bytes(read()) == b"".join(batches[:number])
            else:
                with pytest.raises(KafkaError) as error:
                    read()
                assert error.value.code is ErrorCode.CORRUPT_MESSAGE
        put(log, number * SIZE + at, batches[number][at : at + 1])


@pytest.mark.parametrize(
    "field",
    [
        pytest.param((0, (1).to_bytes(8, "big")), id="offset of the batch before it"),
        pytest.param((8, (10).to_bytes(4, "big")), id="length below the least"),
        pytest.param((8, (1 << 20).to_bytes(4, "big")), id="length beyond the read"),
    ],
)
def test_batch_with_an_impossible_offset_or_length_ends_the_served_bytes(field: tuple[int, bytes]) -> None:
    log, batches = three_batches()
    put(log, SIZE + field[0], field[1])
    assert bytes(log.read(0, 1 << 20, upper_bound=6).read_now()) == batches[0]


def test_read_whose_first_batch_has_a_wrong_magic_byte_is_refused_whatever_length_the_batch_claims() -> None:
    log, batches = three_batches()
    for length in (10, SIZE - 12, 1 << 20):
        from_second = log.read(2, 1 << 20, upper_bound=6)
        put(log, SIZE + 8, length.to_bytes(4, "big") + batches[1][12:16] + b"\1")
        with pytest.raises(KafkaError) as error:
            from_second.read_now()
        assert error.value.code is ErrorCode.CORRUPT_MESSAGE
        put(log, SIZE, batches[1])


def test_read_that_ends_inside_a_batch_of_an_earlier_process_returns_only_whole_batches() -> None:
    log, batches = three_batches()
    for limit in range(2 * SIZE + 1, 3 * SIZE):
        assert bytes(log.read(0, limit, upper_bound=6).read_now()) == batches[0] + batches[1]


def test_file_that_became_shorter_than_the_read_is_reported_as_damaged() -> None:
    log, _ = three_batches()
    whole = log.read(0, 1 << 20, upper_bound=6)
    log.environment.disk.open(log.segments.active.file.path).truncate(2 * SIZE)
    with pytest.raises(KafkaError) as error:
        whole.read_now()
    assert error.value.code is ErrorCode.CORRUPT_MESSAGE


# Searches by time.


class Stamped(NamedTuple):
    offset: int
    timestamp: int
    epoch: int


#: The timestamps of the two records of a batch.
STAMPS = ((1, 2), (3, 1), (2, 2))


def logs_with_times() -> Iterator[tuple[Log, list[Stamped]]]:
    logs = manager()
    for number, stamps in enumerate(product(STAMPS, repeat=4)):
        log = new_log(CONFIG, logs, topic=f"t{number}")
        for epoch, pair in enumerate(stamps):
            data = build_batch([(stamp, b"key", b"v", ()) for stamp in pair])
            log.append_as_leader(data, leader_epoch=epoch, now_ms=1)
        log.update_high_watermark(log.log_end_offset)
        flat = [stamp for pair in stamps for stamp in pair]
        yield log, [Stamped(offset, stamp, offset // 2) for offset, stamp in enumerate(flat)]


def test_search_by_time_finds_the_first_visible_record_at_or_after_the_time() -> None:
    async def work() -> None:
        for log, records in logs_with_times():
            for start in range(9):
                log.advance_log_start_offset(start)
                for wanted in range(5):
                    later = [each for each in records if each.offset >= start and each.timestamp >= wanted]
                    expected = TimestampedOffset(later[0].timestamp, later[0].offset, later[0].epoch) if later else None
                    assert await log.offset_for_timestamp(wanted) == expected

    asyncio.run(work())


def test_search_for_the_newest_record_finds_the_first_record_with_the_largest_timestamp() -> None:
    async def work() -> None:
        for log, records in logs_with_times():
            newest = max(each.timestamp for each in records)
            for start in range(9):
                log.advance_log_start_offset(start)
                found = await log.max_timestamp_offset()
                first = next(each for each in records if each.timestamp == newest)
                if first.offset >= start:
                    assert found == TimestampedOffset(newest, first.offset, first.epoch)
                elif found is not None:
                    assert Stamped(found.offset, found.timestamp, found.leader_epoch) in records[start:]

    asyncio.run(work())


@pytest.mark.parametrize("stamps", [(-1, -1), (-1, 0), (0, -1)])
def test_search_for_the_newest_record_ignores_records_without_a_timestamp(stamps: tuple[int, int]) -> None:
    log = new_log(LogConfig(segment_bytes=SIZE + 20))
    for stamp in stamps:
        produce(log, timestamp=stamp, value=bytes(20))
    assert len(log.segments) == 2
    found = run(log.max_timestamp_offset())
    offset = stamps.index(0) if 0 in stamps else None
    assert (None if found is None else (found.timestamp, found.offset)) == (None if offset is None else (0, offset))


# Aborted transactions.


class Transactions:
    """Appends to a log: `a` and `b` are records of two producers, `A` and `B` abort their transactions, `C` commits
    the transaction of `a`."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.open: dict[str, int] = {}
        self.sequences = {"a": 0, "b": 0}
        self.aborted: list[AbortedTransaction] = []

    def step(self, symbol: str) -> None:
        log, name = self.log, "a" if symbol in "aAC" else "b"
        producer = "ab".index(name)
        offset = log.log_end_offset
        if symbol == name:
            produce(log, producer_id=producer, producer_epoch=0, base_sequence=self.sequences[name], transactional=True)
            self.sequences[name] += 1
            self.open.setdefault(name, offset)
            return
        marker = build_end_txn(EndTxn(symbol == "C", 0), producer_id=producer, producer_epoch=0, timestamp=1)
        log.append_as_leader(marker, leader_epoch=0, now_ms=1, origin=AppendOrigin.COORDINATOR)
        log.update_high_watermark(log.log_end_offset)
        first = self.open.pop(name)
        if symbol != "C":
            stable = min(self.open.values(), default=offset + 1)
            self.aborted.append(AbortedTransaction(producer, first, offset, stable))


def histories(length: int) -> Iterator[str]:
    """Yields the histories in which only open transactions end."""
    for symbols in product("abABC", repeat=length):
        is_open: set[str] = set()
        for symbol in symbols:
            if symbol in "ab":
                is_open.add(symbol)
            elif (producer := "b" if symbol == "B" else "a") in is_open:
                is_open.discard(producer)
            else:
                break
        else:
            yield "".join(symbols)


def test_aborted_transactions_of_every_range_are_those_that_overlap_it() -> None:
    logs = manager()
    config = LogConfig(segment_bytes=250, index_interval_bytes=0, retention_ms=-1)
    for number, history in enumerate(histories(5)):
        log = new_log(config, logs, topic=f"t{number}")
        transactions = Transactions(log)
        for symbol in history:
            transactions.step(symbol)
        assert len(log.segments) > 1
        for start, end in combinations(range(7), 2):
            overlapping = [
                each for each in transactions.aborted if each.last_offset >= start and each.first_offset < end
            ]
            assert log.aborted_transactions(start, end) == overlapping


@pytest.mark.parametrize("interval", [0, 100_000])
@pytest.mark.parametrize("history", ["abAaBAb", "aAbBaA", "ababABab", "abBbBAab", "aAbBaAbBaAbB"])
def test_read_reports_all_aborted_transactions_of_its_records_and_none_outside_its_range(
    history: str, interval: int
) -> None:
    """The index narrows the range further; without entries, the range ends with the segment."""
    log = new_log(LogConfig(segment_bytes=450, index_interval_bytes=interval, retention_ms=-1))
    transactions = Transactions(log)
    for symbol in history:
        transactions.step(symbol)
    end_offset = log.log_end_offset
    for (start, bound), limit in product(combinations(range(end_offset + 1), 2), (1, 150, 250, 1 << 20)):
        found = log.read(start, limit, upper_bound=bound)
        assert found.segment is not None
        served = [
            header.base_offset
            for header, _ in read_all(log)
            if found.position <= _position(log, header.base_offset) < found.position + found.size
            and log.segments.starting_at(header.base_offset)[0] is found.segment
        ]
        named = found.aborted(start, bound)
        for each in transactions.aborted:
            if any(each.first_offset <= offset <= each.last_offset for offset in served):
                assert each in named
            if each in named:
                assert each.last_offset >= start
                assert each.first_offset < min(bound, _end(log, found.segment.base_offset))


def _end(log: Log, base_offset: int) -> int:
    """Returns the offset after the segment with this base offset."""
    return min((base for base in log.segments.bases if base > base_offset), default=log.log_end_offset)


def _position(log: Log, offset: int) -> int:
    return log.segments.starting_at(offset)[0].position_of(offset)
