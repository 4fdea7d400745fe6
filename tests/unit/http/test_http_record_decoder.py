"""Tests how records for REST are decoded: a few at a time, in a separate thread, with readers taking turns."""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from penstock.formats.schemas import Schemas
from penstock.formats.views import Viewing
from penstock.http.messages import Encoded
from penstock.http.rest import record_rows
from penstock.http.rest.record_decoder import DecodedBatch, RecordDecoder, Step
from penstock.http.rest.record_rows import PIECE_BYTES, PIECE_RECORDS, RecordViews
from penstock.http.rest.records import READ_MAX_BYTES, RecordPage
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.records.excerpts import STEP_WORK, Excerpt, Wanted
from penstock.records.header import HEADER_SIZE, LOG_OVERHEAD, parse_header


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


def reading(decoder: RecordDecoder, batch: bytes, first: int = 0, wanted: bytes = b"") -> DecodedBatch:
    return decoder.read(parse_header(batch), batch, Wanted(first, wanted))


async def steps_of(decoder: RecordDecoder, batch: bytes, first: int = 0, wanted: bytes = b"") -> list[Step]:
    decoded, steps = reading(decoder, batch, first, wanted), []
    while (step := await decoded.next_step()) is not None:
        steps.append(step)
    return steps


def test_large_batch_is_decoded_a_limited_number_of_records_at_a_time_and_only_matches_are_kept() -> None:
    async def scenario() -> None:
        async with decoding() as decoder:
            steps = await steps_of(decoder, small_records(2 * STEP_WORK + 1), STEP_WORK + 1, b"77")
            reached = [step.next_offset for step in steps]
            assert (reached[0], reached[-1]) == (STEP_WORK, 2 * STEP_WORK + 1)
            assert reached == sorted(set(reached))
            found = [record.offset for step in steps for record in step.matches]
            assert found == [number for number in range(STEP_WORK + 1, 2 * STEP_WORK + 1) if "77" in str(number)]
            assert found

    asyncio.run(scenario())


def test_decoding_a_batch_without_records_returns_nothing() -> None:
    """Decodes a batch of which compaction has removed all records and kept only the header."""
    empty = bytearray(small_records(1)[:HEADER_SIZE])
    empty[8:12], empty[-4:] = struct.pack(">i", HEADER_SIZE - LOG_OVERHEAD), bytes(4)

    async def scenario() -> None:
        async with decoding() as decoder:
            assert await steps_of(decoder, bytes(empty)) == []

    asyncio.run(scenario())


def test_rest_reader_of_few_records_does_not_wait_for_a_reader_of_very_many_records() -> None:
    async def scenario() -> None:
        async with decoding() as decoder:
            many = reading(decoder, small_records(4 * STEP_WORK))
            first = asyncio.ensure_future(many.next_step())
            few = asyncio.ensure_future(steps_of(decoder, small_records(3)))
            left = 0
            await first
            while await many.next_step() is not None:
                left += not few.done()
            assert [step.next_offset for step in await few] == [3]
            assert left < 5

    asyncio.run(scenario())


def test_records_for_rest_are_decoded_in_a_thread_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(
        "penstock.http.rest.paced_thread._run", lambda *_: names.append(threading.current_thread().name)
    )

    async def scenario() -> None:
        async with decoding() as decoder:
            await asyncio.gather(*(steps_of(decoder, small_records(1)) for _ in range(20)))

    asyncio.run(scenario())
    assert set(names) == {"penstock-http-records_0"}


def test_record_decoding_thread_sleeps_after_each_part_for_as_long_as_the_part_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = itertools.count(step=2)
    pauses: list[float] = []
    monkeypatch.setattr(
        "penstock.http.rest.paced_thread.time", SimpleNamespace(thread_time=ticks.__next__, sleep=pauses.append)
    )

    async def scenario() -> int:
        async with decoding() as decoder:
            return len(await steps_of(decoder, small_records(STEP_WORK // 2)))

    steps = asyncio.run(scenario())
    assert steps > 1
    assert pauses == [2] * (steps + 1)


def test_rest_read_omits_a_batch_that_decompresses_to_too_many_bytes_and_gives_the_reason() -> None:
    async def scenario() -> None:
        async with decoding() as decoder:
            content = bytes(20 * 1024 * 1024)
            batch = build_batch([(0, None, content, ()), (0, None, content, ())], compression=Codec.ZSTD)
            (step,) = await steps_of(decoder, batch)
            assert (step.matches, step.next_offset) == ([], 2)
            assert step.problem.startswith("Offsets 0 to 1 can't be shown: A record batch unpacks to more than")

    asyncio.run(scenario())


def records(first: int, count: int, size: int = 1) -> Step:
    found = [Excerpt(first + number, 0, size, None, bytes(size)) for number in range(count)]
    return Step(found, first + count)


def test_page_of_records_ends_at_its_record_limit_and_the_next_page_begins_after_its_last_record() -> None:
    page = RecordPage(limit=3, next_offset=5)
    page.add(records(5, 2))
    assert (page.full, page.next_offset) == (False, 7)
    page.add(records(7, 2))
    assert (page.full, page.next_offset, len(page.found)) == (True, 8, 3)


def test_page_of_records_ends_when_its_limit_of_read_bytes_is_reached() -> None:
    page = RecordPage(limit=3, next_offset=0)
    page.add(Step([], 9))
    page.spend(READ_MAX_BYTES)
    assert (page.full, page.next_offset) == (True, 9)


def test_records_for_rest_are_encoded_as_json_in_small_pieces_in_a_thread_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces: list[tuple[str, int, int]] = []
    make = record_rows._rows

    def watched(partition: int, found: Sequence[Excerpt], viewing: Viewing) -> list[Encoded]:
        pieces.append((threading.current_thread().name, len(found), sum(each.size for each in found)))
        return make(partition, found, viewing)

    monkeypatch.setattr(record_rows, "_rows", watched)
    views = RecordViews(Schemas())
    found = [*records(0, 120, 1).matches, *records(120, 5, 50 * 1024).matches, *records(125, 1, 10**6).matches]

    async def scenario() -> list[Encoded]:
        return await views.rows(0, found, views.viewing("t", {}))

    try:
        rows = asyncio.run(asyncio.wait_for(scenario(), 120))
    finally:
        views.close()
    assert [json.loads(each.json)["offset"] for each in rows] == list(range(126))
    assert {name for name, _, _ in pieces} == {"penstock-views_0"}
    assert max(count for _, count, _ in pieces) <= PIECE_RECORDS
    assert all(size <= PIECE_BYTES or count == 1 for _, count, size in pieces)
