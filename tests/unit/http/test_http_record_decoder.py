"""Records for REST are decoded in steps, in a thread of their own, and readers take turns."""

from __future__ import annotations

import asyncio
import itertools
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from penstock.http.rest.record_decoder import STEP_RECORDS, RecordDecoder, Step
from penstock.http.rest.records import READ_MAX_BYTES, RecordPage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.records.header import HEADER_SIZE, LOG_OVERHEAD
from penstock.records.record import Record


@asynccontextmanager
async def decoding() -> AsyncIterator[RecordDecoder]:
    decoder = RecordDecoder()
    try:
        async with asyncio.timeout(120):
            yield decoder
    finally:
        decoder.close()


def small_records(count: int) -> bytes:
    return build_batch([(0, None, b"%d" % number, ()) for number in range(count)], compression=Codec.ZSTD)


async def steps_of(decoder: RecordDecoder, batch: bytes, first: int = 0, wanted: bytes = b"") -> list[Step]:
    decoded, steps = decoder.read(batch, first, wanted), []
    while (step := await decoded.next_step()) is not None:
        steps.append(step)
    return steps


def test_a_batch_is_decoded_in_steps_and_only_matches_are_kept() -> None:
    async def scenario() -> None:
        async with decoding() as decoder:
            steps = await steps_of(decoder, small_records(2 * STEP_RECORDS + 1), STEP_RECORDS + 1, b"77")
            assert [step.next_offset for step in steps] == [STEP_RECORDS, 2 * STEP_RECORDS, 2 * STEP_RECORDS + 1]
            found = [record.offset for step in steps for record in step.matches]
            assert found == [number for number in range(STEP_RECORDS + 1, 2 * STEP_RECORDS + 1) if "77" in str(number)]
            assert found

    asyncio.run(scenario())


def test_a_batch_without_records_has_no_step() -> None:
    """Compaction keeps the header of a batch whose records it removed."""
    empty = bytearray(small_records(1)[:HEADER_SIZE])
    empty[8:12], empty[-4:] = struct.pack(">i", HEADER_SIZE - LOG_OVERHEAD), bytes(4)

    async def scenario() -> None:
        async with decoding() as decoder:
            assert await steps_of(decoder, bytes(empty)) == []

    asyncio.run(scenario())


def test_a_reader_of_few_records_does_not_wait_for_a_reader_of_very_many() -> None:
    async def scenario() -> None:
        async with decoding() as decoder:
            many = decoder.read(small_records(20 * STEP_RECORDS), 0, b"")
            first = asyncio.ensure_future(many.next_step())
            few = asyncio.ensure_future(steps_of(decoder, small_records(3)))
            left = 0
            await first
            while await many.next_step() is not None:
                left += not few.done()
            assert [step.next_offset for step in await few] == [3]
            assert left < 5

    asyncio.run(scenario())


def test_records_are_decoded_in_a_thread_that_nothing_else_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(
        "penstock.http.rest.record_decoder.DecodedBatch._decode",
        lambda self: names.append(threading.current_thread().name),
    )

    async def scenario() -> None:
        async with decoding() as decoder:
            await asyncio.gather(*(steps_of(decoder, small_records(1)) for _ in range(20)))

    asyncio.run(scenario())
    assert set(names) == {"penstock-http-records_0"}


def test_the_thread_pauses_after_each_step_as_long_as_the_step_took(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(step=2)
    pauses: list[float] = []
    monkeypatch.setattr(
        "penstock.http.rest.record_decoder.time", SimpleNamespace(monotonic=ticks.__next__, sleep=pauses.append)
    )

    async def scenario() -> None:
        async with decoding() as decoder:
            await steps_of(decoder, small_records(STEP_RECORDS + 1))

    asyncio.run(scenario())
    assert pauses == [2, 2, 2]


def test_a_batch_that_unpacks_to_too_many_bytes_is_refused() -> None:
    async def scenario() -> None:
        async with decoding() as decoder:
            batch = build_batch([(0, None, bytes(40 * 1024 * 1024), ())], compression=Codec.ZSTD)
            with pytest.raises(KafkaError) as error:
                await steps_of(decoder, batch)
            assert error.value.code is ErrorCode.MESSAGE_TOO_LARGE

    asyncio.run(scenario())


def records(first: int, count: int, size: int = 1) -> Step:
    found = [Record(first + number, 0, None, bytes(size)) for number in range(count)]
    return Step(found, first + count)


def test_a_page_is_full_at_its_limit_of_records_and_continues_after_the_last_one() -> None:
    page = RecordPage(limit=3, next_offset=5)
    page.add(records(5, 2))
    assert (page.full, page.next_offset) == (False, 7)
    page.add(records(7, 2))
    assert (page.full, page.next_offset, len(page.found)) == (True, 8, 3)


def test_a_page_is_full_when_its_bytes_are_read() -> None:
    page = RecordPage(limit=3, next_offset=0)
    page.add(Step([], 9))
    page.spend(READ_MAX_BYTES)
    assert (page.full, page.next_offset) == (True, 9)
