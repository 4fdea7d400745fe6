"""Tests that unpacking small batches with many records does not block the event loop, and is limited in parallel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, ParamSpec, TypeVar

import pytest
from log_harness import new_log

from penstock.disk.memory import MemoryDisk
from penstock.log import unpacking
from penstock.log.log import Log
from penstock.log.unpacking import SMALL_BATCHES, Unpacking
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.build import build_batch, seal
from penstock.records.compression import Codec
from penstock.records.header import HEADER_SIZE, parse_header
from penstock.records.record import read_records
from penstock.records.scan import SLICE_RECORDS
from penstock.records.validate import UnpackFirstError

P = ParamSpec("P")
T = TypeVar("T")
NOW = 1_700_000_000_000
SLICES = 50
MANY = SLICES * SLICE_RECORDS


def bomb(*, key: bytes | None = b"k", codec: int = Codec.ZSTD, timestamp: int = NOW) -> bytes:
    return build_batch([(timestamp, key, None, ())] * MANY, compression=codec)


def passes_during(work: Callable[[], Awaitable[T]]) -> tuple[int, T]:
    """Counts the event loop iterations until the work is done."""

    async def run() -> tuple[int, T]:
        pending = asyncio.ensure_future(work())
        passes = 0
        while not pending.done():
            passes += 1
            await asyncio.sleep(0)
        return passes, pending.result()

    return asyncio.run(run())


def appended(log: Log, data: bytes) -> Callable[[], Awaitable[int]]:
    async def append() -> int:
        try:
            log.append_as_leader(data, leader_epoch=0, now_ms=NOW)
        except UnpackFirstError as first:
            prepared = await log.environment.unpacking.prepare(first)
            log.append_as_leader(data, leader_epoch=0, now_ms=NOW, prepared=prepared)
        return log.log_end_offset

    return append


def test_a_lookup_by_time_does_not_block_other_tasks() -> None:
    log = new_log()
    log.append_as_leader(bomb(), leader_epoch=0, now_ms=NOW)
    passes, newest = passes_during(log.max_timestamp_offset)
    assert passes >= SLICES
    assert newest is not None
    assert newest.offset == 0
    log.append_as_leader(build_batch([(NOW + 1, b"k", None, ())]), leader_epoch=0, now_ms=NOW)
    _, found = passes_during(lambda: log.offset_for_timestamp(NOW + 1))
    assert found is not None
    assert found.offset == MANY


def test_a_lookup_by_time_in_batches_with_false_max_timestamps_does_not_block_other_tasks() -> None:
    """A client may write any max timestamp into the header, so each such batch is unpacked in vain."""
    log = new_log()
    liar = bytearray(build_batch([(NOW, b"k", None, ())]))
    header = parse_header(bytes(liar))._replace(max_timestamp=NOW + 1000)
    lie = seal(header, bytes(liar[HEADER_SIZE:])) + bytes(liar[HEADER_SIZE:])
    for _ in range(100):
        log.append_as_leader(lie, leader_epoch=0, now_ms=NOW)
    passes, found = passes_during(lambda: log.offset_for_timestamp(NOW + 500))
    assert found is None
    assert passes >= 100


def test_lookup_by_time_that_meets_an_undecodable_batch_returns_its_first_offset_instead_of_an_error() -> None:
    log = new_log()
    log.append_as_leader(build_batch([(NOW, b"k", None, ())]), leader_epoch=0, now_ms=NOW)
    header = parse_header(build_batch([(NOW + 5, b"k", None, ())] * 2, compression=Codec.ZSTD))
    for codec in Codec:
        garbage = bytes(range(50))
        batch = seal(header._replace(attributes=int(codec)), garbage) + garbage
        first = log.log_end_offset
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)
        _, found = passes_during(lambda: log.offset_for_timestamp(NOW + 1))
        assert found is not None
        assert (found.offset, found.timestamp) == (1, NOW + 5)
        assert log.log_end_offset == first + 2
    _, newest = passes_during(log.max_timestamp_offset)
    assert newest is not None
    assert newest.offset == 1
    _, found = passes_during(lambda: log.offset_for_timestamp(NOW))
    assert found is not None
    assert found.offset == 0


def test_an_append_to_a_compacted_topic_does_not_block_other_tasks() -> None:
    log = new_log(LogConfig(cleanup_policy=frozenset({"compact"})))
    passes, end = passes_during(appended(log, bomb()))
    assert passes >= SLICES
    assert end == MANY
    with pytest.raises(KafkaError) as refused:
        passes_during(appended(log, bomb(key=None)))
    assert refused.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_large_batch_is_stored_in_the_codec_of_its_topic(codec: Codec) -> None:
    log = new_log(LogConfig(compression_type="zstd" if codec is Codec.GZIP else "gzip"))
    passes_during(appended(log, bomb(codec=codec)))
    stored = log.read(0, 1 << 20, upper_bound=MANY).read_now()
    assert parse_header(stored).compression == (Codec.ZSTD if codec is Codec.GZIP else Codec.GZIP)
    assert len(read_records(bytes(stored))) == MANY


def test_batch_that_unpacks_to_more_than_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "SMALL_BYTES", 1000)
    monkeypatch.setattr(unpacking, "MAX_UNPACKED_BYTES", MANY)
    log = new_log(LogConfig(cleanup_policy=frozenset({"compact"})))
    with pytest.raises(KafkaError) as refused:
        passes_during(appended(log, bomb()))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert log.log_end_offset == 0


class SlowDisk(MemoryDisk):
    """Counts the calls that run in its threads at the same time, and delays each by a few event loop iterations."""

    def __init__(self) -> None:
        super().__init__()
        self.running = self.most = 0

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(3):
            await asyncio.sleep(0)
        self.running -= 1
        return function(*args, **kwargs)


def nothing(data: bytes) -> Generator[None, None, int]:
    yield
    return len(data)


@pytest.mark.parametrize(("small_bytes", "together"), [(10**7, SMALL_BATCHES), (1000, SMALL_BATCHES + 1)])
def test_number_of_batches_that_are_unpacked_at_the_same_time_is_limited(
    small_bytes: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "SMALL_BYTES", small_bytes)
    disk = SlowDisk()
    batch = bomb()
    header = parse_header(batch)

    async def run() -> list[Any]:
        node = Unpacking(disk)
        return await asyncio.gather(*(node.look_into(header, batch, nothing) for _ in range(5 * SMALL_BATCHES)))

    assert len(set(asyncio.run(run()))) == 1
    assert disk.most == together
