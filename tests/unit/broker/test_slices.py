"""Tests that the garbage collector pauses only while large requests are handled."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.dispatch import dispatcher as dispatch
from penstock.broker.dispatch.dispatcher import Dispatcher
from penstock.broker.dispatch.large_requests import SMALL_ELEMENTS
from penstock.broker.requests import slices
from penstock.broker.requests.fault_rules import Faults
from penstock.broker.requests.slices import Slices
from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.net.later import Later
from penstock.protocol.codec import encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_14_sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

pytestmark = pytest.mark.exhaustive

SYNC_GROUP = 14


@pytest.fixture(autouse=True)
def _collects_before_and_after() -> Iterator[None]:
    assert gc.isenabled()
    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # an earlier command in this process may have left its own thresholds
    yield
    gc.set_threshold(*thresholds)
    assert gc.isenabled()


def ask_large(monkeypatch: pytest.MonkeyPatch, handle: Any) -> asyncio.Task[Any]:
    """Sends a SyncGroup request with many assignments to a dispatcher that calls `handle`."""
    monkeypatch.setattr(dispatch, "load_handler", lambda key: handle)
    broker: Any = SimpleNamespace(
        access=None,
        audit=None,
        clock=ManualClock(),
        faults=Faults(),
        quotas=SimpleNamespace(request=SimpleNamespace(limits={})),
        logs=SimpleNamespace(environment=SimpleNamespace(disk=MemoryDisk())),
        slices=Slices(),
    )
    request = SyncGroupRequest(assignments=[SyncGroupRequestAssignment()] * (SMALL_ELEMENTS + 1))
    head = struct.pack(">hhih", SYNC_GROUP, 4, 7, -1) + b"\0"
    return asyncio.ensure_future(Dispatcher(broker)(cast(Any, None), memoryview(head + encode(request, 4))))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["future", "coroutine"])
@pytest.mark.parametrize("end", ["answer", "refusal", "hang-up"])
def test_the_garbage_collector_runs_while_a_large_request_waits(
    kind: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        waits: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        handled = asyncio.Event()
        seen: list[bool] = []

        async def later() -> Any:
            seen.append(gc.isenabled())
            handled.set()
            try:
                return await waits
            finally:
                seen.append(gc.isenabled())

        def handle(*_: Any) -> Any:
            if kind == "coroutine":
                return Later(later())
            seen.append(gc.isenabled())
            handled.set()
            return Later(waits)

        reply = ask_large(monkeypatch, handle)
        await handled.wait()
        assert gc.isenabled()
        if end == "answer":
            waits.set_result(SyncGroupResponse())
            assert isinstance(await reply, list)
        elif end == "refusal":
            waits.set_exception(KafkaError(ErrorCode.REBALANCE_IN_PROGRESS))
            assert isinstance(await reply, list)
        else:
            reply.cancel()
            await asyncio.wait([reply])
            assert reply.cancelled()
        assert not any(seen)

    asyncio.run(scenario())


def test_the_garbage_collector_pauses_until_the_last_of_several_large_requests_is_done() -> None:
    async def scenario() -> None:
        taking_turns = Slices()
        first, second = taking_turns.uncollected(), taking_turns.uncollected()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not gc.isenabled()
        second.__exit__(None, None, None)

    asyncio.run(scenario())


def test_the_garbage_collector_pauses_between_two_slices_of_a_large_request() -> None:
    async def scenario() -> None:
        taking_turns = Slices()

        async def two_slices() -> None:
            await taking_turns.turn()
            await asyncio.sleep(0)

        served = asyncio.ensure_future(taking_turns.serve(two_slices()))
        await asyncio.sleep(0)
        seen = []
        while not served.done():
            seen.append(gc.isenabled())
            await asyncio.sleep(0)
        assert seen == [False] * len(seen) != []

    asyncio.run(scenario())


def test_garbage_does_not_accumulate_during_consecutive_large_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "PAUSE_MAX_OBJECTS", 10_000)

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    async def scenario() -> None:
        taking_turns = Slices()
        gc.collect()
        alive = 0
        with taking_turns.uncollected():  # at every moment a large request is being handled
            for _ in range(50):
                with taking_turns.uncollected():
                    for _ in range(1_000):
                        Cycle()
                alive = max(alive, sum(1 for each in gc.get_objects() if isinstance(each, Cycle)))
        assert 1_000 < alive < 20_000

    asyncio.run(scenario())
