"""Runs handlers that are generators: a handler yields after each element of the request's array.

A request may legally name a hundred thousand topics. The generator (type `Steps`) yields None after each element, or an
awaitable to wait for. A short request is answered at once. During a long request, other requests are served after every
`STEPS_PER_PASS` elements. Elements are counted, not timed, so that the simulator repeats a run exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, TypeVar

from penstock.net.later import Later

R = TypeVar("R")
#: `yield` ends a step; `result = yield awaitable` waits for the awaitable's result.
Steps = Generator[Awaitable[Any] | None, Any, R]

STEPS_PER_PASS = 200


def run_at_once(steps: Steps[R]) -> R:
    """Runs a generator handler to its end without yielding to the event loop, and returns its result.

    The handler must not yield an awaitable.
    """
    try:
        while True:
            next(steps)
    except StopIteration as done:
        result: R = done.value
        return result


def run_steps(steps: Steps[R]) -> R | Later[R]:
    """Runs a generator handler and returns its result.

    Returns a `Later` (a result that is made later) if the handler yields too often for one pass of the event loop, or
    yields an awaitable.
    """
    try:
        for _ in range(STEPS_PER_PASS):
            awaited = next(steps)
            if awaited is not None:
                return Later(_go_on(steps, awaited))
    except StopIteration as done:
        result: R = done.value
        return result
    return Later(_go_on(steps, None))


async def _go_on(steps: Steps[R], awaited: Awaitable[Any] | None) -> R:
    left = 0
    try:
        while True:
            if awaited is None:
                left -= 1
                if left <= 0:
                    left = STEPS_PER_PASS
                    await asyncio.sleep(0)
                awaited = next(steps)
                continue
            try:
                value = await awaited
            except Exception as error:
                awaited = steps.throw(error)
            else:
                awaited = steps.send(value)
    except StopIteration as done:
        result: R = done.value
        return result
    finally:
        steps.close()
