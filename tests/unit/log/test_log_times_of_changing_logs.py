"""Tests searches by time in logs that change while a batch is unpacked, and in batches that cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from log_harness import manager, new_log, run

from penstock.disk.memory import MemoryDisk
from penstock.log.log import Log
from penstock.log.timestamps import TimestampedOffset
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.build import build_batch, seal
from penstock.records.compression import Codec
from penstock.records.header import HEADER_SIZE, parse_header

NOW = 1_700_000_000_000
FILE = "/logs/t-0/00000000000000000000.log"
Search = Callable[[], Awaitable[TimestampedOffset | None]]


def append(log: Log, data: bytes) -> None:
    log.append_as_leader(data, leader_epoch=0, now_ms=NOW)
    log.update_high_watermark(log.log_end_offset)


def stamped(*times: int) -> bytes:
    return build_batch([(NOW + time, b"k", None, ()) for time in times])


def claiming(data: bytes, max_timestamp: int) -> bytes:
    """Returns the batch with another largest timestamp in its header: a client may write any."""
    header = parse_header(data)._replace(max_timestamp=NOW + max_timestamp)
    return seal(header, data[HEADER_SIZE:]) + data[HEADER_SIZE:]


def undecodable(count: int) -> bytes:
    """Returns a batch with a valid checksum whose records cannot be unpacked."""
    header = parse_header(build_batch([(NOW + 5, b"k", None, ())] * count, compression=Codec.ZSTD))
    garbage = bytes(range(50))
    return seal(header, garbage) + garbage


def found_after(search: Search, change: Callable[[], object]) -> tuple[int, int] | None:
    """Makes the change while the search unpacks its first batch. Returns timestamp and offset of the result."""

    async def work() -> TimestampedOffset | None:
        pending = asyncio.ensure_future(search())
        await asyncio.sleep(0)
        assert not pending.done()
        change()
        return await pending

    found = asyncio.run(work())
    return None if found is None else (found.timestamp - NOW, found.offset)


@pytest.mark.parametrize(("start", "expected"), [(1, (500, 3)), (3, (500, 3)), (4, (600, 5)), (6, None)])
def test_search_by_time_finds_no_record_below_a_log_start_that_moved_meanwhile(
    start: int, expected: tuple[int, int] | None
) -> None:
    log = new_log()
    for time in (0, 0, 0, 500, 0, 600):
        append(log, claiming(stamped(time), 1000))
    found = found_after(lambda: log.offset_for_timestamp(NOW + 500), lambda: log.advance_log_start_offset(start))
    assert found == expected


@pytest.mark.parametrize(("start", "expected"), [(1, (9, 2)), (2, (9, 2)), (4, (9, 4)), (6, None)])
def test_search_for_the_newest_record_finds_no_record_below_a_log_start_that_moved_meanwhile(
    start: int, expected: tuple[int, int] | None
) -> None:
    """The first batch is unpacked in vain: its newest record is below the log start already."""
    log = new_log()
    for _ in range(3):
        append(log, stamped(9, 8))
    log.advance_log_start_offset(1)
    found = found_after(log.max_timestamp_offset, lambda: log.advance_log_start_offset(start))
    assert found == expected


@pytest.mark.parametrize("start", [0, 1, 2, 3, 4])
def test_undecodable_batch_counts_as_its_first_record_that_is_not_below_the_log_start(start: int) -> None:
    log = new_log()
    append(log, stamped(0))
    append(log, undecodable(4))
    log.advance_log_start_offset(start)
    expected = TimestampedOffset(NOW + 5, max(start, 1), 0)
    assert run(log.offset_for_timestamp(NOW + 1)) == expected
    assert run(log.max_timestamp_offset()) == expected


def test_search_by_time_that_meets_a_damaged_batch_fails_instead_of_guessing() -> None:
    for codec in (Codec.GZIP, Codec.ZSTD):
        disk = MemoryDisk()
        log = new_log(logs=manager(disk))
        data = build_batch([(NOW + 5, b"k", bytes(100), ())] * 2, compression=codec)
        append(log, stamped(0))
        before = log.size
        append(log, data)
        for at in range(HEADER_SIZE, len(data)):
            disk.inode(FILE).data[before + at] ^= 0xFF
        for search in (lambda log=log: log.offset_for_timestamp(NOW + 1), log.max_timestamp_offset):
            with pytest.raises(KafkaError) as refused:
                run(search())
            assert refused.value.code is not ErrorCode.NONE
