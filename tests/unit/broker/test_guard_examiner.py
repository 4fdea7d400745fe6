"""Tests how the guard examines the replicas of a partition: two examinations, missing records, claimed roles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.broker.guard import examiner as examiner_module
from penstock.broker.guard.examiner import Examination, Examiner
from penstock.broker.guard.probe import Place
from penstock.clock import ManualClock
from penstock.guard.claims import Claim, Role
from penstock.guard.findings import Kind
from penstock.guard.samples import Sample, Status
from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import EMPTY_IMAGE, MetadataImage, PartitionImage, TopicImage
from penstock.records.build import build_batch

ID = bytes(range(16))
KEY = (ID, 0)
GOOD = bytes(build_batch([(1000, None, b"value", ())], base_offset=0, leader_epoch=0))
FORGED = bytes(build_batch([(1000, None, b"other", ())], base_offset=0, leader_epoch=0))


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examiner_module, "CONFIRM_S", 0.0)


def image_of(partition: PartitionImage) -> MetadataImage:
    topic = TopicImage("t", ID, {0: partition})
    return replace(EMPTY_IMAGE, topics={"t": topic}, topics_by_id={ID: topic})


WHOLE = PartitionImage((1, 2, 3), (1, 2, 3), 1)


class Replicas:
    """Replaces the replicas: each node serves the samples that the test lists, one for each request."""

    def __init__(self, *rounds: dict[int, Sample], claims: dict[int, Claim] | None = None) -> None:
        self._rounds = rounds
        self._claims = claims or {}
        self._asked: dict[int, int] = {}
        self.offsets: list[tuple[int, int]] = []

    async def sample(self, node_id: int, place: Place, offset: int, max_bytes: int = 0) -> Sample:
        number = self._asked[node_id] = self._asked.get(node_id, -1) + 1
        self.offsets.append((node_id, offset))
        return self._rounds[min(number, len(self._rounds) - 1)][node_id]

    async def claims(self, node_id: int, places: Sequence[Place]) -> dict[Place, Claim]:
        leads = Claim(1, Role.LEADS, 1) if node_id == 1 else Claim(node_id, Role.FOLLOWS)
        return {place: self._claims.get(node_id, leads) for place in places}


async def _at_once(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def examiner(replicas: Replicas, image: Callable[[], MetadataImage]) -> Examiner:
    settings = Settings({"node.id": "1"})
    return Examiner(replicas, settings, ManualClock(), image=image, in_thread=_at_once)  # type: ignore[arg-type]


def serving(**records: bytes) -> dict[int, Sample]:
    return {int(name[1:]): Sample(int(name[1:]), Status.SERVED, each, 1) for name, each in records.items()}


def confirmed(replicas: Replicas, images: Sequence[MetadataImage] = (image_of(WHOLE),)) -> Examination | None:
    left = list(images)

    def image() -> MetadataImage:
        return left.pop(0) if len(left) > 1 else left[0]

    return asyncio.run(examiner(replicas, image).confirmed(KEY, 0))


def test_difference_between_replicas_is_a_finding_if_two_examinations_see_it() -> None:
    found = confirmed(Replicas(serving(n1=GOOD, n2=FORGED, n3=GOOD)))
    assert found is not None
    assert [(each.kind, each.accused) for each in found.findings] == [(Kind.CONTENT, 2)]
    assert (found.comparison.damaged, found.comparison.good) == (frozenset({2}), (1, 3))
    assert found.bytes_read == 6 * len(GOOD)


def test_difference_between_replicas_is_no_finding_if_the_second_examination_does_not_see_it() -> None:
    found = confirmed(Replicas(serving(n1=GOOD, n2=FORGED, n3=GOOD), serving(n1=GOOD, n2=GOOD, n3=GOOD)))
    assert found is not None
    assert found.findings == ()
    assert not found.comparison.damaged


def test_findings_are_dropped_if_the_leader_epoch_changes_between_two_examinations() -> None:
    later = image_of(replace(WHOLE, leader_epoch=5))
    replicas = Replicas(serving(n1=GOOD, n2=FORGED, n3=GOOD))
    # The first look and the look-up after it see the old epoch, the second look a new one.
    found = confirmed(replicas, (image_of(WHOLE), image_of(WHOLE), later))
    assert found is not None
    assert found.findings == ()
    assert not found.comparison.damaged


def test_guard_examines_only_in_sync_replicas() -> None:
    replicas = Replicas(serving(n1=GOOD, n2=FORGED, n3=GOOD))
    found = confirmed(replicas, (image_of(replace(WHOLE, isr=(1, 3))),))
    assert found is not None
    assert found.findings == ()
    assert {node for node, _ in replicas.offsets} == {1, 3}


def test_guard_does_not_examine_a_partition_without_a_leader() -> None:
    assert confirmed(Replicas(), (image_of(replace(WHOLE, leader=-1)),)) is None
    assert confirmed(Replicas(), (EMPTY_IMAGE,)) is None


def test_guard_does_not_accuse_a_replica_that_has_deleted_the_examined_records() -> None:
    absent, there = Sample(2, Status.ABSENT), Sample(2, Status.SERVED, b"", 1)
    rest = serving(n1=GOOD, n3=GOOD)
    replicas = Replicas({**rest, 2: absent}, {**rest, 2: there})
    found = asyncio.run(examiner(replicas, lambda: image_of(WHOLE)).examine(KEY, 0))
    assert found is not None
    assert found.findings == ()
    assert replicas.offsets[-1] == (2, 1)


def test_guard_accuses_an_in_sync_replica_that_ends_below_the_high_watermark() -> None:
    absent = {**serving(n1=GOOD, n3=GOOD), 2: Sample(2, Status.ABSENT)}
    found = confirmed(Replicas(absent))
    assert found is not None
    assert [(each.kind, each.accused) for each in found.findings] == [(Kind.MISSING, 2)]


def test_guard_finds_a_second_leader_even_if_all_replicas_serve_the_same_records() -> None:
    replicas = Replicas(serving(n1=GOOD, n2=GOOD, n3=GOOD), claims={3: Claim(3, Role.LEADS, 1)})
    found = confirmed(replicas)
    assert found is not None
    assert [(each.kind, each.accused) for each in found.findings] == [(Kind.TWO_LEADERS, 3)]


def test_guard_finds_a_replica_whose_high_watermark_is_past_the_end_of_the_leaders_log() -> None:
    high = {**serving(n1=GOOD, n3=GOOD), 2: Sample(2, Status.SERVED, GOOD, 50)}
    found = confirmed(Replicas(high))
    assert found is not None
    assert [(each.kind, each.accused) for each in found.findings] == [(Kind.HIGH_WATERMARK, 2)]
