"""Tests how the group coordinator lets share coordinators create the states of new partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.coordinators import share_initializing
from penstock.broker.coordinators.runtime import Phase
from penstock.broker.coordinators.share_initializing import AT_ONCE, MAX_WAITING, ShareInitializing
from penstock.broker.coordinators.share_persister import SharePersister
from penstock.groups.share.states import NOWHERE, InitializeStates
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.share.sessions import Slot
from penstock.share.state_journal import ShareKey

TOPIC = bytes(16)
Reports = list[list[int]]


class Persister:
    """Replaces the share coordinators: refuses partition 0, accepts other partitions, and waits for `answers` first."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.asked: list[int] = []

    async def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> None:
        self.asked.append(key.partition)
        await self.answers.wait()
        if key.partition == 0:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The share coordinator is moving: retry.")


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    """Collects the partitions of each report to the group coordinator."""
    found: Reports = []

    def states_initialized(shard: object, turn: object, group_id: str, slots: Iterable[tuple[bytes, int]]) -> None:
        found.append([index for _, index in slots])

    monkeypatch.setattr(share_initializing, "states_initialized", states_initialized)
    return found


def started(persister: Persister, count: int, tasks: list[asyncio.Task[None]]) -> None:
    def spawn(work: Coroutine[Any, Any, None]) -> None:
        tasks.append(asyncio.get_running_loop().create_task(work))

    wanted = InitializeStates("group", 1, tuple((TOPIC, index) for index in range(count)))
    coordinator = cast(Any, SimpleNamespace(phase=Phase.ACTIVE, post=lambda decide: decide(None, None)))
    spawn(ShareInitializing(wanted, cast(SharePersister, persister), coordinator, spawn).run())


async def ended(tasks: list[asyncio.Task[None]]) -> None:
    async with asyncio.timeout(20):
        for task in tasks:  # a task adds others
            await task
        await asyncio.sleep(0)


def test_share_partitions_whose_states_are_created_together_are_reported_together(
    reports: Reports,
) -> None:
    async def scenario() -> None:
        persister = Persister()
        tasks: list[asyncio.Task[None]] = []
        started(persister, 10, tasks)
        persister.answers.set()
        await ended(tasks)

    asyncio.run(scenario())
    assert reports == [list(range(1, 10))]


def test_states_of_many_partitions_are_requested_a_limited_number_at_a_time(reports: Reports) -> None:
    async def scenario() -> None:
        persister = Persister()
        tasks: list[asyncio.Task[None]] = []
        started(persister, 3 * MAX_WAITING, tasks)
        sizes = [0]
        while len(persister.asked) < MAX_WAITING:
            await asyncio.sleep(0)
            sizes.append(len(persister.asked))
        assert max(after - before for before, after in pairwise(sizes)) <= AT_ONCE
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(persister.asked) == MAX_WAITING, "the others wait until the share coordinators answer"
        persister.answers.set()
        await ended(tasks)

    asyncio.run(scenario())
    assert sorted(index for report in reports for index in report) == list(range(1, 3 * MAX_WAITING))
    assert len(reports) <= 3 * MAX_WAITING // AT_ONCE


class AnsweringPersister:
    """Answers each request for a state with the error for its partition, and notes the requests."""

    def __init__(self, codes: dict[int, ErrorCode]) -> None:
        self.codes = codes
        self.asked: list[tuple[ShareKey, int, int]] = []

    async def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> None:
        self.asked.append((key, state_epoch, start_offset))
        code = self.codes.get(key.partition, ErrorCode.NONE)
        if code:
            raise KafkaError(code, "refused")


@pytest.mark.parametrize("phase", list(Phase))
def test_created_states_are_reported_with_their_group_while_its_coordinator_is_active(
    phase: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[object, object, str, list[Slot]]] = []

    def states_initialized(shard: object, turn: object, group_id: str, slots: Iterable[Slot]) -> None:
        found.append((shard, turn, group_id, list(slots)))

    monkeypatch.setattr(share_initializing, "states_initialized", states_initialized)
    codes = dict(enumerate([ErrorCode.NONE, ErrorCode.FENCED_STATE_EPOCH, *set(ErrorCode) - {ErrorCode.NONE}]))
    topics = (TOPIC, bytes([1]) * 16)
    slots = tuple((topic, index) for topic in topics for index in codes)
    persister = AnsweringPersister(codes)

    async def scenario() -> None:
        tasks: list[asyncio.Task[None]] = []

        def spawn(work: Coroutine[Any, Any, None]) -> None:
            tasks.append(asyncio.get_running_loop().create_task(work))

        coordinator = cast(Any, SimpleNamespace(phase=phase, post=lambda decide: decide("shard", "turn")))
        wanted = InitializeStates("group", 7, slots)
        spawn(ShareInitializing(wanted, cast(SharePersister, persister), coordinator, spawn).run())
        await ended(tasks)

    asyncio.run(scenario())
    assert sorted(persister.asked) == sorted((ShareKey("group", *slot), 7, NOWHERE) for slot in slots)
    exists = [index for index, code in codes.items() if code in (ErrorCode.NONE, ErrorCode.FENCED_STATE_EPOCH)]
    reported = sorted(slot for *_, some in found for slot in some)
    if phase is Phase.ACTIVE:
        assert {each[:3] for each in found} == {("shard", "turn", "group")}
        assert reported == sorted((topic, index) for topic in topics for index in exists)
    else:
        assert found == []
