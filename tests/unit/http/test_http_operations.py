"""Tests which ended operations and results are kept, and how the memory of results is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.http import operations
from penstock.http.guard import NOBODY
from penstock.http.operations import Operation, Operations

KB = 1024


def with_result(size: int) -> Callable[[Operation], Coroutine[Any, Any, None]]:
    async def work(operation: Operation) -> None:
        operation.result["records"] = [{"value": "x" * size}]

    return work


async def run(kept: Operations, *sizes: int) -> list[Operation]:
    """Runs operations with results of these sizes, one after the other."""
    found = []
    for size in sizes:
        operation = kept.start(NOBODY, "search", "searches a topic", with_result(size))
        await asyncio.wait([kept._tasks[operation.number]])
        await asyncio.sleep(0)  # its callbacks run
        found.append(operation)
    return found


def test_results_of_the_oldest_operations_are_dropped_at_the_memory_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "RESULTS_MAX_BYTES", 100 * KB)
    first, second, third = asyncio.run(run(Operations(lambda: 0), 40 * KB, 40 * KB, 40 * KB))
    assert (first.as_json()["result"], first.as_json()["result_dropped"]) == ({}, True)
    assert [(bool(each.result), each.result_dropped) for each in (second, third)] == [(True, False)] * 2
    assert 40 * KB < third.result_bytes < 41 * KB


def test_result_of_the_last_operation_is_kept_even_if_it_exceeds_the_memory_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "RESULTS_MAX_BYTES", 100 * KB)
    small, large = asyncio.run(run(Operations(lambda: 0), KB, 200 * KB))
    assert small.result_dropped
    assert large.result["records"]


def test_result_of_a_cancelled_operation_counts_towards_the_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "RESULTS_MAX_BYTES", 100 * KB)

    async def endless(operation: Operation) -> None:
        operation.result["records"] = ["x" * 80 * KB]
        await asyncio.Event().wait()

    async def scenario() -> tuple[Operation, Operation]:
        kept = Operations(lambda: 0)
        cancelled = kept.start(NOBODY, "search", "searches a topic", endless)
        task = kept._tasks[cancelled.number]
        await asyncio.sleep(0)  # the operation starts
        assert kept.cancel(cancelled)
        await asyncio.wait([task])
        assert cancelled.result_bytes > 80 * KB
        assert not kept.cancel(cancelled)
        (later,) = await run(kept, 40 * KB)
        return cancelled, later

    cancelled, later = asyncio.run(scenario())
    assert (cancelled.state, cancelled.result_dropped, later.result_dropped) == ("cancelled", True, False)


def test_counting_the_memory_of_a_large_result_is_spread_over_many_event_loop_iterations() -> None:
    async def scenario() -> int:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count_turns())
        await operations._memory_of({"records": [{"value": "x"}] * 10_000})
        counting.cancel()
        return turns

    assert asyncio.run(scenario()) > 100
