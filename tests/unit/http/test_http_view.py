"""Tests the cache of computed values that concurrent requests share."""

from __future__ import annotations

import asyncio

import pytest

from penstock.http.view import LONGEST_S, Cached, cached_s


def test_concurrent_requests_share_a_cached_value_until_it_expires() -> None:
    async def scenario() -> None:
        looks = 0
        keep_s = 1000.0

        async def look() -> int:
            nonlocal looks
            await asyncio.sleep(0)
            looks += 1
            return looks

        shared = Cached(look, lambda: keep_s)
        assert await asyncio.gather(*(shared.get() for _ in range(5))) == [1] * 5
        assert await shared.get() == 1
        keep_s = 0.0
        again = Cached(look, lambda: keep_s)
        assert [await again.get(), await again.get()] == [2, 3]

    asyncio.run(scenario())


def test_failed_computation_of_a_cached_value_fails_all_waiting_requests_that_were_not_cancelled() -> None:
    async def scenario() -> None:
        go_on = asyncio.Event()

        async def look() -> str:
            await go_on.wait()
            raise ValueError("no")

        shared = Cached(look)
        first, second = asyncio.ensure_future(shared.get()), asyncio.ensure_future(shared.get())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(ValueError, match="no"):
            await second
        with pytest.raises(ValueError, match="no"):  # and the next request computes again
            await shared.get()

    asyncio.run(scenario())


def test_computation_of_a_cached_value_is_cancelled_when_no_request_waits_for_it_any_more() -> None:
    async def scenario() -> None:
        running = 0
        go_on = asyncio.Event()

        async def look() -> str:
            nonlocal running
            running += 1
            try:
                await go_on.wait()
            finally:
                running -= 1
            return "found"

        shared = Cached(look, cancel_if_abandoned=True)
        first, second = asyncio.ensure_future(shared.get()), asyncio.ensure_future(shared.get())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0.0)
        assert running == 1
        second.cancel()
        await asyncio.wait([first, second])
        third = asyncio.ensure_future(shared.get())  # before the abandoned computation has ended
        go_on.set()
        assert await third == "found"
        assert running == 0

    asyncio.run(scenario())


def test_cluster_view_is_cached_for_longer_if_it_has_more_partitions() -> None:
    assert cached_s(0) == 1.0
    assert cached_s(3000) == 3.0
    assert cached_s(10**6) == LONGEST_S
