"""An answer that is made when a future is done: a request that waits for one thing needs no task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from penstock.protocol.errors import without_frames

R = TypeVar("R")


class Deferred(Generic[R]):
    """`make` looks at how the future has ended, unless it was cancelled. It may be awaited like a coroutine."""

    __slots__ = ("future", "make")

    def __init__(self, future: asyncio.Future[Any], make: Callable[[], R]) -> None:
        self.future = future
        self.make = make

    def __await__(self) -> Generator[Any, None, R]:
        try:
            yield from self.future
        except asyncio.CancelledError:
            raise
        except Exception as error:  # `make` meets it
            without_frames(error)
        return self.make()
