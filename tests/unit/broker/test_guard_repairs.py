"""The records with which the guard refills a damaged segment: the good replicas have to agree on them."""

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


def fetched(served: dict[int, bytes]) -> bytes:
    async def sample(source: int, place: Any, at: int) -> Sample:
        return Sample(source, Status.SERVED, served[source], high_watermark=6)

    examiner: Any = SimpleNamespace(probe=SimpleNamespace(sample=sample))
    settings: Any = SimpleNamespace(int=lambda name: 1 << 60)
    parts: Any = SimpleNamespace()
    repairs = Repairs(2, parts, examiner, settings, logs=parts, observer=parts)
    return bytes(asyncio.run(repairs._fetch(list(served), parts, 5)))


def test_records_that_all_good_replicas_serve_are_used() -> None:
    assert fetched({1: GOOD, 3: GOOD}) == GOOD
    assert fetched({1: GOOD + GOOD[:20], 3: GOOD}) == GOOD, "an answer may end inside a batch"


def test_nothing_is_refilled_if_the_good_replicas_serve_different_records() -> None:
    with pytest.raises(KafkaError, match="different records") as raised:
        fetched({1: FORGED, 3: GOOD})
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


def test_replica_with_a_damaged_batch_is_not_asked_for_its_opinion() -> None:
    assert fetched({1: ROTTEN, 3: GOOD}) == GOOD
    with pytest.raises(KafkaError, match="No node of"):
        fetched({1: ROTTEN})
