"""Tests which records the guard uses to repair a damaged segment: all undamaged replicas have to agree."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.guard.repairs import Repairs
from penstock.guard.samples import Sample, Status
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.build import build_batch

GOOD = bytes(build_batch([(0, None, b"good", ())], base_offset=5))
FORGED = bytes(build_batch([(0, None, b"evil", ())], base_offset=5))
ROTTEN = GOOD[:-1] + bytes([GOOD[-1] ^ 1])


def fetched(served: dict[int, bytes], used: set[int] | None = None) -> bytes:
    async def sample(source: int, place: Any, at: int) -> Sample:
        return Sample(source, Status.SERVED, served[source], high_watermark=6)

    examiner: Any = SimpleNamespace(probe=SimpleNamespace(sample=sample))
    settings: Any = SimpleNamespace(int=lambda name: 1 << 60)
    parts: Any = SimpleNamespace()
    repairs = Repairs(2, parts, examiner, settings, logs=parts, observer=parts)
    return bytes(asyncio.run(repairs._fetch(list(served), parts, 5, set() if used is None else used)))


def test_damaged_segment_is_repaired_with_records_that_all_undamaged_replicas_serve() -> None:
    assert fetched({1: GOOD, 3: GOOD}) == GOOD
    assert fetched({1: GOOD + GOOD[:20], 3: GOOD}) == GOOD, "an answer may end inside a batch"


def test_damaged_segment_is_not_repaired_if_the_undamaged_replicas_serve_different_records() -> None:
    with pytest.raises(KafkaError, match="different records") as raised:
        fetched({1: FORGED, 3: GOOD})
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


def test_repair_ignores_replicas_that_serve_a_damaged_batch() -> None:
    used: set[int] = set()
    assert fetched({1: ROTTEN, 3: GOOD, 4: GOOD}, used) == GOOD
    assert used == {3, 4}
    with pytest.raises(KafkaError, match="None of the nodes"):
        fetched({1: ROTTEN})
