"""Tests that a ReadShareGroupState response has a limited size, and that large responses are encoded in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.handlers import api_84_read_share_group_state as reading
from penstock.broker.requests.encoded_responses import Encoded
from penstock.broker.requests.slices import Slices
from penstock.disk.memory import MemoryDisk
from penstock.protocol.codec import decode
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_84_read_share_group_state as wire
from penstock.share import state_requests
from penstock.share.state_requests import Read
from penstock.share.states import RecordState, StateBatch


def answer(runs: int, partitions: int, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, list[Any]]:
    """Reads the same share partition several times in one request. Its state has `runs` state batches.

    The first result is True if the response was encoded in a thread. The second result has the states.
    """
    batches = tuple(StateBatch(each, each, RecordState.AVAILABLE, each % 2) for each in range(runs))
    monkeypatch.setattr(state_requests, "read", lambda shard, turn, key, leader_epoch: Read(1, 0, batches))

    def run(key: object, decide: Callable[[Any, Any], Any]) -> Any:
        return decide(None, None)

    async def ask() -> Any:
        broker = SimpleNamespace(
            share_states=SimpleNamespace(run=run),
            slices=Slices(),
            logs=SimpleNamespace(environment=SimpleNamespace(disk=MemoryDisk())),
        )
        topic = wire.ReadStateData(partitions=[wire.PartitionData()] * partitions)
        request = wire.ReadShareGroupStateRequest(group_id="g", topics=[topic])
        return await reading.handle(cast(Any, broker), cast(Any, SimpleNamespace(api_version=0)), request)

    told = asyncio.run(ask())
    aside = isinstance(told, Encoded)
    response = decode(wire.ReadShareGroupStateResponse, 0, told.body) if aside else told
    return aside, response.results[0].partitions


def test_read_share_group_state_returns_no_further_states_once_its_response_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aside, results = answer(15_000, 4, monkeypatch)
    assert aside
    assert [(ErrorCode(each.error_code).name, len(each.state_batches)) for each in results] == [
        ("NONE", 15_000),
        ("NONE", 15_000),
        ("COORDINATOR_NOT_AVAILABLE", 0),
        ("COORDINATOR_NOT_AVAILABLE", 0),
    ]
    assert results[1].state_batches[7] == wire.StateBatch(first_offset=7, last_offset=7, delivery_count=1)


def test_small_share_states_are_read_without_encoding_the_response_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    aside, results = answer(10, 100, monkeypatch)
    assert not aside
    assert {(each.error_code, len(each.state_batches)) for each in results} == {(0, 10)}
