"""Tests short requests with long responses: ListGroups and DescribeClientQuotas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.handlers import api_16_list_groups as handler_16
from penstock.broker.handlers import api_48_describe_client_quotas as handler_48
from penstock.broker.requests.context import RequestContext
from penstock.broker.requests.encoded_responses import Encoded
from penstock.disk.memory import MemoryDisk
from penstock.groups.classic.group import ClassicGroup
from penstock.protocol.codec import decode
from penstock.protocol.messages import api_48_describe_client_quotas
from penstock.protocol.messages.api_16_list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from penstock.protocol.messages.api_48_describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntryData,
)

COUNT = 10_000


def context(key: int, version: int) -> RequestContext:
    return RequestContext(key, version, 0, "c", cast(Any, None), 0)


def passes(ask: Callable[[], Any], made: list[int]) -> Any:
    """Runs the handler and returns its response. Adds an item to `made` in each event loop iteration."""

    async def run() -> Any:
        made.append(0)
        answer = ask()
        assert isinstance(answer, Awaitable)
        asking = asyncio.ensure_future(answer)
        while not asking.done():
            made.append(0)
            await asyncio.sleep(0)
        return asking.result()

    return asyncio.run(run())


def broker(**fields: Any) -> Any:
    return SimpleNamespace(access=None, logs=SimpleNamespace(environment=SimpleNamespace(disk=MemoryDisk())), **fields)


def test_many_groups_are_listed_in_several_event_loop_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(**fields: Any) -> Any:
        made[-1] += 1
        return ListedGroup(**fields)

    monkeypatch.setattr("penstock.groups.admin.ListedGroup", counted)
    groups = {f"g{number}": ClassicGroup(f"g{number}") for number in range(COUNT)}
    coordinator = SimpleNamespace(active=lambda: SimpleNamespace(access=None, groups=groups))
    node = broker(groups=SimpleNamespace(coordinators=lambda: iter([coordinator])))
    answer = passes(lambda: handler_16.handle(node, context(16, 5), ListGroupsRequest()), made)
    assert isinstance(answer, Encoded)
    response = decode(ListGroupsResponse, 5, answer.body)
    assert [each.group_id for each in response.groups] == list(groups)
    assert sum(made) == COUNT
    assert max(made) <= 5_000


def test_many_quotas_are_described_in_several_event_loop_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(**fields: Any) -> EntryData:
        made[-1] += 1
        return EntryData(**fields)

    monkeypatch.setattr(api_48_describe_client_quotas, "EntryData", counted)
    entities = {(("user", f"u{number}"),): {"producer_byte_rate": 1.0} for number in range(COUNT)}
    node = broker(metadata=SimpleNamespace(image=SimpleNamespace(client_quotas=entities)))
    answer = passes(lambda: handler_48.handle(node, context(48, 1), DescribeClientQuotasRequest()), made)
    assert isinstance(answer, Encoded)
    response = decode(DescribeClientQuotasResponse, 1, answer.body)
    assert [entry.entity[0].entity_name for entry in response.entries or ()] == [f"u{n}" for n in range(COUNT)]
    assert sum(made) == COUNT
    assert max(made) <= 2_500
