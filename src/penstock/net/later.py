"""Defines `Later`: handlers and dispatchers return it if their response is not available yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from penstock.protocol.errors import without_frames

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


def result_of(future: asyncio.Future[R]) -> R:
    """Returns the future's result, or raises its error."""
    return future.result()


class Later(Generic[R_co]):
    """Holds a response that is not available yet: `make` makes the response once `source` is done.

    `source` is a future, or a coroutine, for which the connection creates a task. `make` is called with the finished
    future or task, which has a result or an error. `make` is not called if `source` was cancelled.
    """

    __slots__ = ("make", "source")

    def __init__(
        self,
        source: asyncio.Future[Any] | Coroutine[Any, Any, Any],
        make: Callable[[asyncio.Future[Any]], R_co] = result_of,
    ) -> None:
        self.source = source
        self.make = make

    def __await__(self) -> Generator[Any, None, R_co]:
        """Waits for the response, for a caller that runs in a task. Cancelling the caller also cancels `source`."""
        source = self.source
        if not isinstance(source, asyncio.Future):
            if self.make is result_of:
                result: R_co = yield from source.__await__()
                return result
            source = asyncio.ensure_future(source)
        try:
            yield from source
        except asyncio.CancelledError:
            raise
        except Exception as error:  # `make` gets it
            without_frames(error)
        return self.make(source)


async def settled(answer: R | Later[R]) -> R:
    """Returns the response `answer`. If `answer` is a `Later`, waits for its response first."""
    return await answer if isinstance(answer, Later) else answer
