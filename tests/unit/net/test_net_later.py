"""Tests `Later`, a response that is not available yet, with a caller that runs in a task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.net.later import Later, settled


def test_awaiting_a_response_that_is_already_available_returns_the_response() -> None:
    assert asyncio.run(settled(7)) == 7


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize("kind", ["future", "coroutine"])
def test_awaiting_a_delayed_response_returns_the_result_of_its_future_or_coroutine(kind: str, shaped: bool) -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 3

    async def scenario() -> int:
        source: Any = work() if kind == "coroutine" else asyncio.ensure_future(work())
        return await settled(Later(source, lambda done: done.result() + 1) if shaped else Later(source))

    assert asyncio.run(scenario()) == (4 if shaped else 3)


@pytest.mark.parametrize("kind", ["future", "coroutine"])
def test_function_that_builds_a_delayed_response_can_read_the_exception_of_its_future_or_coroutine(kind: str) -> None:
    async def work() -> int:
        raise ZeroDivisionError

    async def scenario() -> str:
        source: Any = work() if kind == "coroutine" else asyncio.ensure_future(work())
        return await settled(Later(source, lambda done: type(done.exception()).__name__))

    assert asyncio.run(scenario()) == "ZeroDivisionError"


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize("kind", ["future", "coroutine"])
def test_cancelling_the_wait_for_a_delayed_response_cancels_its_future_or_coroutine(kind: str, shaped: bool) -> None:
    async def scenario() -> None:
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def work() -> int:
            return await waiting

        def never_made(done: asyncio.Future[Any]) -> Any:
            raise AssertionError("it was made")

        source: Any = work() if kind == "coroutine" else waiting
        asking = asyncio.ensure_future(settled(Later(source, never_made) if shaped else Later(source)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        assert waiting.cancelled()

    asyncio.run(scenario())
