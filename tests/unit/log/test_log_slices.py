"""Tests the bytes that a read returns: only valid whole batches of the file, compared with a plain list of batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product

import pytest
from log_harness import TOPIC_ID, batch, manager, new_log, produce, run

from penstock.disk.memory import MemoryDisk
from penstock.log.slices import LogSlice, _good_bytes
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.compact import empty_batch
from penstock.records.header import HEADER_SIZE, MAGIC_POSITION, parse_header

FILE = "/logs/t-0/00000000000000000000.log"


def batches(kinds: tuple[int, ...]) -> list[bytes]:
    """Returns consecutive batches with these numbers of records; 0 is a batch whose record compaction has removed."""
    found: list[bytes] = []
    offset = 0
    for count in kinds:
        data = batch(max(1, count), base_offset=offset)
        found.append(data if count else empty_batch(parse_header(data)))
        offset += max(1, count)
    return found


KINDS = [kinds for length in range(1, 4) for kinds in product((0, 1, 2), repeat=length)]


def test_incomplete_batch_at_the_end_of_a_read_is_not_counted_as_damage() -> None:
    for kinds in KINDS:
        parts = batches(kinds)
        data = b"".join(parts)
        ends = [sum(map(len, parts[:count])) for count in range(len(parts) + 1)]
        for size in range(len(data) + 1):
            assert _good_bytes(data[:size]) == (max(end for end in ends if end <= size), False), (kinds, size)


def test_bytes_end_before_the_first_damaged_batch_whatever_its_length_says() -> None:
    def magic(data: bytearray) -> None:
        data[MAGIC_POSITION] = 1

    def content(data: bytearray) -> None:
        data[-1] ^= 1

    def too_short(data: bytearray) -> None:
        data[8:12] = (HEADER_SIZE - 12 - 1).to_bytes(4, "big")

    def magic_and_too_long(data: bytearray) -> None:
        magic(data)
        data[8] = 0x7F

    damages: list[Callable[[bytearray], None]] = [magic, content, too_short, magic_and_too_long]
    for kinds, damage in product(KINDS, damages):
        parts = batches(kinds)
        for slot in range(len(parts)):
            broken = bytearray(parts[slot])
            damage(broken)
            data = b"".join([*parts[:slot], broken, *parts[slot + 1 :]])
            assert _good_bytes(data) == (sum(map(len, parts[:slot])), True), (kinds, damage, slot)


def test_batch_whose_offsets_overlap_the_batch_before_it_is_damaged_and_a_gap_is_not() -> None:
    first = batch(2, base_offset=5)
    for base in range(9):
        second = batch(1, base_offset=base)
        valid = base >= 7
        expected = len(first) + (len(second) if valid else 0)
        assert _good_bytes(first + second) == (expected, not valid)


def ways(found: LogSlice) -> list[Callable[[], object]]:
    return [found.read_now, lambda: asyncio.run(found.read())]


def test_empty_read_gives_no_bytes_even_after_a_truncation() -> None:
    log = new_log()
    for _ in range(3):
        produce(log)
    segment = log.segments[0]
    for empty in (log.read(3, 1 << 20, upper_bound=3), LogSlice(log, segment, 0, 0)):
        log.truncations += 1
        assert len(empty) == 0
        assert [read() for read in (empty.read_cached, *ways(empty))] == [b""] * 3


@pytest.mark.parametrize("restarted", [False, True])
def test_read_of_a_file_that_lost_its_end_is_an_error_and_reports_the_damage(restarted: bool) -> None:
    for way, lost in product(range(2), (1, 100)):
        disk = MemoryDisk()
        logs = manager(disk)
        log = logs.create("t", TOPIC_ID, 0, LogConfig())
        for _ in range(3):
            produce(log)
        if restarted:
            run(logs.close())
            logs = manager(disk)
            known = logs.get("t", 0)
            assert known is not None
            log = known
        found = log.read(0, 1 << 20, upper_bound=3)
        del disk.inode(FILE).data[-lost:]
        with pytest.raises(KafkaError) as refused:
            ways(found)[way]()
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
        assert "shorter" in logs.corruptions["t", 0]
