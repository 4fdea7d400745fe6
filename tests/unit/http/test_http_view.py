"""One look for many who ask."""

from __future__ import annotations

import asyncio

import pytest

from penstock.http.view import LONGEST_S, Shared, fresh_s


def test_those_who_ask_together_share_a_look_and_those_after_it_has_aged_do_not() -> None:
    async def scenario() -> None:
        looks = 0
        keep_s = 1000.0

        async def look() -> int:
            nonlocal looks
            await asyncio.sleep(0)
            looks += 1
            return looks

        shared = Shared(look, lambda: keep_s)
        assert await asyncio.gather(*(shared.get() for _ in range(5))) == [1] * 5
        assert await shared.get() == 1
        keep_s = 0.0
        again = Shared(look, lambda: keep_s)
        assert [await again.get(), await again.get()] == [2, 3]

    asyncio.run(scenario())


def test_one_who_leaves_takes_nothing_from_the_others_and_a_failure_is_everybodys() -> None:
    async def scenario() -> None:
        go_on = asyncio.Event()

        async def look() -> str:
            await go_on.wait()
            raise ValueError("no")

        shared = Shared(look)
        first, second = asyncio.ensure_future(shared.get()), asyncio.ensure_future(shared.get())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(ValueError, match="no"):
            await second
        with pytest.raises(ValueError, match="no"):  # and the next one looks again
            await shared.get()

    asyncio.run(scenario())


def test_the_more_there_is_to_look_at_the_longer_it_is_kept() -> None:
    assert fresh_s(0) == 1.0
    assert fresh_s(3000) == 3.0
    assert fresh_s(10**6) == LONGEST_S
