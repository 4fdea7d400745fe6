"""Compares the two scans of a segment file with a plain list of its batches, wherever chunks and the file end."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from penstock.disk.memory import MemoryDisk, MemoryFile
from penstock.log import scan
from penstock.log.scan import CorruptBatchError, scan_headers, scan_verified
from penstock.records.batches import crc32c
from penstock.records.build import build_batch
from penstock.records.header import CRC_POSITION, CRC_START, HEADER_SIZE, MIN_BATCH_LENGTH, BatchHeader, parse_header

Walk = Callable[[MemoryFile, int, int], Iterator[tuple[int, BatchHeader]]]


def verified(file: MemoryFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    for batch in scan_verified(file, position, end):
        assert bytes(batch.data) == file.pread(batch.header.size, batch.position)
        yield batch.position, batch.header


WALKS: list[Walk] = [scan_headers, verified]


def empty_batch(offset: int) -> bytes:
    """Returns a batch without records, as compaction leaves it: a header alone."""
    data = bytearray(build_batch([(5, b"k", b"v", ())], base_offset=offset)[:HEADER_SIZE])
    struct.pack_into(">i", data, 8, MIN_BATCH_LENGTH)
    struct.pack_into(">i", data, HEADER_SIZE - 4, 0)
    struct.pack_into(">I", data, CRC_POSITION, crc32c(data[CRC_START:]))
    return bytes(data)


def batches() -> list[bytes]:
    sizes = ((10, 1, 0), (11, 3, 5), (20, 1, 90), (21, 2, 1))
    full = [build_batch([(7, b"k", b"v" * size, ())] * count, base_offset=base) for base, count, size in sizes]
    return [*full, empty_batch(25)]


def stored(data: bytes) -> MemoryFile:
    disk = MemoryDisk()
    disk.write_new("/log", data)
    return disk.open("/log")


def walked(walk: Walk, file: MemoryFile, position: int, end: int) -> tuple[list[tuple[int, BatchHeader]], int | None]:
    """Returns the batches of a scan, and the position of the damage that ended it."""
    found: list[tuple[int, BatchHeader]] = []
    batches = walk(file, position, end)
    while True:
        try:
            found.append(next(batches))
        except StopIteration:
            return found, None
        except CorruptBatchError as error:
            return found, error.position


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("chunk", [HEADER_SIZE, HEADER_SIZE + 1, 100, 180, 4096])
def test_scan_yields_the_whole_batches_before_the_end_and_reports_a_batch_that_is_cut_off(
    walk: Walk, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "HEADER_CHUNK", chunk)
    monkeypatch.setattr(scan, "VERIFY_CHUNK", chunk)
    parts = batches()
    data = b"".join(parts)
    starts = [sum(map(len, parts[:number])) for number in range(len(parts) + 1)]
    expected = [(start, parse_header(part)) for start, part in zip(starts, parts, strict=False)]
    for first, start in enumerate(starts):
        for end in range(start, len(data) + 1):
            whole = max(number for number, each in enumerate(starts) if each <= end)
            for length in {end, len(data)}:  # the file ends there, or other bytes follow
                found, damage = walked(walk, stored(data[:length]), start, end)
                assert found == expected[first:whole]
                assert damage == (None if starts[whole] == end else starts[whole])


@pytest.mark.parametrize("walk", WALKS)
def test_scan_reads_no_byte_beyond_the_end_and_at_most_a_chunk_or_a_batch_at_once(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = 100
    monkeypatch.setattr(scan, "HEADER_CHUNK", chunk)
    monkeypatch.setattr(scan, "VERIFY_CHUNK", chunk)
    parts = batches()
    data = b"".join(parts)
    end = len(data) - len(parts[-1])
    reads: list[tuple[int, int]] = []
    pread = MemoryFile.pread

    def recorded(file: MemoryFile, size: int, offset: int) -> bytes:
        reads.append((size, offset))
        return pread(file, size, offset)

    monkeypatch.setattr(MemoryFile, "pread", recorded)
    walker = scan_headers if walk is scan_headers else scan_verified
    assert len(list(walker(stored(data), 0, end))) == len(parts) - 1
    assert max(size + offset for size, offset in reads) <= end
    assert max(size for size, _ in reads) <= max(chunk, *map(len, parts))


@pytest.mark.parametrize("walk", WALKS)
def test_scan_refuses_a_batch_that_begins_below_the_end_of_the_batch_before_it(walk: Walk) -> None:
    first = build_batch([(7, b"k", b"v", ())] * 3, base_offset=10)
    for offset in range(9, 16):
        second = build_batch([(7, b"k", b"v", ())], base_offset=offset)
        _, damage = walked(walk, stored(first + second), 0, len(first + second))
        assert damage == (len(first) if offset < 13 else None)


def test_verified_scan_refuses_a_first_batch_below_the_lowest_offset() -> None:
    data = build_batch([(7, b"k", b"v", ())], base_offset=10)
    for lowest in range(8, 13):
        try:
            found = len(list(scan_verified(stored(data), 0, len(data), lowest)))
        except CorruptBatchError:
            found = 0
        assert found == (1 if lowest <= 10 else 0)


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize(
    ("position", "value"),
    [
        (8, struct.pack(">i", MIN_BATCH_LENGTH - 1)),
        (8, struct.pack(">i", 1 << 30)),
        (8, struct.pack(">i", -1)),
        (16, b"\1"),
        (16, b"\3"),
        (23, struct.pack(">i", -1)),
    ],
    ids=["short", "long", "negative length", "old magic", "new magic", "negative delta"],
)
def test_scan_refuses_a_header_with_an_impossible_field(walk: Walk, position: int, value: bytes) -> None:
    first, second = batches()[:2]
    damaged = bytearray(second)
    damaged[position : position + len(value)] = value
    struct.pack_into(">I", damaged, CRC_POSITION, crc32c(damaged[CRC_START:]))
    found, damage = walked(walk, stored(first + damaged), 0, len(first + damaged))
    assert ([each for each, _ in found], damage) == ([0], len(first))


def test_verified_scan_refuses_a_change_of_any_byte_that_the_checksum_covers() -> None:
    first, second = batches()[:2]
    for position in range(CRC_POSITION, len(second)):
        damaged = bytearray(second)
        damaged[position] ^= 1
        found, damage = walked(verified, stored(first + damaged), 0, len(first + damaged))
        assert ([each for each, _ in found], damage) == ([0], len(first))


def test_file_that_is_shorter_than_its_known_size_is_reported() -> None:
    parts = batches()[:2]
    data = b"".join(parts)
    for walk in WALKS:
        for length in range(len(parts[0]), len(data)):
            found, damage = walked(walk, stored(data[:length]), 0, len(data))
            whole_header = length >= len(parts[0]) + HEADER_SIZE
            if walk is scan_headers and whole_header:
                assert (len(found), damage) == (2, None), "a scan of headers does not read the records"
            else:
                assert (len(found), damage) == (1, len(parts[0]))
